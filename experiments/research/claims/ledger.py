"""The ledger of figures: what the documents state, and by what each figure is recomputed.

A claim is what one recomputation tells. Its values have names; a statement is a passage of a document, in which every
figure stands in braces behind the name of its value: ``best {mean:1.106} [{low:1.058}, {high:1.163}]``. A value of
another claim is named as ``claim.value``.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tilescout.spaces.errors import MALFORMED, TilescoutError, check_keys, one_line

RESULTS = "experiments/results"
"""Where the pages of what was measured lie in a checkout."""

LEDGER = f"{RESULTS}/claims.toml"
"""Where the ledger lies."""

UNITS = {"": 1.0, "%": 100.0, "ms": 1e3, "µs": 1e6, "MB": 1e-6}
"""The unit in which documents state a figure, to what its recomputed value is multiplied by."""

LARGEST_BYTES = 2_000_000
"""A ledger that is larger is refused."""

_MARKER = re.compile(r"\{([\w./-]+):([^{}]+)\}")
_NUMBER = re.compile(r"[-\u2212]?\d+(?:,\d{3})*(?:\.\d+)?")


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
        return float(self.digits.replace(",", "").replace("\u2212", "-"))

    @property
    def rounding(self) -> float:
        """How far the number may be from the value: half of its last digit; a thousand in digits is rounded to it."""
        digits, _, decimals = self.digits.partition(".")
        thousands = len(digits) - len(re.sub(r"(?:,000)+$", "", digits)) if not decimals else 0
        return 0.5 * 10.0 ** (thousands // 4 * 3 - len(decimals))

    def agrees(self, value: float, tolerance: float) -> bool:
        """Whether a value, rounded as the figure is, gives the figure."""
        return abs(self.value - value) <= self.rounding * (1 + 1e-9) + tolerance


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
    """

    documents: tuple[str, ...]
    text: str
    figures: tuple[Figure, ...]

    @classmethod
    def parse(cls, claim: str, documents: tuple[str, ...], marked: str) -> Self:
        """Read a passage whose figures are marked; those without the name of a claim belong to `claim`."""
        marked = " ".join(marked.split())
        text, figures, last = "", [], 0
        for marker in _MARKER.finditer(marked):
            text += marked[last : marker.start()]
            owner, _, key = marker[1].rpartition(".")
            if not _NUMBER.fullmatch(marker[2]):
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
    """

    whole: tuple[str, ...]
    openings: tuple[str, ...]
    data: Mapping[str, Data]
    claims: Mapping[str, Claim]
    facts: tuple[Fact, ...]
    unpublished: tuple[Fact, ...]

    def statements(self) -> Iterator[tuple[Claim, Statement]]:
        """Every statement, with the claim under which it stands."""
        for claim in self.claims.values():
            for statement in claim.statements:
                yield claim, statement

    def stated(self, claim: str, key: str) -> list[Figure]:
        """The figures that state a value."""
        return [
            figure
            for _, statement in self.statements()
            for figure in statement.figures
            if (figure.claim, figure.key) == (claim, key)
        ]


def read_ledger(path: Path, complete: bool = True) -> Ledger:
    """Read a ledger.

    Parameters
    ----------
    path
        The ledger.
    complete
        Whether every claim must have its values; else they may be missing, to be recomputed.

    Raises
    ------
    LedgerError
        If it can't be read, is malformed, or one of its statements names a value that no claim has.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise LedgerError(f"{path} is larger than {LARGEST_BYTES:,} bytes, the most that a ledger may have")
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        ledger = _ledger_of(found)
    except (OSError, *MALFORMED) as error:
        raise LedgerError(f"can't read {path} as a ledger of figures: {one_line(error)}") from error
    for claim in ledger.claims.values() if complete else ():
        if list(claim.figures) != list(claim.values):
            raise LedgerError(f"{path}: the values of {claim.name} are not those of its figures; recompute them")
    for claim, statement in ledger.statements():
        for figure in statement.figures:
            owner = ledger.claims.get(figure.claim)
            if owner is None or figure.key not in owner.figures:
                raise LedgerError(f"{path}: {claim.name} states {figure.claim}.{figure.key}, which no claim has")
        missing = [word for word in claim.says if word.casefold() not in statement.text.casefold()]
        if missing:
            raise LedgerError(f"{path}: {claim.name} must be stated with the words {missing[0]!r}: {statement.text}")
    return ledger


def _ledger_of(found: Mapping[str, Any]) -> Ledger:
    check_keys(found, ("documents", "data", "claims", "facts", "unpublished"))
    check_keys(found["documents"], ("whole", "openings"))
    data = {name: Data(**entry) for name, entry in found["data"].items()}
    for one in data.values():
        if Path(one.path).is_absolute() or ".." in Path(one.path).parts:
            raise ValueError(f"data lie in the checkout: {one.path}")
    claims = {}
    for name, entry in found["claims"].items():
        try:
            claims[name] = _claim_of(name, entry, data)
        except MALFORMED as error:
            raise ValueError(f"claim {name}: {one_line(error)}") from error
    facts, unpublished = (
        tuple(
            Fact(" ".join(entry["text"].split()), entry["why"], tuple(entry.get("in", ())))
            for entry in found.get(kind, [])
        )
        for kind in ("facts", "unpublished")
    )
    for fact in (*facts, *unpublished):
        if not re.search(r"[^\W\d_]", fact.text) or not fact.why:
            raise ValueError(f"a fact says what its number is, and why: {fact.text}")
    for fact in unpublished:
        if not fact.documents or not all(name.startswith(f"{RESULTS}/") for name in fact.documents):
            raise ValueError(f"what has no data may stand on pages of {RESULTS} alone: {fact.text}")
    documents = found["documents"]
    return Ledger(tuple(documents["whole"]), tuple(documents["openings"]), data, claims, facts, unpublished)


_CLAIM_KEYS = (
    *("about", "recompute", "with", "data", "figures", "machine", "gpu"),
    *("unit", "tolerance", "values", "says", "stated"),
)


def _claim_of(name: str, entry: Mapping[str, Any], data: Mapping[str, Data]) -> Claim:
    check_keys(entry, _CLAIM_KEYS)
    unknown = [key for key in entry.get("data", ()) if key not in data]
    if unknown:
        raise ValueError(f"there is no data {unknown[0]!r}")
    claim = Claim(
        name=name,
        about=entry["about"],
        recompute=entry["recompute"],
        parameters=entry.get("with", {}),
        data=tuple(entry.get("data", ())),
        figures=entry["figures"],
        machine=entry["machine"],
        gpu=entry.get("gpu", False),
        unit=entry.get("unit", ""),
        tolerance=float(entry.get("tolerance", 0.0)),
        values={key: float(value) for key, value in entry.get("values", {}).items()},
        says=tuple(entry.get("says", ())),
        statements=tuple(
            Statement.parse(name, tuple(stated["in"]), stated["text"]) for stated in entry.get("stated", [])
        ),
    )
    if claim.unit not in UNITS:
        raise ValueError(f"unit {claim.unit!r} is none of {', '.join(UNITS)}")
    if claim.gpu and not claim.data:
        raise ValueError("what a GPU measured names the data that hold it")
    return claim
