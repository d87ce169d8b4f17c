"""The ledger of figures: what the documents state, and by what each figure is recomputed.

A claim is what one recomputation tells. Its values have names; a statement is a passage of a document, in which every
figure stands in braces behind the name of its value: ``best {mean:1.106} [{low:1.058}, {high:1.163}]``. A value of
another claim is named as ``claim.value``.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from tilescout.spaces.errors import TilescoutError

RESULTS = "experiments/results"
"""Where the pages of what was measured lie in a checkout."""

LEDGER = f"{RESULTS}/claims.toml"
"""Where the ledger lies."""

UNITS = {"": 1.0, "%": 100.0, "ms": 1e3, "µs": 1e6, "MB": 1e-6}
"""The unit in which documents state a figure, to what its recomputed value is multiplied by."""

_MARKER = re.compile(r"\{([\w./-]+):([^{}]+)\}")
NEVER = "\u2013"
"""A dash: what was never reached."""

NUMBER = re.compile(r"[-\u2212]?\d+(?:,\d{3})*(?:\.\d+)?")


class LedgerError(TilescoutError):
    """The ledger is malformed, or names a file, a recomputation or a value that is not there."""


@dataclass(frozen=True)
class Figure:
    """A figure in the text of a statement.

    Attributes
    ----------
    claim, key
        The claim that it belongs to, and the name of its value there.
    digits
        As the document has them.
    start, end
        Where they stand in the text of the statement.
    """

    claim: str
    key: str
    digits: str
    start: int
    end: int

    @property
    def value(self) -> float:
        """The number that is stated."""
        return math.inf if self.digits == NEVER else float(self.digits.replace(",", "").replace("\u2212", "-"))

    @property
    def rounding(self) -> float:
        """How far the number may be from the value: half of its last digit; a thousand in digits is rounded to it."""
        digits, _, decimals = self.digits.partition(".")
        thousands = len(digits) - len(re.sub(r"(?:,000)+$", "", digits)) if not decimals else 0
        return 0.5 * 10.0 ** (thousands // 4 * 3 - len(decimals))

    def agrees(self, value: float, tolerance: float) -> bool:
        """Whether a value, rounded as the figure is, gives the figure."""
        return self.value == value or abs(self.value - value) <= self.rounding * (1 + 1e-9) + tolerance


@dataclass(frozen=True)
class Statement:
    """A passage that documents state.

    Attributes
    ----------
    documents
        Their paths in the checkout.
    text
        The passage as it stands there, without the targets of links and with single spaces.
    figures
        Those of its numbers that claims cover.
    named
        Where in the text the name of a table's row stands, which may hold numbers.
    """

    documents: tuple[str, ...]
    text: str
    figures: tuple[Figure, ...]
    named: tuple[int, int] = (0, 0)

    @classmethod
    def parse(cls, claim: str, documents: tuple[str, ...], marked: str) -> Self:
        """Read a passage whose figures are marked; those without the name of a claim belong to `claim`."""
        marked = " ".join(marked.split())
        text, figures, last = "", [], 0
        for marker in _MARKER.finditer(marked):
            text += marked[last : marker.start()]
            owner, _, key = marker[1].rpartition(".")
            if not NUMBER.fullmatch(marker[2]):
                raise ValueError(f"{marker[0]} holds no number")
            figures.append(Figure(owner or claim, key, marker[2], len(text), len(text) + len(marker[2])))
            text, last = text + marker[2], marker.end()
        if not figures:
            raise ValueError(f"no figure is marked in: {marked}")
        return cls(documents, text + marked[last:], tuple(figures))


@dataclass(frozen=True)
class Data:
    """A file of the checkout from which figures are recomputed."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Claim:
    """The values that one recomputation tells, and the passages that state them.

    Attributes
    ----------
    name, about
        Its name, and what its values are.
    recompute, parameters
        The registered recomputation, and what it is given.
    data
        Names of the files that it reads.
    figures
        Where in what it tells the values are: an expression for each, by their names.
    machine
        What was measured on, and when; "any" where nothing was measured.
    gpu
        Whether measuring it again needs a GPU. The figures are then recomputed from what was recorded.
    unit, tolerance
        In which the values are stated, and how far a recomputed one may be from the one in the ledger, in this unit.
    values
        The recomputed values by their names, in the unit.
    says
        Words that every statement must have: the qualifiers without which the figures would mislead.
    statements
        The passages that state it.
    """

    name: str
    about: str
    recompute: str
    parameters: Mapping[str, Any]
    data: tuple[str, ...]
    figures: Mapping[str, str]
    machine: str
    gpu: bool
    unit: str
    tolerance: float
    values: Mapping[str, float]
    says: tuple[str, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Fact:
    """A number that nobody measured: of hardware, of a format, of a way to state things. Or one without data.

    Attributes
    ----------
    text
        The words that it stands in.
    why
        Where it comes from.
    documents
        Those in which it may stand; empty for all.
    """

    text: str
    why: str
    documents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """All claims, the facts, and which documents are held to them.

    Attributes
    ----------
    whole, openings
        Patterns of documents of which all, or what stands before the first heading of the second level, is held to it.
    data, claims
        By their names.
    facts, unpublished
        Numbers that nobody measured, and figures of pages of results whose data are not in the checkout.
    lost
        Tables that a document no longer has, a line each.
    """

    whole: tuple[str, ...]
    openings: tuple[str, ...]
    data: Mapping[str, Data]
    claims: Mapping[str, Claim]
    facts: tuple[Fact, ...]
    unpublished: tuple[Fact, ...]
    lost: tuple[str, ...] = ()

    def statements(self) -> Iterator[tuple[Claim, Statement]]:
        """Every statement, with the claim under which it stands."""
        for claim in self.claims.values():
            for statement in claim.statements:
                yield claim, statement

    @cached_property
    def stated(self) -> Mapping[tuple[str, str], Sequence[Figure]]:
        """The figures that state a value, by its claim and its name there."""
        found: dict[tuple[str, str], list[Figure]] = {}
        for _, statement in self.statements():
            for figure in statement.figures:
                found.setdefault((figure.claim, figure.key), []).append(figure)
        return found
