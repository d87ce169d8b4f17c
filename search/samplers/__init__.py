"""Search strategies by name; a strategy's module, and optuna with it, is imported when it is made."""

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    "guided": "what the shipped cost model expects, corrected by every measurement; stops by itself",
    "guided-cold": "the same without a cost model: for spaces and devices that nothing is known of",
}
"""What each strategy does, by its name."""

LEARN_FROM_OTHERS = ("guided", "guided-cold")
"""Those that take what is known of other problems (``others``); see `tilescout.search.samplers.others`."""

_CLASSES = {
    "exhaustive": "exhaustive:ExhaustiveSampler",
    "random": "random:RandomSampler",
    "tpe": "tpe:TPESampler",
    "gp": "gp:GPSampler",
    "lfbo": "lfbo:LFBOSampler",
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
    name: str,
    space: SearchSpace | None = None,
    seed: int | None = None,
    options: Mapping[str, OptionValue | str] | None = None,
    **settings: Any,
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
    settings
        What else the strategy takes: ``guided`` a cost model (``model``) and its ``tuning``.

    Raises
    ------
    SamplerError
        If there is no strategy of this name, it does not take a setting, the seed is negative, or an option is unknown
        or has an impossible value.
    """
    check_sampler(name)
    module, attribute = _CLASSES[name].split(":")
    kind: type[SpaceSampler] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    read = read_options(name, kind.options, options or {})
    # after self, space and seed
    taken = [each for each in list(inspect.signature(kind.__init__).parameters)[3:] if each not in read]
    unknown = sorted(set(settings) - set(taken))
    if unknown:
        raise SamplerError(
            f"sampler {name} takes no {unknown[0]!r}, " + (f"only {', '.join(taken)}" if taken else "only a seed")
        )
    return kind(space, seed, **read, **settings)
