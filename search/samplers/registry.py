"""Where samplers are found: by name, as ``module:Class``, or in other packages; optuna is imported when one is."""

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tilescout.search.samplers.options import OptionValue, parse_options, read_options
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.errors import SamplerError, TilescoutError
from tilescout.spaces.faults import described
from tilescout.spaces.plugins import Registry, load, registered
from tilescout.spaces.space import SearchSpace

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from tilescout.search.samplers.base import SpaceSampler

GROUP = "tilescout.samplers"
"""The entry point group in which other packages register samplers."""

AnySampler: TypeAlias = "str | type[BaseSampler] | BaseSampler"
"""A sampler as it is asked for: text (see `parse_sampler`), a class, or an object."""

_BUILT_IN = {
    "exhaustive": "tilescout.search.samplers.exhaustive:ExhaustiveSampler",
    "random": "tilescout.search.samplers.random:RandomSampler",
    "tpe": "tilescout.search.samplers.tpe:TPESampler",
    "gp": "tilescout.search.samplers.gp:GPSampler",
    "lfbo": "tilescout.search.samplers.lfbo:LFBOSampler",
    "evolutionary": "tilescout.search.samplers.evolutionary:EvolutionarySampler",
    "guided": "tilescout.search.samplers.guided:GuidedSampler",
    "guided-cold": "tilescout.search.samplers.guided:ColdSampler",
}

_OF_THE_SEARCH = {"others", "joint", "earlier"}
"""Settings that a search gives to samplers that take them: nobody else is to."""

_NO_SETTINGS: Mapping[str, Any] = {}

_NAME = re.compile(r"[\w-]+")  # what can't be mistaken for module:Class, an option or two samplers


class _Samplers(Mapping[str, "type[SpaceSampler]"]):
    """The samplers that have a name: tilescout's own first, then those that installed packages register."""

    def __iter__(self) -> Iterator[str]:
        yield from _BUILT_IN
        yield from other_samplers().usable

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in _BUILT_IN or name in other_samplers().usable

    def __getitem__(self, name: str) -> "type[SpaceSampler]":
        if name not in self:
            raise KeyError(name)
        return find_sampler(name)


SAMPLERS: Mapping[str, "type[SpaceSampler]"] = _Samplers()
"""The class of each sampler by its name. Names are listed without importing a class."""


def other_samplers() -> Registry:
    """The samplers that installed packages register, and those whose names they can't have."""
    found = registered(GROUP, "sampler", _BUILT_IN)
    odd = [name for name in found.usable if not _NAME.fullmatch(name)]
    reasons = {
        name: f"sampler {name!r} of {found.usable[name].distribution} is refused: a name has letters, digits, _ and -"
        for name in odd
    }
    usable = {name: each for name, each in found.usable.items() if name not in reasons}
    return Registry(usable, {**found.refused, **reasons})


def parse_sampler(text: str) -> tuple[str, dict[str, str]]:
    """The name, or ``module:Class``, and the options of a sampler as a person writes it.

    Examples are ``tpe``, ``lfbo:copies=5:initial=100`` and ``my_module:MySampler:startup=5``.

    Raises
    ------
    SamplerError
        If it is malformed. An unknown name is refused by `find_sampler`.
    """
    name, *rest = text.split(":")
    if not rest:
        return name, {}
    return parse_options(text, 2 if "=" not in rest[0] and name not in SAMPLERS else 1)


def find_sampler(sampler: "str | type[BaseSampler]") -> "type[SpaceSampler]":
    """The class of samplers of this name.

    Parameters
    ----------
    sampler
        A class, or text as `parse_sampler` takes it, whose options don't matter here. The class may be any optuna
        sampler's: its proposals are then moved to legal configurations that were not tried.

    Raises
    ------
    SamplerError
        If there is none, or it can't be loaded.
    """
    from optuna.samplers import BaseSampler

    from tilescout.search.samplers.base import SpaceSampler
    from tilescout.search.samplers.ordinary import among_legal

    name = parse_sampler(sampler)[0] if isinstance(sampler, str) else None
    found = _named(name) if name is not None else sampler
    if not (isinstance(found, type) and issubclass(found, BaseSampler)):
        what = found.__name__ if isinstance(found, type) else type(found).__name__
        raise SamplerError(f"{sampler!r} is no class of optuna samplers, but a {what}")
    kind = found if issubclass(found, SpaceSampler) else among_legal(found)
    if name is not None and ":" not in name and kind.name != name:
        raise SamplerError(f"sampler {name!r} calls itself {kind.name!r}: the names must agree")
    return kind


