"""The few configurations of a problem that are worth compiling: what is expected to be fastest before anything runs."""

import logging
from functools import cache

import numpy as np

from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model
from tilescout.costmodel.relatives import model_for
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate

_LOG = logging.getLogger(__name__)

_TWINS = ("swizzle", "raster")
"""Knobs that only change the order of tiles: of configurations that differ in nothing else, one is enough."""


def shortlist(template: KernelTemplate, problem: Problem, device: Device, count: int) -> list[Configuration]:
    """The default of a problem, and what the shipped cost model expects to be fastest; the default comes first.

    Parameters
    ----------
    template
        The kernels.
    problem, device
        What is computed, and where.
    count
        Configurations at most.

    Raises
    ------
    ProblemError, SpaceError
        If the kernels can't compute it.
    """
    space: SearchSpace = template.space(problem, device)
    chosen = [template.default_in(space)]
    model = _model(space.name, space.device.name)
    if model is not None:
        expected = model.foresee(space_features(space, template)).mean
        order = np.argsort(expected, kind="stable")[: 64 * count]
    else:
        order = np.array(template.first_in(space), dtype=np.int64)
    seen = {_kind(chosen[0])}
    for index in order:
        if len(chosen) == count:
            break
        configuration = space[int(index)]
        if (kind := _kind(configuration)) not in seen:
            seen.add(kind)
            chosen.append(configuration)
    return chosen[:count]


def _kind(configuration: Configuration) -> tuple[object, ...]:
    return tuple(value for name, value in configuration.items() if name not in _TWINS)


@cache
def _model(space: str, device: str) -> CostModel | None:
    path = model_for(space, device)
    if path is None:
        return None
    try:
        return load_model(path)[0]
    except ModelError as error:
        _LOG.warning("only the default and a few others are tried: %s", error)
        return None
