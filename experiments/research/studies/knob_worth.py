r"""Measure what each knob of a space is worth on the problems of tables, and each of its values.

    python -m tilescout.experiments.research knob-worth search/tables/recorded/gemm_sm90-h200-bf16.parquet \
        --out worth.json

For every value of every knob, the loss is how much slower the best configuration with that value is than the best of
all. A knob is worth having on a problem if fixing it, at the one value that does best over all problems, costs more
than 1 % there. A value is worth having if leaving it out costs more than 1 %.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Value

ENOUGH = 0.01


def losses(table: Table, name: str) -> NDArray[np.float64]:
    """Time of the best configuration with each value of a knob over the best of all, less 1: [problems, values].

    Infinite where no configuration with the value was timed on the problem.
    """
    values = table.card.knobs[name]
    held = np.array(table.data[name].to_pylist())
    found = np.full((len(table.problems), len(values)), np.inf)
    for at, problem in enumerate(table.problems):
        rows = table.rows(problem)
        times = table.times_us[rows]
        for code, value in enumerate(values):
            found[at, code] = times.min(where=held[rows] == value, initial=np.inf) / times.min() - 1
    return found


def worth_of_values(
    values: Sequence[Value], lost: NDArray[np.float64], problems: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The worth of each value, by `losses`: on how many problems it was timed, and is the best's; what others cost.

    Returns
    -------
    dict
        For each value ``problems`` and ``best``, how many; ``needed``, on how many of them leaving it out costs more
        than 1 %; ``most``, what that costs at most (None where no other value was timed), and ``where``.
    """
    found = {}
    for code, value in enumerate(values):
        timed = np.isfinite(lost[:, code])
        others = np.delete(lost, code, axis=1).min(axis=1, initial=np.inf)[timed]
        without = (1 + others) / (1 + lost[timed, code]) - 1
        worst = int(without.argmax()) if len(without) else None
        found[str(value)] = {
            "problems": int(timed.sum()),
            "best": int((lost[timed, code] == 0).sum()),
            "needed": int((without > ENOUGH).sum()),
            "most": float(without[worst]) if worst is not None and np.isfinite(without[worst]) else None,
            "where": problems[int(np.flatnonzero(timed)[worst])] if worst is not None else None,
        }
    return found


@study(TABLES)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
def main(run: Run, tables: Sequence[Path]) -> None:
    """Print what leaving each knob at one value costs, and leaving each value out, and write it."""
    recorded = [Table.read(path) for path in tables]
    for one, other in combinations(recorded, 2):
        if one.card.knobs != other.card.knobs:
            raise TableError(f"{other.path}: its knobs are others than those of {one.path}")
    problems = [
        str(problem) if len(recorded) == 1 else f"{table.path.stem} {problem}"
        for table in recorded
        for problem in table.problems
    ]
    record: dict[str, dict[str, Any]] = {}
    for name, values in recorded[0].card.knobs.items():
        lost = np.concatenate([losses(table, name) for table in recorded])
        # Of values that some problem can't have, a large loss stands for the infinite one.
        single = int(np.log1p(np.minimum(lost, 1e3)).mean(axis=0).argmin())
        record[name] = {
            "single": values[single],
            "loss": {
                problem: float(loss) if np.isfinite(loss) else None
                for problem, loss in zip(problems, lost[:, single], strict=True)
            },
            "values": worth_of_values(values, lost, problems),
        }
    _print(record)
    run.keep(record)


def _print(record: Mapping[str, Mapping[str, Any]]) -> None:
    console = Console(width=160)
    grid = Grid(title="problems on which the best single value of a knob costs more than 1 %", title_justify="left")
    for heading in ("knob", "best single value", "problems", "largest loss", "where"):
        grid.add_column(heading)
    for name, told in record.items():
        costs = {problem: np.inf if loss is None else loss for problem, loss in told["loss"].items()}
        worst = max(costs, key=lambda problem: costs[problem])
        earning = sum(loss > ENOUGH for loss in costs.values())
        grid.add_row(name, str(told["single"]), str(earning), f"{costs[worst]:.1%}", worst)
    console.print(grid)
    grid = Grid(title="values that are worth more than 1 % on no problem", title_justify="left")
    for heading in ("knob", "value", "problems", "the best on", "most that others cost", "where"):
        grid.add_column(heading)
    for name, told in record.items():
        for value, worth in told["values"].items():
            if worth["problems"] and not worth["needed"]:
                counts = (str(worth["problems"]), str(worth["best"]))
                grid.add_row(name, value, *counts, f"{worth['most']:.1%}", worth["where"])
    console.print(grid)
