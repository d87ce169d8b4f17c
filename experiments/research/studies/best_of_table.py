"""The best row of every problem of a table, and its default, as the results' pages show them.

    python -m tilescout.experiments.research best-of-table search/tables/recorded/gemm_sm90-h200-bf16.parquet

Speeds are over the library's, by the race, in which the default and the fastest rows of a problem were measured
together. The interval of a speed is the race's. That of a geometric mean is of other such problems: a bootstrap over
the problems. The figures are in-sample: the best of a problem was chosen among the rows of that very problem.

Where the table's card has the library's best of a problem, its speed and that of the best row over it are told too.
Each of these two is known by a race of its own with the library's function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.compare.inference import geometric_mean_interval
from tilescout.experiments.research.runner import Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Configuration

MEANS = ("speed", "default", "library_best", "over_library_best")
"""The fields of `Best` whose geometric mean over problems is told."""


@dataclass(frozen=True)
class Best:
    """The fastest row of a problem by its race.

    Attributes
    ----------
    problem, rows
        The problem, and how many rows the table has of it.
    library_us
        What the library takes, in microseconds.
    speed, low, high
        Of the fastest row over the library, with its 95 % interval.
    default
        Of the default that was recorded, over the library, by the same race.
    configuration
        The fastest row's.
    library_best
        Speed of the library's best candidate over the library's function; None if the card has none.
    over_library_best
        Speed of the fastest row over that candidate; None likewise.
    """

    problem: str
    rows: int
    library_us: float
    speed: float
    low: float
    high: float
    default: float
    configuration: Configuration
    library_best: float | None
    over_library_best: float | None


def best_rows(table: Table) -> list[Best]:
    """The fastest row of every problem, in the table's order.

    Raises
    ------
    TableError
        If the table is of a format before 5, which had no columns of a race, or a problem's default did not race.
    """
    if "raced_ratio" not in table.data.column_names:
        raise TableError(
            "the table has no races of its own (columns raced_*), as tables before format 5; record it anew"
        )
    ratio, low, high = (np.asarray(table.data[f"raced_{name}"].fill_null(np.inf)) for name in ("ratio", "low", "high"))
    found = []
    for problem in table.problems:
        rows = table.rows(problem)
        baseline = table.card.baselines[problem]
        default = table.row(baseline.default, problem)
        if default is None or not np.isfinite(ratio[default]):
            raise TableError(f"the default of {problem} did not race in this table")
        best = int(rows[np.argmin(ratio[rows])])
        theirs = None if baseline.library_best is None else baseline.library_best.ratio.value
        found.append(
            Best(
                problem=str(problem),
                rows=len(rows),
                library_us=baseline.library_us,
                speed=float(1 / ratio[best]),
                low=float(1 / high[best]),
                high=float(1 / low[best]),
                default=float(1 / ratio[default]),
                configuration=table.configuration(best),
                library_best=None if theirs is None else 1 / theirs,
                over_library_best=None if theirs is None else float(theirs / ratio[best]),
            )
        )
    return found


def _short(configuration: Configuration) -> str:
    knob = dict(configuration)
    swapped = ", swapped" if knob["swap_ab"] else ""
    tile = f"{knob['tile_m']}×{knob['tile_n']}×{knob['tile_k']}"
    cluster = f"{knob['cluster_m']}×{knob['cluster_n']}×{knob['split_k']}"
    order = f"{knob['stages']}, {knob['swizzle']} {knob['raster']}"
    return f"{knob['schedule']}, {knob['warp_groups']}{swapped}, {tile}, {cluster}, {order}"


def markdown(found: Sequence[Best], library: str, means: Mapping[str, Sequence[float]]) -> str:
    """The rows as a table in Markdown, the geometric means last."""
    types = found[0].problem.partition(":")[2]
    headings = (f"{types} (m×n×k)", f"{library}, µs", "best", "default", "the library's best", "rows")
    lines = [f"| {' | '.join(headings)} | the best configuration |", "| --- | ---: | --- | ---: | ---: | ---: | --- |"]
    for one in found:
        size = one.problem.partition(":")[0].replace("x", "×")
        interval = f"**{one.speed:.3f}** [{one.low:.3f}, {one.high:.3f}]"
        cells = (
            size,
            f"{one.library_us:.2f}",
            interval,
            f"{one.default:.3f}",
            "–" if one.library_best is None else f"{one.library_best:.3f}",
            f"{one.rows:,}",
            _short(one.configuration),
        )
        lines.append(f"| {' | '.join(cells)} |")
    told = {name: f"{mean:.3f} [{low:.3f}, {high:.3f}]" for name, (mean, low, high) in means.items()}
    value, _, interval = told["speed"].partition(" ")
    lines.append(
        f"| geometric mean of {len(found)} [95 % over such problems] | | **{value}** {interval} | {told['default']} | "
        f"{told.get('library_best', '–')} | | smallest {min(one.speed for one in found):.3f} |"
    )
    over = [one.over_library_best for one in found if one.over_library_best is not None]
    if over:
        name = f"the best over the library's best, of {len(over)}"
        lines.append(f"| {name} | | {told['over_library_best']} | | | | smallest {min(over):.3f} |")
    return "\n".join(lines)


def summary(found: Sequence[Best], seed: int) -> dict[str, Any]:
    """The figures of the problems, and the geometric means with their 95 % intervals over such problems."""
    columns = {name: [getattr(one, name) for one in found] for name in MEANS}
    known = {name: [each for each in column if each is not None] for name, column in columns.items()}
    return {
        "problems": {one.problem: {**asdict(one), "configuration": dict(one.configuration)} for one in found},
        "means": {name: list(geometric_mean_interval(column, seed)) for name, column in known.items() if column},
    }


@study("a table whose fastest rows raced")
@click.argument("path", metavar="TABLE", type=click.Path(path_type=Path))
@seed_option
def main(run: Run, path: Path, seed: int) -> None:
    """Print the best of every problem of a table, and the geometric means."""
    table = Table.read(path)
    found = best_rows(table)
    figures = summary(found, seed)
    click.echo(markdown(found, table.card.library, figures["means"]))
    run.keep(figures)
