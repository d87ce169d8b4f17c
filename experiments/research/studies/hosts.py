r"""How far a time over the library's on one host is from that on another host of the same GPU.

    python -m tilescout.experiments.research hosts TABLE.parquet races.json --judged heats.json.gz --out hosts.json

A table says what its fastest rows told in races on the host that recorded it. `race-table` raced the same rows on
another host. Of each problem the study takes the logarithms of the times over the library's on the one host over those
on the other, less what the intervals of the two races explain: the root of the difference of the squares. The mean over
the problem's configurations is its score.

It finds a half-width that is enough for a new problem in 95 %, by split conformal prediction (V. Vovk, A. Gammerman, G.
Shafer: Algorithmic Learning in a Random World, 2005). Nothing is assumed of the distribution: of n problems it is the
ceil(0.95 (n + 1))-th smallest score. Problems of a shape on which the intervals are judged are left out.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.measure.race import Estimate
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.shapes import shape_groups

LEVEL = 0.95
Raced = Mapping[Configuration, Estimate]
"""Times over the library's of what raced."""


@dataclass(frozen=True)
class Difference:
    """The difference between two hosts on a problem.

    Attributes
    ----------
    problem
        The problem.
    library
        Mean logarithm of the times over the library's on the one host over those on the other.
    score
        Mean of what the races' intervals do not explain of these, without sign.
    default
        The same as `library`, of the fastest configuration's time over the default's; None if that is the fastest.
    configurations
        How many raced on both hosts.
    """

    problem: str
    library: float
    score: float
    default: float | None
    configurations: int


def difference(problem: str, one: Raced, other: Raced, default: Configuration) -> Difference:
    """The difference of a problem, of what raced on both hosts.

    Raises
    ------
    TableError
        If nothing did.
    """
    both = [configuration for configuration in one if configuration in other]
    if not both:
        raise TableError(f"no configuration of {problem} raced on both hosts")
    apart = {each: math.log(one[each].value / other[each].value) for each in both}
    explained = {each: math.hypot(_half(one[each]), _half(other[each])) for each in both}
    scores = [math.sqrt(max(0.0, apart[each] ** 2 - explained[each] ** 2)) for each in both]
    best = min(both, key=lambda each: one[each].value * other[each].value)
    to_default = apart[best] - apart[default] if default in apart and best != default else None
    return Difference(problem, float(np.mean([*apart.values()])), float(np.mean(scores)), to_default, len(both))


def _half(estimate: Estimate) -> float:
    return math.log(estimate.high / estimate.low) / 2


def differences(table: Table, elsewhere: Mapping[str, Any], judged: Collection[str]) -> list[Difference]:
    """The difference of every problem of a table that raced elsewhere and has no shape of the judged ones.

    Parameters
    ----------
    table
        A table whose fastest rows raced.
    elsewhere
        What `race-table` raced, by problem.
    judged
        The problems that intervals are judged on.

    Raises
    ------
    TableError
        If no configuration of a problem raced on both.
    """
    parse = template_of(table).parse
    labels = shape_groups([*map(parse, judged), *table.problems])
    unfit = set(labels[: len(judged)])
    return [
        difference(problem, raced_in(table, problem), raced(elsewhere[problem]), default_of(elsewhere[problem]))
        for problem, label in zip(map(str, table.problems), labels[len(judged) :], strict=True)
        if problem in elsewhere and label not in unfit
    ]


def raced_in(table: Table, problem: str) -> Raced:
    """The rows of a problem that raced when the table was recorded."""
    rows = table.rows(table.problem(problem))
    columns = np.stack(
        [np.asarray(table.data[f"raced_{end}"].to_numpy(), dtype=np.float64)[rows] for end in ("ratio", "low", "high")]
    )
    at = np.flatnonzero(np.isfinite(columns).all(axis=0))
    return {table.configuration(int(rows[each])): Estimate(*columns[:, each].tolist()) for each in at}


def raced(outcome: Mapping[str, Any]) -> Raced:
    """The configurations of a problem that `race-table` raced."""
    return {Configuration.of(one["configuration"]): Estimate(**one["time_over_library"]) for one in outcome["raced"]}


def default_of(outcome: Mapping[str, Any]) -> Configuration:
    """The default that `race-table` raced."""
    return Configuration.of(outcome["default"])


def half_width(found: Sequence[Difference]) -> float | None:
    """The half-width that is enough for a new problem with the probability `LEVEL`; None if problems are too few."""
    at = math.ceil(LEVEL * (len(found) + 1))
    ordered = sorted(one.score for one in found)
    return ordered[at - 1] if at <= len(ordered) else None


def print_figures(console: Console, found: Sequence[Difference]) -> dict[str, object]:
    """Print the differences and return the half-width."""
    grid = Grid(title="time on the one host over that on the other", title_justify="left")
    for heading in ("problem", "over the library's", "not explained", "over the default's", "configurations"):
        grid.add_column(heading)
    for one in sorted(found, key=lambda one: -one.score):
        default = "" if one.default is None else f"{math.expm1(one.default):+.2%}"
        grid.add_row(
            one.problem, f"{math.expm1(one.library):+.2%}", f"{one.score:.2%}", default, f"{one.configurations}"
        )
    console.print(grid)
    to_default = np.array([abs(one.default) for one in found if one.default is not None])
    summary: dict[str, object] = {
        "problems": len(found),
        "half_width": half_width(found),
        "library_median": float(np.median([abs(one.library) for one in found])),
        "library_largest": float(np.max([abs(one.library) for one in found])),
        "default_median": float(np.median(to_default)),
        "default_largest": float(to_default.max()),
        "default_above_4_percent": int((to_default > 0.04).sum()),
    }
    console.print(summary, highlight=False)
    return summary


@study(TABLES, again=True)
@click.argument("table", type=click.Path(path_type=Path), required=False)
@click.argument("races", type=click.Path(path_type=Path), required=False)
@click.option("--judged", type=click.Path(path_type=Path), help="Heats of problems that intervals are judged on.")
def main(run: Run, table: Path | None, races: Path | None, judged: Path | None) -> None:
    """Compare the races of a table with those that another host ran of its rows, and print the half-width."""
    if run.record is not None:
        print_figures(Console(width=160), [Difference(**one) for one in run.record.result["differences"]])
        return
    if table is None or races is None:
        raise click.UsageError("name a table and what another host raced of it, or a file with --again")
    names = list(Record.read(judged).result["problems"]) if judged is not None else []
    found = differences(Table.read(table), Record.read(races).result["problems"], names)
    run.keep({"differences": [asdict(one) for one in found], **print_figures(Console(width=160), found)})
