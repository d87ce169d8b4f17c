"""Verdicts on claims by recomputing them, and a ledger whose values are those of today."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tilescout.experiments.research.claims.ledger import LEDGER, Claim, Ledger, LedgerError
from tilescout.experiments.research.claims.reading import read_ledger

DIGITS = 6
"""Significant digits of the values in the ledger."""


@dataclass(frozen=True)
class Verdict:
    """A value as the documents state it, and as it comes out of its recomputation.

    Attributes
    ----------
    claim, key
        Whose value it is.
    stated
        The different digits with which documents state it; empty if no document does.
    held, recomputed
        The value of the ledger, and that of the recomputation.
    holds
        Whether it is the value of the ledger, and what documents state is it, rounded.
    """

    claim: str
    key: str
    stated: tuple[str, ...]
    held: float
    recomputed: float
    holds: bool


def judge(ledger: Ledger, claim: Claim, recomputed: Mapping[str, float]) -> list[Verdict]:
    """The verdicts on the values of a claim; without a value in the ledger, what is stated decides."""
    verdicts = []
    for key in claim.figures:
        held = claim.values.get(key, recomputed[key])
        figures = ledger.stated.get((claim.name, key), ())
        now = recomputed[key]
        same = now == held or abs(now - held) <= claim.tolerance + 0.5 * 10.0 ** (1 - DIGITS) * abs(held)
        holds = same and all(figure.agrees(now, claim.tolerance) for figure in figures)
        verdicts.append(Verdict(claim.name, key, tuple(dict.fromkeys(f.digits for f in figures)), held, now, holds))
    return verdicts


def written(value: float) -> str:
    """A value as the ledger holds it."""
    rounded = float(f"{value:.{DIGITS}g}")
    return str(int(rounded)) if math.isfinite(rounded) and rounded == int(rounded) else repr(rounded)


def update(root: Path, values: Mapping[str, Mapping[str, float]], digests: Mapping[str, str]) -> None:
    """Write recomputed values and hashes of data into the ledger of a checkout; nothing else of it changes.

    Parameters
    ----------
    root
        The checkout. In its ledger the figures and the values of a claim stand on a line each.
    values
        By claim and name.
    digests
        The SHA-256 of the data that changed, by their names.

    Raises
    ------
    LedgerError
        If the ledger is not written in that form; it is left as it was then.
    """
    path = root / LEDGER
    before = path.read_text(encoding="utf-8")
    text = before
    lines: dict[str, list[str]] = {}
    for name, found in values.items():
        table, _, column = name.partition(".")
        line = f"{column} = [{', '.join(map(written, found.values()))}]" if column else _pairs(found)
        lines.setdefault(table, []).append(line)
    for name, parts in lines.items():
        text = _replaced(text, f"claims.{name}", "values", f"{{ {', '.join(parts)} }}", behind="figures")
    for name, digest in digests.items():
        text = _replaced(text, f"data.{name}", "sha256", f'"{digest}"', behind="path")
    path.write_text(text, encoding="utf-8")
    ledger = read_ledger(root)
    if any(ledger.claims[name].values.keys() != found.keys() for name, found in values.items()):
        path.write_text(before, encoding="utf-8")
        raise LedgerError(f"{path}: the values of a claim do not stand on a line of their own")


def _pairs(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {written(value)}" for name, value in values.items())


def _replaced(text: str, table: str, key: str, value: str, behind: str) -> str:
    """A TOML text in which the line `key` of a table is another; a new one comes behind the line `behind`."""
    section = re.search(rf"^\[{re.escape(table)}\]\n(?:(?!\[).*\n)*", text, re.MULTILINE)
    lines = section[0].splitlines(keepends=True) if section else []
    places = {line.partition(" = ")[0]: number for number, line in reversed(list(enumerate(lines)))}
    if section is None or behind not in places:
        raise LedgerError(f"there is no line `{behind} = …` below [{table}]")
    if key in places:
        lines[places[key]] = f"{key} = {value}\n"
    else:
        lines.insert(places[behind] + 1, f"{key} = {value}\n")
    return text[: section.start()] + "".join(lines) + text[section.end() :]


def contradicted(verdicts: Iterable[Verdict], ledger: Ledger) -> list[str]:
    """The passages that recomputed values contradict, a line each."""
    wrong = {(one.claim, one.key): one.recomputed for one in verdicts if not one.holds}
    lines = []
    for claim, statement in ledger.statements():
        for figure in statement.figures:
            now = wrong.get((figure.claim, figure.key))
            if now is not None and not figure.agrees(now, ledger.claims[figure.claim].tolerance):
                places = ", ".join(statement.documents)
                lines.append(f"{places} ({claim.name}): {figure.digits} is now {written(now)}: {statement.text}")
    return lines
