"""Search strategies by name; a strategy's module, and optuna with it, is imported when it is made."""

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilescout.spaces.errors import SamplerError
from tilescout.spaces.space import SearchSpace

if TYPE_CHECKING:
    from tilescout.search.samplers.base import SpaceSampler

SAMPLERS: Mapping[str, str] = {
    "exhaustive": "every configuration, in the order of the space",
    "random": "configurations at random, each as likely",
    "tpe": "tree-structured Parzen estimator: near the fast ones, away from the slow ones; cheap at any length",
    "gp": "Gaussian process and expected improvement: the fewest trials, at tenths of a second each",
    "guided": "what the shipped cost model expects, corrected by every measurement; stops by itself",
    "guided-cold": "the same without a cost model: for spaces and devices that nothing is known of",
}
"""What each strategy does, by its name."""

_CLASSES = {
    "exhaustive": "exhaustive:ExhaustiveSampler",
    "random": "random:RandomSampler",
    "tpe": "tpe:TPESampler",
    "gp": "gp:GPSampler",
    "guided": "guided:GuidedSampler",
    "guided-cold": "guided:ColdSampler",
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
    name: str, space: SearchSpace | None = None, seed: int | None = None, **settings: Any
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
    settings
        What else the strategy takes: ``guided`` a cost model (``model``) and its ``options``.

    Raises
    ------
    SamplerError
        If there is no strategy of this name, it does not take a setting, or the seed is negative.
    """
    check_sampler(name)
    module, kind = _CLASSES[name].split(":")
    strategy: type[SpaceSampler] = getattr(importlib.import_module(f"{__name__}.{module}"), kind)
    taken = list(inspect.signature(strategy.__init__).parameters)[3:]  # after self, space and seed
    unknown = sorted(set(settings) - set(taken))
    if unknown:
        raise SamplerError(
            f"sampler {name} takes no {unknown[0]!r}, " + (f"only {', '.join(taken)}" if taken else "only a seed")
        )
    return strategy(space, seed, **settings)
