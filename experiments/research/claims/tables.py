"""Tables of documents, whose cells are the figures of one recomputation: a claim for each column, by the names of rows.

The ledger holds the form of a row, such as ``| {row} | {within} | {regret:%} % |``, and the digits stand in the
document alone. Cells may be bold, a dash is infinite: it was never reached, and ``{}`` is held to nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilescout.experiments.research.claims.documents import Document
from tilescout.experiments.research.claims.ledger import NEVER, NUMBER, Claim, Figure, Statement
from tilescout.spaces.errors import check_keys

_MARK = re.compile(r"\{(\w*)(?::([^{}]+))?\}")
_ROW = "row"


@dataclass(frozen=True)
class Table:
    """A table of a document.

    Attributes
    ----------
    claim
        What its figures have in common; the expressions of its columns name a row as ``{row}``.
    document
        The document.
    behind
        A passage of the document behind which the table stands: the words that qualify it.
    rows
        The rows as the document names them, and as the expressions do: with x for × where nothing else is said.
    form
        The form of a row.
    values
        The recomputed values by column, in the order of the rows.
    """

    claim: Claim
    document: str
    behind: str
    rows: Mapping[str, str]
    form: str
    values: Mapping[str, tuple[float, ...]]

    def claims(self, document: Document) -> Iterator[Claim]:
        """A claim for each column; the first has the rows that the document states."""
        units = {mark[1]: mark[2] or "" for mark in _MARK.finditer(self.form)}
        statements = tuple(self._statements(document))
        for column, expression in self.claim.figures.items():
            yield Claim(
                **{
                    **vars(self.claim),
                    "name": f"{self.claim.name}.{column}",
                    "unit": units[column],
                    "figures": {row: expression.replace("{row}", key) for row, key in self.rows.items()},
                    "values": dict(zip(self.rows, self.values.get(column, ()), strict=False)),
                    "statements": statements,
                }
            )
            statements = ()

    def missing(self, document: Document) -> Iterator[str]:
        """Say which rows a document does not state, a line each."""
        found = sum(1 for _ in self._statements(document))
        if found < len(self.rows):
            yield f"{self.document} has {found} of the {len(self.rows)} rows of {self.claim.name}: {self.form}"

    def _statements(self, document: Document) -> Iterator[Statement]:
        behind = document.text[next(document.places(self.behind), len(document.text)) :]
        for row in self.rows:
            found = self._pattern(row).search(behind)
            if found is not None:
                at = found.start()
                figures = tuple(
                    Figure(f"{self.claim.name}.{column}", row, digits, found.start(column) - at, found.end(column) - at)
                    for column, digits in found.groupdict().items()
                    if column != _ROW
                )
                yield Statement((self.document,), found[0], figures, (found.start(_ROW) - at, found.end(_ROW) - at))

    def _pattern(self, row: str) -> re.Pattern[str]:
        """A row of the form, in which each column's number is a group."""
        pattern, last = "", 0
        for mark in _MARK.finditer(self.form):
            pattern += _literal(self.form[last : mark.start()])
            number = rf"\*{{0,2}}(?P<{mark[1]}>{NUMBER.pattern}|{NEVER})\*{{0,2}}"
            pattern += f"(?P<{_ROW}>{re.escape(row)})" if mark[1] == _ROW else number if mark[1] else "[^|]*?"
            last = mark.end()
        return re.compile(pattern + _literal(self.form[last:]))


def _literal(text: str) -> str:
    """The words of a form as a pattern, in which cells may be bold."""
    return re.escape(text).replace(r"\ \|", r"\*{0,2}\ \|").replace(r"\|\ ", r"\|\ \*{0,2}")


TABLE_KEYS = ("in", "behind", "rows", "form")


def table_of(claim: Claim, entry: Mapping[str, Any], values: Mapping[str, Any]) -> Table:
    """Read what the ledger says of a table."""
    check_keys(entry, TABLE_KEYS)
    rows = entry["rows"]
    return Table(
        claim=claim,
        document=entry["in"],
        behind=" ".join(entry["behind"].split()),
        rows={row: row.replace("×", "x") for row in rows} if isinstance(rows, list) else dict(rows),
        form=" ".join(entry["form"].split()).replace(" {} ", "{}"),
        values={column: tuple(map(float, found)) for column, found in values.items()},
    )
