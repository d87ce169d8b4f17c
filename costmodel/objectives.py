"""Models that learn from tables whose kernels were timed in different ways.

In some tables each kernel was timed in a chain of its own launches, in others among kernels that write its inputs and
read its output, as in a model. A search does the latter, and which kernels are the fastest is not quite the same. So
the samples say which it was, in a feature more. A fitted model takes that feature as settled: it predicts times among
other kernels, and asks for no more features than before.

Of 34 problems that no table holds, the fastest of the first five kernels by the model of `gemm_streamk_sm90` is 2.6 %
behind the fastest that searches had found by tables of chains alone, and 1.8 % by tables of both kinds, told apart so.
Where nothing tells them apart it is 2.2 % (`experiments/results/stream-k.md`).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilescout.costmodel.blend import Blended
from tilescout.costmodel.ensemble import Judged
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.ranking import REACH, Networks
from tilescout.spaces.errors import ModelError

AMONG_OTHERS = "among_others"
"""The feature: 1 where a kernel was timed among others, 0 in a chain."""


def told_apart(samples: Sequence[Sample], among_others: bool) -> list[Sample]:
    """The samples of a table, with how its kernels were timed as a feature more."""
    return [
        replace(
            sample,
            features=sample.features.beside(
                Features((AMONG_OTHERS,), np.full((len(sample.features), 1), float(among_others)))
            ),
        )
        for sample in samples
    ]


def among_others(fitted: Judged) -> Judged:
    """A model that learned from samples of both kinds, as one of kernels among others.

    Raises
    ------
    ModelError
        If its ensemble is no `Blended` one of samples that were told apart.
    """
    ensemble = fitted.ensemble
    if not isinstance(ensemble, Blended) or AMONG_OTHERS not in ensemble.names:
        raise ModelError(f"the model has no feature {AMONG_OTHERS}: it learned from tables of one objective")
    column = ensemble.names.index(AMONG_OTHERS)
    names = tuple(name for name in ensemble.names if name != AMONG_OTHERS)
    forest = replace(ensemble.forest, names=names, forest=ensemble.forest.forest.settled(column, 1.0))
    return replace(fitted, ensemble=Blended(forest, _settled(ensemble.networks, names, column, 1.0)))


def _settled(networks: Networks, names: tuple[str, ...], column: int, value: float) -> Networks:
    """Networks of one feature less, which has a given value: it adds to the biases of their first layers."""
    known = np.clip((value - networks.centre[column]) / networks.scale[column], -REACH, REACH)
    members = []
    for (weight, bias), *others in networks.members:
        members.append(((np.delete(weight, column, axis=0), bias + known * weight[column]), *others))
    centre, scale = (np.delete(each, column) for each in (networks.centre, networks.scale))
    return Networks(names, centre, scale, tuple(members), networks.constants)
