"""The cost of something behind grouped products in their kernels, by two recorded tables.

    python -m tilescout.experiments.research grouped-beside scaled.parquet products.parquet --out beside.json

The first table is of products with something behind them in the kernel, the second of the products alone; both hold
times over those of torch's product. For each problem of the first that the second has without it: the speed of the
fastest of each, and the time of configurations that both have, one table's over the other's, in the median.
"""

from pathlib import Path
from statistics import median
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration


def ratios(table: Table, problem: GroupedProblem) -> dict[Configuration, float]:
    """The times over the library's of what was timed on a problem."""
    found = {}
    for row in map(int, table.rows(problem)):
        if (timing := table.measurement(row).timing) is not None:
            found[table.configuration(row)] = timing.ratio
    return found


def beside(more: Table, plain: Table) -> dict[str, Any]:
    """The speeds of each problem of the first table and of its product in the second.

    Raises
    ------
    TableError
        If the second table has no product of the first.
    """
    found = {}
    for problem in more.problems:
        product = GroupedProblem.like(cast(GroupedProblem, problem))
        if product in plain.problems:
            one, other = ratios(more, cast(GroupedProblem, problem)), ratios(plain, product)
            found[str(problem)] = {
                "speed": 1 / min(one.values()),
                "product": 1 / min(other.values()),
                "time_over_product": min(one.values()) / min(other.values()),
                "same_configurations": median(one[each] / other[each] for each in one if each in other),
            }
    if not found:
        raise TableError(f"table {plain.path} has no product of table {more.path}")
    failed = sum(more.measurement(row).failed for row in range(len(more)))
    return {"rows": len(more), "failed": failed, "problems": found}


@study(TABLES)
@click.argument("more", type=click.Path(path_type=Path))
@click.argument("plain", type=click.Path(path_type=Path))
def main(run: Run, more: Path, plain: Path) -> None:
    """Compare table MORE with table PLAIN."""
    result = beside(Table.read(more), Table.read(plain))
    grid = Grid(title="speeds over torch's product, and times over the product's")
    for heading in ("problem", "fastest", "product's", "time over it", "same configurations"):
        grid.add_column(heading, justify="left" if heading == "problem" else "right")
    for name, one in result["problems"].items():
        grid.add_row(name, *(f"{one[key]:.3f}" for key in ("speed", "product")), *(
            f"{one[key]:.3f}" for key in ("time_over_product", "same_configurations")
        ))  # fmt: skip
    Console(width=140).print(grid)
    run.keep(result)
