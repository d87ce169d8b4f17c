"""The values of a claim, recomputed from the data that it names."""

import inspect
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilescout.experiments.research.claims.expressions import evaluate
from tilescout.experiments.research.claims.ledger import UNITS, Claim, Ledger, LedgerError
from tilescout.experiments.research.claims.sources import SOURCES
from tilescout.spaces.errors import one_line
from tilescout.spaces.inputs import read_regular

LARGEST_BYTES = 200_000_000
"""Data that are larger are refused."""


def digest(path: Path) -> str:
    """The SHA-256 of a file.

    Raises
    ------
    LedgerError
        If it can't be read.
    """
    try:
        return sha256(read_regular(path, LARGEST_BYTES)).hexdigest()
    except OSError as error:
        raise LedgerError(f"can't read the data {path}: {error.strerror}") from error


def changed_data(root: Path, ledger: Ledger) -> dict[str, str]:
    """The names of the data whose files are not those of the ledger, and their SHA-256 today."""
    today = {name: digest(root / data.path) for name, data in ledger.data.items()}
    return {name: found for name, found in today.items() if found != ledger.data[name].sha256}


class Recomputing:
    """Recomputes claims of a ledger from the files of a checkout; what several claims are taken from is made once.

    Parameters
    ----------
    root
        The checkout.
    ledger
        The ledger.
    """

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.root = root
        self.ledger = ledger
        self._made: list[tuple[tuple[object, ...], Any]] = []

    def values(self, claim: Claim) -> dict[str, float]:
        """The values of a claim, in its unit.

        Raises
        ------
        LedgerError
            If the claim names a recomputation or a parameter that is not there, or an expression finds nothing.
        """
        contents = self._contents(claim)
        values = {}
        for key, expression in claim.figures.items():
            try:
                values[key] = UNITS[claim.unit] * evaluate(expression, contents)
            except (LookupError, TypeError, ValueError) as error:
                raise LedgerError(f"{claim.name}.{key} = {expression!r}: {one_line(error)}") from error
        return values

    def _contents(self, claim: Claim) -> Any:
        """The nested mappings that the figures of a claim are taken from."""
        asked = (claim.recompute, claim.data, claim.parameters)
        for known, contents in self._made:
            if known == asked:
                return contents
        source = SOURCES.get(claim.recompute)
        if source is None:
            there = ", ".join(SOURCES)
            raise LedgerError(f"{claim.name}: there is no recomputation {claim.recompute!r}; there are {there}")
        files = {name: self.root / self.ledger.data[name].path for name in claim.data}
        try:
            inspect.signature(source).bind(files, **claim.parameters)
        except TypeError as error:
            raise LedgerError(f"{claim.name}: {claim.recompute}: {error}") from error
        self._made.append((asked, source(files, **claim.parameters)))
        return self._made[-1][1]
