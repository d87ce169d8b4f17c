r"""Measure what each knob of a space is worth on the problems of a table.

    python -m tilescout.experiments.research knob-worth search/tables/recorded/gemm_sm90-h200-bf16.parquet \
        --out worth.json

For every value of every knob, the loss is how much slower the best configuration with that value is than the best of
all. A knob is worth having on a problem if fixing it, at the one value that does best over all problems, costs more
than 1 % there.
"""

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.table import Table

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


@study(TABLES)
@click.argument("table", type=click.Path(path_type=Path))
def main(run: Run, table: Path) -> None:
    """Print what leaving each knob at one value costs, and write it."""
    recorded = Table.read(table)
    grid = Grid(title="problems on which the best single value of a knob costs more than 1 %", title_justify="left")
    for heading in ("knob", "best single value", "problems", "largest loss", "where"):
        grid.add_column(heading)
    record: dict[str, object] = {}
    for name, values in recorded.card.knobs.items():
        lost = losses(recorded, name)
        # Of values that some problem can't have, a large loss stands for the infinite one.
        single = int(np.log1p(np.minimum(lost, 1e3)).mean(axis=0).argmin())
        costs = {str(problem): float(loss) for problem, loss in zip(recorded.problems, lost[:, single], strict=True)}
        earning = [problem for problem, loss in costs.items() if loss > ENOUGH]
        worst = max(costs, key=lambda problem: costs[problem])
        grid.add_row(name, str(values[single]), str(len(earning)), f"{costs[worst]:.1%}", worst)
        record[name] = {
            "single": values[single],
            "loss": {problem: loss if np.isfinite(loss) else None for problem, loss in costs.items()},
        }
    Console(width=160).print(grid)
    run.keep(record)