def _named(name: str) -> Any:
    if name in _BUILT_IN:
        return load(_BUILT_IN[name], SamplerError)
    if ":" in name:
        return load(name, SamplerError)
    others = other_samplers()
    if name in others.refused:
        raise SamplerError(others.refused[name])
    check_known(name, "or any as module:Class, such as optuna.samplers:NSGAIISampler")
    found = others.usable[name]
    try:
        return load(found.target, SamplerError)
    except SamplerError as error:
        raise SamplerError(f"sampler {name!r} of {found.distribution} is broken: {error}") from error


def check_known(name: str, besides: str) -> None:
    """Refuse a name that neither is a sampler's nor could be: not why a sampler can't be loaded.

    Parameters
    ----------
    name
        The name, or ``module:Class``.
    besides
        What else may be named, for the message.

    Raises
    ------
    SamplerError
        If it is no such name.
    """
    if ":" not in name and name not in SAMPLERS and name not in other_samplers().refused:
        raise SamplerError(f"unknown sampler {name!r}, known are {', '.join(SAMPLERS)}, {besides}")


def check_setting_names(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are called like other arguments of `make_sampler`.

    Raises
    ------
    SamplerError
        If one is.
    """
    if taken := sorted(settings.keys() & {"sampler", "space", "seed"}):
        raise SamplerError(f"a setting can't be called {taken[0]!r}: that is an argument of its own")


def check_sampler(sampler: AnySampler, settings: Mapping[str, Any] = _NO_SETTINGS) -> None:
    """Refuse a sampler that can't be made with some settings, before anything else is done.

    Raises
    ------
    SamplerError
        If its name or an option is unknown, an option's value is not allowed, or it does not take a setting.
    """
    check_setting_names(settings)
    make_sampler(sampler, **settings)


def make_sampler(
    sampler: AnySampler,
    space: SearchSpace | None = None,
    seed: int | None = None,
    options: Mapping[str, OptionValue | str] | None = None,
    **settings: Any,
) -> "SpaceSampler":
    """The sampler of a search.

    Parameters
    ----------
    sampler
        Text such as ``tpe`` or ``my_module:MySampler:startup=5`` (see `parse_sampler`), a class, or an object. An
        object is copied; if it has a seed, it keeps that.
    space
        The configurations to search; without one it is an ordinary optuna sampler of its kind.
    seed
        Seed of all randomness; drawn from the operating system if None.
    options
        Values of options that the class declares, as numbers or as text; beside those that the text names.
    settings
        What else the class's constructor takes, as a cost model (``model``) where `SpaceSampler.uses_model`.

    Raises
    ------
    SamplerError
        If there is no such sampler, it does not take a setting, the seed is negative, or an option is unknown or its
        value is not allowed.
    """
    check_kinds(SamplerError, options=(options, Mapping | None))
    given = dict(options or {})
    if not isinstance(sampler, str | type):
        return _copied(sampler, space, seed, [*given, *settings])
    if isinstance(sampler, str):
        sampler, written = parse_sampler(sampler)
        if twice := written.keys() & given.keys():
            raise SamplerError(f"{sampler}: option {min(twice)} is given twice")
        given |= written
    kind = find_sampler(sampler)
    parameters = list(inspect.signature(kind.__init__).parameters.values())[3:]  # after self, space and seed
    taken = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    unknown = sorted(set(settings) - set(taken))
    if "model" in unknown:
        raise SamplerError(f"sampler {kind.name} takes no cost model: name none, or search with guided")
    if unknown:
        allowed = [name for name in taken if name not in _OF_THE_SEARCH] + ["options"] * bool(kind.options)
        raise SamplerError(f"sampler {kind.name} takes no {unknown[0]!r}, only {', '.join(allowed) or 'a seed'}")
    options = read_options(kind.name, kind.options, given)
    try:
        return kind(space, seed, **options, **settings)
    except TilescoutError:
        raise
    except Exception as error:  # whatever code of others raises when it is made
        raise SamplerError(f"sampler {kind.name} can't be made: {described(error)}") from error


def _copied(sampler: "BaseSampler", space: SearchSpace | None, seed: int | None, settings: list[str]) -> "SpaceSampler":
    from optuna.samplers import BaseSampler

    from tilescout.search.samplers.base import SpaceSampler
    from tilescout.search.samplers.ordinary import GivenSampler

    if not isinstance(sampler, BaseSampler):
        raise SamplerError(f"{type(sampler).__name__} is no sampler: give text, or a class or an object of optuna's")
    if settings:
        raise SamplerError(f"{type(sampler).__name__}: {settings[0]!r} can't be set on an object; give its class")
    if not isinstance(sampler, SpaceSampler):
        return GivenSampler(sampler, space, seed)
    return sampler.over(space, seed if sampler.seed is None else None)
