"""Search strategies by name; a strategy's module, and optuna with it, is imported when it is made."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilescout.spaces.errors import SamplerError
from tilescout.spaces.space import SearchSpace

if TYPE_CHECKING:
    from tilescout.search.samplers.base import SpaceSampler

SAMPLERS: Mapping[str, str] = {
    "exhaustive": "every configuration, in the order of the space",
    "random": "configurations at random, each as likely",
    "tpe": "tree-structured Parzen estimator: near the fast ones, away from the slow ones; cheap at any length",
    "gp": "Gaussian process and expected improvement: the fewest trials, at tenths of a second each",
}
"""What each strategy does, by its name."""

_CLASSES = {
    "exhaustive": "exhaustive:ExhaustiveSampler",
    "random": "random:RandomSampler",
    "tpe": "tpe:TPESampler",
    "gp": "gp:GPSampler",
}


def check_sampler(name: str) -> None:
    """Refuse a name that no strategy has.

    Raises
    ------
    SamplerError
        With the names that there are.
    """
    if name not in _CLASSES:
        raise SamplerError(f"unknown sampler {name!r}, known are {', '.join(SAMPLERS)}")


def make_sampler(name: str, space: SearchSpace | None = None, seed: int | None = None) -> "SpaceSampler":
    """The search strategy of this name, as an optuna sampler.

    Parameters
    ----------
    name
        One of `SAMPLERS`.
    space
        The configurations to search; without one it is an ordinary optuna sampler of its kind.
    seed
        Seed of all randomness; drawn from the operating system if None.

    Raises
    ------
    SamplerError
        If there is no strategy of this name, or the seed is negative.
    """
    check_sampler(name)
    module, kind = _CLASSES[name].split(":")
    sampler: SpaceSampler = getattr(importlib.import_module(f"{__name__}.{module}"), kind)(space, seed)
    return sampler
