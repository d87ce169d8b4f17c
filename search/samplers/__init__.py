"""Samplers, the search strategies: found by name, made, and the base class of your own.

`docs/how-to/add-a-sampler.md` shows how one is written. What is named here is loaded when it is first used: listing the
names of the samplers needs no optuna.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescout.search.samplers.base import SpaceExhaustedError, SpaceSampler, distributions
    from tilescout.search.samplers.options import Option
    from tilescout.search.samplers.registry import (
        SAMPLERS,
        AnySampler,
        check_sampler,
        find_sampler,
        make_sampler,
        parse_sampler,
    )
    from tilescout.spaces.space import Indices

__all__ = [
    "SAMPLERS",
    "AnySampler",
    "Indices",
    "Option",
    "SpaceExhaustedError",
    "SpaceSampler",
    "check_sampler",
    "distributions",
    "find_sampler",
    "make_sampler",
    "parse_sampler",
]

_MODULES = {
    "Indices": "tilescout.spaces.space",
    "Option": f"{__name__}.options",
    "SpaceExhaustedError": f"{__name__}.base",
    "SpaceSampler": f"{__name__}.base",
    "distributions": f"{__name__}.base",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES.get(name, f"{__name__}.registry")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
