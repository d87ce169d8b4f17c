"""Tunable parameters and the choice of a value for each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.texts import is_one_line, printable

Value = int | str
_FEW = 16  # consecutive numbers that are named one by one
_MOST = 1 << 15  # values of a knob: their positions are integers of 16 bits

LONGEST = 200
"""Characters of a text that a knob may have: arrays of texts take as many for each of them as the longest has."""


@dataclass(frozen=True)
class Knob:
    """One tunable parameter.

    Attributes
    ----------
    name
        Its name in configurations, tables and MLflow.
    values
        The legal values. Neighbours, distances and encodings go by their order.
    doc
        The effect of the knob, in a sentence.
    """

    name: str
    values: tuple[Value, ...]
    doc: str

    def __post_init__(self) -> None:
        """Refuse a name or a text that is long, a name that ends a line, and more values than can be told apart.

        Raises
        ------
        SpaceError
            If there is such a text, or there are so many values.
        """
        texts = [self.name, *(value for value in self.values if isinstance(value, str))]
        longest = max(texts, key=len)
        if len(longest) > LONGEST:
            raise SpaceError(f"a knob has a text of {len(longest)} characters, {longest[:20]!r}…: {LONGEST} at most")
        if not is_one_line(self.name):
            raise SpaceError(f"a knob is called {self.name!r}: a name is on one line")
        if len(self.values) > _MOST:
            raise SpaceError(f"knob {self.name} has {len(self.values):,} values: {_MOST:,} at most")

    @property
    def allowed(self) -> str:
        """The legal values for people: each, or ``0 to 63`` where they are many consecutive numbers."""
        numbers = [value for value in self.values if isinstance(value, int)]
        if len(numbers) > _FEW and self.values == tuple(range(numbers[0], numbers[0] + len(self.values))):
            return f"{numbers[0]} to {numbers[-1]}"
        return ", ".join(map(str, self.values))

    def code(self, value: Value) -> int:
        """The position of a value in `values`.

        Raises
        ------
        SpaceError
            If the knob can't have it.
        """
        try:
            return self._codes[value]
        except (KeyError, TypeError):  # a list has no hash
            raise self.refusal(value) from None

    @cached_property
    def _codes(self) -> dict[Value, int]:
        return {value: code for code, value in reversed(tuple(enumerate(self.values)))}  # of equal values the first

    def parse(self, text: str) -> Value:
        """The legal value that prints as `text`.

        Raises
        ------
        SpaceError
            If there is none.
        """
        for value in self.values:
            if str(value) == text:
                return value
        raise self.refusal(text)

    def refusal(self, value: object) -> SpaceError:
        """The error that says that the knob can't have a value."""
        plain = str(value).isprintable() and str(value) not in map(str, self.values)  # '1' is no 1
        given = str(value) if plain else repr(value)
        return SpaceError(f"knob {self.name} can't be {given}, allowed are {self.allowed}")


@dataclass(frozen=True, eq=False)  # mappings are equal whatever their order
class Configuration(Mapping[str, Value]):
    """One value for every knob: an immutable, hashable mapping that prints as ``knob=value ...``, on one line.

    `Configuration.of` makes one of a mapping.

    Raises
    ------
    SpaceError
        If `pairs` is no tuple, but a mapping, say.
    """

    pairs: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.pairs, tuple):
            kind = type(self.pairs).__name__
            raise SpaceError(f"a Configuration takes a tuple of pairs, not a {kind}: make it by `Configuration.of`")

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> "Configuration":
        """A configuration with the entries of a mapping, in its order."""
        return cls(tuple(values.items()))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.pairs:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __hash__(self) -> int:
        return hash(frozenset(self.pairs))

    def __str__(self) -> str:
        text = " ".join(f"{name}={value}" for name, value in self.pairs)
        return text if text.isprintable() else printable(text).replace("\n", "\\n")


def listed_configurations(found: Any) -> list[Configuration]:
    """Configurations, or parts of such, of a JSON text.

    Raises
    ------
    ValueError
        If it is not a list of objects of integers and strings.
    """
    shaped = isinstance(found, list) and all(isinstance(each, dict) for each in found)
    if not shaped or not all(type(value) in (int, str) for each in found for value in each.values()):
        raise ValueError("it is not a list of configurations, objects of integers and strings")
    return [Configuration.of(each) for each in found]


def configurations_of(knobs: Sequence[Knob], columns: Mapping[str, NDArray[Any]]) -> list[Configuration]:
    """Return the configurations whose values stand in columns, an array for each knob."""
    names = [knob.name for knob in knobs]
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return [Configuration(tuple(zip(names, row, strict=True))) for row in rows]
