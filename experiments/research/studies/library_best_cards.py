"""Note the library's best of each problem in the cards of tables that were recorded without it.

    python -m tilescout.experiments.research library-best-cards library-best.json --table gemm_sm90-h200-bf16.parquet

What replays the tables, or compares strategies on them, states speeds over both of the library's then. The files are of
`library-best`: the best is the winner of the race of the heuristic's candidates, and its time is over that of the
library's function in the same rounds. The rows of a table stay as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.protocol import Objective
from tilescout.search.measure.race import Estimate
from tilescout.search.tables.card import FORMAT, TableCard
from tilescout.search.tables.table import Table, card_path
from tilescout.spaces.errors import MALFORMED, StoreError, TableError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.outputs import write_whole

LIBRARY, SPACE = "cuBLASLt", "cublaslt"


def best_of(found: Mapping[str, Any], knobs: Sequence[str]) -> LibraryBest:
    """The winner of the race of the library's candidates on a problem; `knobs` are the names of their values."""
    raced = [guess for guess in found["guesses"] if "speed" in guess]
    fastest = max(raced, key=lambda guess: float(guess["speed"]["value"]))
    configuration = Configuration(tuple(zip(knobs, fastest["configuration"], strict=True)))
    ratio = Estimate(**fastest["speed"]).inverse()
    return LibraryBest(LIBRARY, found["library"], SPACE, configuration, len(raced), ratio)


def noted(card: TableCard, results: Sequence[Mapping[str, Any]]) -> TableCard:
    """The card with the library's best of the problems that results of `library-best` have.

    Raises
    ------
    TableError
        If a result was measured otherwise than the table: by another protocol, on another device or library.
    """
    bests: dict[str, LibraryBest] = {}
    for result in results:
        made = {"protocol": card.protocol, "device": card.product, "torch": card.versions.get("torch")}
        measured = {name: result[name] for name in ("protocol", "device")} | {"torch": result["versions"].get("torch")}
        if measured != made or card.objective is not Objective.CHAIN:
            raise TableError(f"measured in chains by {measured}, the table in {card.objective}s by {made}")
        ran = {text: one for text, one in result["problems"].items() if "guesses" in one}
        bests |= {text: best_of(one, result["knobs"]) for text, one in ran.items()}
    baselines = {
        problem: replace(baseline, library_best=bests.get(str(problem), baseline.library_best))
        for problem, baseline in card.baselines.items()
    }
    return replace(card, format=FORMAT, baselines=baselines)


@study("recorded tables, and files of library-best")
@click.argument("found", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--table", "tables", multiple=True, required=True, type=click.Path(path_type=Path), help="Its card; repeatable."
)
def main(run: Run, found: tuple[Path, ...], tables: tuple[Path, ...]) -> None:
    """Note the library's best in the cards of tables."""
    results = [Record.read(path).result for path in found]
    told = {}
    for path in tables:
        try:
            card = noted(Table.read_card(path), results)
        except MALFORMED as error:
            raise StoreError(f"a file is not of library-best: {one_line(error)}") from error
        write_whole(card_path(path), card.to_json().encode())
        known = sum(baseline.library_best is not None for baseline in card.baselines.values())
        told[path.name] = {"problems": len(card.baselines), "known": known}
        click.echo(f"{path.name}: the library's best of {known} of {len(card.baselines)} problems")
    run.keep(told)
