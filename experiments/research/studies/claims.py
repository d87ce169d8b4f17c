"""Recompute the figures that the documents state, from the data of this checkout.

    python -m tilescout.experiments.research claims
    python -m tilescout.experiments.research claims --only unseen-speed

The ledger `experiments/results/claims.toml` holds every figure of README, the documentation, the changelog and the
results: the passages that state it, what recomputes it, from which data, its value, its tolerance, and the machine that
measured it. Nothing is measured here: what needed a GPU is recomputed from what was recorded on it.

It ends with exit code 1 if a document states a figure that the ledger lacks, or that the data contradict.
"""

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import collected
from tilescout.experiments.research.claims.check import contradictions
from tilescout.experiments.research.claims.ledger import LEDGER, Claim, Ledger, LedgerError
from tilescout.experiments.research.claims.reading import read_ledger
from tilescout.experiments.research.claims.recomputations import Recomputing, changed_data
from tilescout.experiments.research.claims.verdicts import Verdict, contradicted, judge, update, written
from tilescout.experiments.research.runner import Run, study

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    only: tuple[str, ...]
    update: bool
    root: Path


@study("nothing but this checkout")
@click.option("--only", multiple=True, metavar="NAME", help="Recompute this claim; repeatable.")
@click.option(
    "--update", is_flag=True, help="Write the recomputed values into the ledger, and list the passages they contradict."
)
@click.option(
    "--root", type=click.Path(path_type=Path), default=ROOT, show_default="this one", help="The checkout to look at."
)
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Print what every claim states, what comes out today, and whether it holds."""
    ledger, console = read_ledger(asked.root, complete=not asked.update), Console(soft_wrap=True)
    claims, recomputing = chosen(ledger, asked.only), Recomputing(asked.root, ledger)
    verdicts: list[Verdict] = []
    values: dict[str, dict[str, float]] = {}
    for claim in claims:
        values[claim.name] = recomputing.values(claim)
        verdicts += judge(ledger, replace(claim, values={}) if asked.update else claim, values[claim.name])
        run.keep([asdict(verdict) for verdict in verdicts])
    print_verdicts(console, verdicts)
    changed = changed_data(asked.root, ledger)
    wrong = contradicted(verdicts, ledger)
    if asked.update:
        update(asked.root, values, changed)
    else:
        wrong += [f"{ledger.data[name].path} is not the file that the ledger names" for name in changed]
        wrong += [f"{one.claim}.{one.key} is now {written(one.recomputed)}" for one in verdicts if not one.holds]
    if not asked.only:
        wrong += contradictions(asked.root, read_ledger(asked.root))
    for line in dict.fromkeys(wrong):
        console.print(line, style="red", markup=False, highlight=False)
    console.print(f"{len(verdicts)} figures of {len(claims)} claims recomputed, {len(wrong)} contradictions")
    if wrong:
        sys.exit(1)


def chosen(ledger: Ledger, only: tuple[str, ...]) -> list[Claim]:
    """The claims that are asked for, all if none is; those of all columns by the name of a table.

    Raises
    ------
    LedgerError
        If there is none of a name.
    """
    found: dict[str, Claim] = {}
    for name in only:
        named = {claim: one for claim, one in ledger.claims.items() if name in (claim, claim.partition(".")[0])}
        if not named:
            raise LedgerError(f"there is no claim {name!r}; {LEDGER} has {', '.join(ledger.claims)}")
        found |= named
    return list(found.values()) if only else list(ledger.claims.values())


def print_verdicts(console: Console, verdicts: list[Verdict]) -> None:
    """Print a row a value."""
    grid = Grid()
    for heading in ("claim", "stated", "recomputed", "verdict"):
        grid.add_column(heading, overflow="fold")
    for one in verdicts:
        stated = ", ".join(one.stated) or "nowhere"
        grid.add_row(
            f"{one.claim}.{one.key}", stated, written(one.recomputed), "holds" if one.holds else "CONTRADICTED"
        )
    console.print(grid)
