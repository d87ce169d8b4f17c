"""Samplers, the search strategies: found by name, made, and the base class of your own.

`docs/how-to/add-a-sampler.md` shows how one is written. Each name is loaded when it is first used: listing the names of
the samplers needs no optuna.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.samplers.base import SpaceExhaustedError, SpaceSampler, distributions, seen
    from tilescout.search.samplers.choice import Choice, choose_sampler
    from tilescout.search.samplers.options import Option
    from tilescout.search.samplers.registry import (
        SAMPLERS,
        AnySampler,
        check_known,
        check_sampler,
        find_sampler,
        make_sampler,
        other_samplers,
        parse_sampler,
    )

__all__ = [
    "SAMPLERS",
    "AnySampler",
    "Choice",
    "Option",
    "SpaceExhaustedError",
    "SpaceSampler",
    "check_known",
    "check_sampler",
    "choose_sampler",
    "distributions",
    "find_sampler",
    "make_sampler",
    "other_samplers",
    "parse_sampler",
    "seen",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        **dict.fromkeys(("SpaceExhaustedError", "SpaceSampler", "distributions", "seen"), "base"),
        **dict.fromkeys(("Choice", "choose_sampler"), "choice"),
        "Option": "options",
        **dict.fromkeys(
            (
                "SAMPLERS",
                "AnySampler",
                "check_known",
                "check_sampler",
                "find_sampler",
                "make_sampler",
                "other_samplers",
                "parse_sampler",
            ),
            "registry",
        ),
    },
)
