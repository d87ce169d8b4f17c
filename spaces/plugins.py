"""Spaces that other packages bring: what they register under the entry point group ``tilescout.spaces``.

Nothing of a package is imported before its space is asked for, so that a broken one breaks no other.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

GROUP = "tilescout.spaces"


@dataclass(frozen=True)
class Registered:
    """A space that a package registers.

    Attributes
    ----------
    target
        Its template, as module:attribute.
    distribution
        The package, with its version.
    """

    target: str
    distribution: str


@dataclass(frozen=True)
class Registry:
    """What is registered by name: the spaces that can be asked for, and why the others can't."""

    usable: Mapping[str, Registered]
    refused: Mapping[str, str]


def registered_spaces(taken: Collection[str]) -> Registry:
    """The spaces that installed packages register; names in `taken` are ours, and stay so."""
    return _registry(frozenset(taken))


@cache
def _registry(taken: frozenset[str]) -> Registry:
    claims: dict[str, list[Registered]] = {}
    for point in sorted(entry_points(group=GROUP), key=_origin):
        claims.setdefault(point.name, []).append(Registered(point.value, _origin(point)))
    usable, refused = {}, {}
    for name, found in claims.items():
        claimants = " and ".join(each.distribution for each in found)
        if name in taken:
            refused[name] = f"space {name!r} of {claimants} is refused: the name is tilescout's own"
        elif len(found) > 1:
            refused[name] = f"space {name!r} is registered by {claimants}: uninstall all but one, or name module:Class"
        else:
            usable[name] = found[0]
    return Registry(usable, refused)


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
