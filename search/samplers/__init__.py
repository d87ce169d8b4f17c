"""Search strategies by name; a strategy's module, and optuna with it, is imported when it is made."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilescout.search.samplers.options import OptionValue, read_options
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.space import SearchSpace

if TYPE_CHECKING:
    from tilescout.search.samplers.base import SpaceSampler

SAMPLERS: Mapping[str, str] = {
    "exhaustive": "every configuration, in the order of the space",
    "random": "configurations at random, each as likely",
    "tpe": "tree-structured Parzen estimator: near the fast ones, away from the slow ones; cheap at any length",
    "gp": "Gaussian process and expected improvement: the fewest trials, at tenths of a second each",
    "lfbo": "pattern search whose neighbours a random forest picks, in batches, as Helion's autotuner does",
}
"""What each strategy does, by its name."""

_CLASSES = {
    "exhaustive": "exhaustive:ExhaustiveSampler",
    "random": "random:RandomSampler",
    "tpe": "tpe:TPESampler",
    "gp": "gp:GPSampler",
    "lfbo": "lfbo:LFBOSampler",
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


def make_sampler(
    name: str,
    space: SearchSpace | None = None,
    seed: int | None = None,
    options: Mapping[str, OptionValue | str] | None = None,
) -> "SpaceSampler":
    """The search strategy of this name, as an optuna sampler.

    Parameters
    ----------
    name
        One of `SAMPLERS`.
    space
        The configurations to search; without one it is an ordinary optuna sampler of its kind.
    seed
        Seed of all randomness; drawn from the operating system if None.
    options
        Values of those options that the strategy declares, as numbers or as text.

    Raises
    ------
    SamplerError
        If there is no strategy of this name, the seed is negative, or an option is unknown or has an impossible value.
    """
    check_sampler(name)
    module, attribute = _CLASSES[name].split(":")
    kind: type[SpaceSampler] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return kind(space, seed, **read_options(name, kind.options, options or {}))
