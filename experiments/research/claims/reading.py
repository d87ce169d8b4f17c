"""Reading the ledger of figures of a checkout."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from tilescout.experiments.research.claims.documents import read_document
from tilescout.experiments.research.claims.ledger import (
    LEDGER,
    RESULTS,
    UNITS,
    Claim,
    Data,
    Fact,
    Ledger,
    LedgerError,
    Statement,
)
from tilescout.experiments.research.claims.tables import table_of
from tilescout.spaces.errors import MALFORMED, check_keys, one_line
from tilescout.spaces.inputs import read_regular

LARGEST_BYTES = 2_000_000
"""A ledger that is larger is refused."""


def read_ledger(root: Path, complete: bool = True) -> Ledger:
    """Read the ledger of a checkout, and the tables that it names in the documents.

    Parameters
    ----------
    root
        The checkout.
    complete
        Whether every claim must have its values; else they may be missing, to be recomputed.

    Raises
    ------
    LedgerError
        If it can't be read, is malformed, or one of its statements names a value that no claim has.
    """
    path = root / LEDGER
    try:
        found = tomllib.loads(read_regular(path, LARGEST_BYTES).decode())
        ledger = _ledger_of(found, root)
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


def _ledger_of(found: Mapping[str, Any], root: Path) -> Ledger:
    check_keys(found, ("documents", "data", "claims", "facts", "unpublished"))
    check_keys(found["documents"], ("whole", "openings"))
    data = {name: Data(**entry) for name, entry in found["data"].items()}
    for one in data.values():
        if Path(one.path).is_absolute() or ".." in Path(one.path).parts:
            raise ValueError(f"data lie in the checkout: {one.path}")
    claims: dict[str, Claim] = {}
    lost: list[str] = []
    document_of = cache(partial(read_document, root))
    for name, entry in found["claims"].items():
        try:
            if "table" not in entry:
                claims[name] = _claim_of(name, entry, data)
                continue
            table = table_of(_claim_of(name, {**entry, "values": {}}, data), entry["table"], entry.get("values", {}))
            document = document_of(table.document)
            claims |= {claim.name: claim for claim in table.claims(document)}
            lost += table.missing(document)
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
    whole, openings = tuple(documents["whole"]), tuple(documents["openings"])
    return Ledger(whole, openings, data, claims, facts, unpublished, tuple(lost))


_CLAIM_KEYS = (
    *("about", "recompute", "with", "data", "figures", "machine", "gpu"),
    *("unit", "tolerance", "values", "says", "stated", "table"),
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
