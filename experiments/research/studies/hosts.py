r"""How far a time over the library's on one host is from that on another host of the same GPU.

    python -m tilescout.experiments.research hosts ONE.parquet OTHER.parquet TABLE.parquet races.json \
        --judged heats.json.gz --out hosts.json

The first of a pair is a table. The other one is a table of the same problems, or what `race-table` raced of that table,
of another host. Of each problem the difference is the mean, over the configurations that are fastest in both, of the
logarithm of the time over the library's in the one over that in the other. The study finds a half-width that holds the
difference of a new problem in 95 %, by split conformal prediction (V. Vovk, A. Gammerman, G. Shafer: Algorithmic
Learning in a Random World, 2005). Nothing is assumed of the distribution: of n problems it is the ceil(0.95 (n + 1))-th
smallest absolute difference. Problems of a shape on which the intervals are judged are left out.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import collected
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.shapes import shape_groups

FASTEST = 8
"""Configurations of a problem; those of one search are within some percent of each other, as the finalists of one."""

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The difference between two hosts on a problem.

    Attributes
    ----------
    problem
        The problem.
    difference
        Mean logarithm of the time over the library's on the one host over that on the other.
    library
        The same of the library's own time.
    configurations
        How many the mean is of.
    """

    problem: str
    difference: float
    library: float
    configurations: int


@dataclass(frozen=True)
class Side:
    """The times of a problem's configurations on one host.

    Attributes
    ----------
    ratios
        Times over the library's; not finite where one was not timed.
    library
        The library's times, in µs.
    """

    ratios: Mapping[Configuration, float]
    library: Mapping[Configuration, float]

    @classmethod
    def of_table(cls, table: Table, name: str) -> Self:
        """The rows of a problem: what its race told, and of those that did not race what their own pairs told."""
        rows = table.rows(table.problem(name))
        alone, raced, library = (
            np.asarray(table.data[column].to_numpy()[rows], dtype=np.float64)
            for column in (
                "ratio",
                "raced_ratio" if "raced_ratio" in table.data.column_names else "ratio",
                "library_us",
            )
        )
        names = [table.configuration(int(row)) for row in rows]
        ratios = np.where(np.isfinite(raced), raced, alone)
        return cls(dict(zip(names, ratios.tolist(), strict=True)), dict(zip(names, library.tolist(), strict=True)))

    @classmethod
    def of_race(cls, outcome: Mapping[str, Any]) -> Self:
        """The configurations that `race-table` raced."""
        found = {Configuration.of(one["configuration"]): one["time_over_library"]["value"] for one in outcome["raced"]}
        return cls(found, dict.fromkeys(found, float(outcome["library_us"])))


def differences(path: Path, other: Path, judged: Collection[str]) -> list[Difference]:
    """The difference of every problem that both hold and that has no shape of the judged ones.

    Raises
    ------
    TableError
        If they have no configuration of a problem in common.
    """
    one = Table.read(path)
    if other.suffix == ".parquet":
        table = Table.read(other)
        sides = {str(problem): Side.of_table(table, str(problem)) for problem in table.problems}
    else:
        sides = {name: Side.of_race(found) for name, found in Record.read(other).result["problems"].items()}
    parse = template_of(one).parse
    labels = shape_groups([*map(parse, judged), *one.problems])
    unfit = set(labels[: len(judged)])
    return [
        difference(problem, Side.of_table(one, problem), sides[problem])
        for problem, label in zip(map(str, one.problems), labels[len(judged) :], strict=True)
        if problem in sides and label not in unfit
    ]


def difference(problem: str, one: Side, other: Side, fastest: int = FASTEST) -> Difference:
    """The difference of a problem, of the configurations that are fastest by both.

    Raises
    ------
    TableError
        If no configuration was timed by both.
    """
    timed = [each for each, ratio in one.ratios.items() if np.isfinite([ratio, other.ratios.get(each, np.nan)]).all()]
    if not timed:
        raise TableError(f"no configuration of {problem} was timed on both hosts")
    logs = np.log([[one.ratios[each], other.ratios[each]] for each in timed])  # [configurations, hosts]
    best = np.argsort(logs.sum(axis=1), kind="stable")[:fastest]
    library = [math.log(one.library[timed[at]] / other.library[timed[at]]) for at in best]
    return Difference(problem, float((logs[best, 0] - logs[best, 1]).mean()), float(np.mean(library)), len(best))


def half_width(found: Sequence[Difference], level: float = LEVEL) -> float | None:
    """The half-width that holds a new problem's difference with this probability; None if the problems are too few."""
    at = math.ceil(level * (len(found) + 1))
    ordered = sorted(abs(one.difference) for one in found)
    return ordered[at - 1] if at <= len(ordered) else None


def print_figures(console: Console, found: Sequence[Difference]) -> dict[str, object]:
    """Print the differences and return the half-width."""
    grid = Grid(title="time over the library's, one host over the other", title_justify="left")
    for heading in ("problem", "kernels over the library", "library alone", "configurations"):
        grid.add_column(heading)
    for one in sorted(found, key=lambda one: -abs(one.difference)):
        grid.add_row(
            one.problem,
            f"{math.expm1(one.difference):+.2%}",
            f"{math.expm1(one.library):+.2%}",
            f"{one.configurations}",
        )
    console.print(grid)
    half = half_width(found)
    apart = np.array([one.difference for one in found])
    summary: dict[str, object] = {
        "problems": len(found),
        "half_width": half,
        "root_mean_square": float(np.sqrt(np.mean(apart**2))),
        "median": float(np.median(abs(apart))),
    }
    console.print(summary, highlight=False)
    return summary


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    files: tuple[Path, ...]
    judged: Path | None


@study(TABLES, again=True)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1)
@click.option("--judged", type=click.Path(path_type=Path), help="Heats of problems that intervals are judged on.")
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Compare pairs of FILES (a table and what another host told of it), and print the half-width."""
    if run.record is not None:
        print_figures(Console(), [Difference(**one) for one in run.record.result["differences"]])
        return
    if not asked.files or len(asked.files) % 2:
        raise click.UsageError("name a table and what another host told of it, or a file with --again")
    judged = list(Record.read(asked.judged).result["problems"]) if asked.judged is not None else []
    pairs = zip(asked.files[::2], asked.files[1::2], strict=True)
    found = [each for one, other in pairs for each in differences(one, other, judged)]
    run.keep({"differences": [asdict(one) for one in found], **print_figures(Console(), found)})
