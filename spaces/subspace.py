"""Sub-spaces: stated parts of a space, as data in TOML files.

A file has one table ``[[part]]`` or more, and the sub-space is their union. A part restricts knobs: to some values
(``tile_k = [64, 128]``), or to ``"max"``, the largest value that is legal with the other knobs as they are. ``stages =
"max"``, for example, takes as many stages as fit into shared memory. A knob that a part does not name keeps all its
values. The text ``about`` says what a part is for, or, at the top of the file, the whole sub-space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.spaces.constraints import Mask
from tilescout.spaces.errors import MALFORMED, SpaceError, check_keys, fault_of
from tilescout.spaces.inputs import SMALL, parse_toml, read_regular
from tilescout.spaces.knobs import Knob, Value
from tilescout.spaces.space import Indices, SearchSpace

LARGEST = "max"
"""Stands in place of values for the largest one that is legal with the other knobs as they are."""


@dataclass(frozen=True)
class Part:
    """The configurations whose knobs have certain values.

    Attributes
    ----------
    values
        Each restricted knob with its allowed values.
    largest
        The knob that is to be as large as is legal; None if there is none.
    """

    values: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    largest: str | None = None

    def holds(self, space: SearchSpace) -> Mask:
        """The mask of a space's configurations that are in it, of shape [configurations]."""
        axes = {knob.name: axis for axis, knob in enumerate(space.knobs)}
        found = np.arange(len(space))
        for name, values in self.values:
            knob = space.knobs[axes[name]]
            allowed = np.zeros(len(knob.values), dtype=np.bool_)
            allowed[[knob.code(value) for value in values]] = True
            found = found[allowed[space.codes[found, axes[name]]]]
        if self.largest and len(found):
            # Those that differ in this knob alone are all left, or none is.
            found = found[_as_large_as_is_legal(space, found, axes[self.largest])]
        wanted = np.zeros(len(space), dtype=np.bool_)
        wanted[found] = True
        return wanted

    def __str__(self) -> str:
        named = [f"{name} {', '.join(map(str, values))}" for name, values in self.values]
        return "; ".join([*named, *([f"{self.largest} the largest legal"] if self.largest else [])]) or "everything"


@dataclass(frozen=True)
class SubSpace:
    """The union of parts of a space.

    Attributes
    ----------
    parts
        The parts.
    """

    parts: tuple[Part, ...]

    def holds(self, space: SearchSpace) -> Mask:
        """The mask of a space's configurations that are in it, of shape [configurations]."""
        return np.asarray(np.logical_or.reduce([part.holds(space) for part in self.parts]))

    def __str__(self) -> str:
        return " or ".join(f"({part})" for part in self.parts) if len(self.parts) > 1 else str(self.parts[0])


def read_subspace(path: Path, knobs: Sequence[Knob]) -> SubSpace:
    """The sub-space in a TOML file; see the module.

    Raises
    ------
    SpaceError
        If the file can't be read, is malformed, or names a knob or value that there is not.
    """
    try:
        record = parse_toml(read_regular(path, SMALL).decode())
        check_keys(record, {"about", "part"})
        parts = tuple(_part(_restrictions(part), knobs) for part in record["part"])
    except (OSError, *MALFORMED) as error:
        fault = error.strerror if isinstance(error, OSError) else fault_of(error)
        raise SpaceError(f"can't read {path} as a sub-space, one table [[part]] or more: {fault}") from error
    except SpaceError as error:
        raise SpaceError(f"{path}: {error}") from error
    if not parts:
        raise SpaceError(f"{path} has no [[part]], so nothing is in it")
    return SubSpace(parts)


def parse_restrictions(texts: Sequence[str], knobs: Sequence[Knob]) -> SubSpace:
    """The sub-space of one part that restrictions ``KNOB=VALUE[,VALUE...]`` and ``KNOB=max`` describe.

    Raises
    ------
    SpaceError
        If one is malformed, names a knob or value that there is not, or a knob that another one names.
    """
    given: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals:
            allowed = ", ".join(knob.name for knob in knobs)
            raise SpaceError(f"{text!r} is not KNOB=VALUE[,VALUE...]; the knobs are {allowed}")
        if name in given:
            raise SpaceError(f"{name} is restricted twice: give all its values at once, {name}=VALUE[,VALUE...]")
        given[name] = values.split(",")
    return SubSpace((_part(given, knobs),))


def _part(given: Mapping[str, Sequence[str]], knobs: Sequence[Knob]) -> Part:
    known = {knob.name: knob for knob in knobs}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SpaceError(f"there is no knob {unknown[0]!r}, the knobs are {', '.join(known)}")
    largest = [name for name, texts in given.items() if list(texts) == [LARGEST]]
    if len(largest) > 1:
        raise SpaceError(f"only one knob of a part can be {LARGEST}, not {' and '.join(largest)}")
    for name in largest:
        if not all(isinstance(value, int) for value in known[name].values):
            raise SpaceError(f"knob {name} can't be {LARGEST}: its values are no numbers")
    values = ((name, tuple(map(known[name].parse, texts))) for name, texts in given.items() if name not in largest)
    return Part(tuple(values), largest[0] if largest else None)


def _as_large_as_is_legal(space: SearchSpace, among: Indices, axis: int) -> Mask:
    """Of some configurations, the mask of those with the largest value of a knob among all that differ in it alone."""
    codes = space.codes[among]
    values = np.array(space.knobs[axis].values)[codes[:, axis]]
    others = np.zeros(len(codes), dtype=np.int64)  # of a space of one knob there are no others
    if len(space.shape) > 1:
        others = np.ravel_multi_index(tuple(np.delete(codes, axis, axis=1).T), np.delete(space.shape, axis))
    _, group = np.unique(others, return_inverse=True)
    most = np.full(group.max() + 1, values.min())
    np.maximum.at(most, group, values)
    return np.asarray(values == most[group])


def _restrictions(part: Mapping[str, Any]) -> dict[str, list[str]]:
    """The values that a part names of each knob, as texts for the knob to parse."""
    given = {name: values if isinstance(values, list) else [values] for name, values in part.items() if name != "about"}
    return {name: list(map(str, values)) for name, values in given.items()}
