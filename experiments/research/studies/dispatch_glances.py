"""Compare glances at one m after the other, as dispatchers are built by, with those of a device that settled for each.

    python -m tilescout.experiments.research dispatch-glances --built dispatcher.json --out glances.json

At random m all kernels of a dispatcher are glanced at together: without a pause, twice, and then at single m each after
a pause, so that the library runs for as long as it takes a device to settle before anything counts. Printed are, by how
many rows there are, how much longer the library and the kernels beside it take without a pause, in the median, these
the second time, too, how far two such glances at the same kernel are apart, and how long one takes.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.search.dispatch.bundling import kernels_of
from tilescout.search.dispatch.dispatcher import read_dispatcher
from tilescout.search.dispatch.measuring import SWEEPING, Sweep
from tilescout.search.dispatch.points import Point
from tilescout.search.engines.local import LocalEngine
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.templates import find_template

SPACE = "gemm_sm90"
ENDS = (512, 2048, 5000, 9000, 16_384)
"""Rows up to which figures are given together."""

_PAUSE = 0.05  # s: so much longer a device has to settle for that nothing is left of what ran before


def compared(sweep: Sweep, sizes: Sequence[int], single: int) -> dict[str, Any]:
    """Glances at some m without a pause, twice, and at the first `single` of them after a pause each."""
    everything = list(range(len(sweep.kernels)))
    together, seconds = [], []
    for _ in range(2):
        started = time.perf_counter()
        together.append([point.to_dict() for point in sweep.glances(dict.fromkeys(sizes, everything))])
        seconds.append(time.perf_counter() - started)
    alone = []
    for m in sizes[:single]:
        time.sleep(_PAUSE)
        started = time.perf_counter()
        point = sweep.glance(m, everything)
        assert point is not None, "it serves every m"
        alone.append({**point.to_dict(), "seconds": time.perf_counter() - started})
    return {"together": together, "alone": alone, "seconds": seconds}


def figures(found: Mapping[str, Any]) -> list[dict[str, float]]:
    """For each part of the rows: what is longer without a pause, and what two glances are apart, as shares."""
    once, twice, alone = (
        {point["m"]: Point.from_dict(point) for point in points} for points in (*found["together"], found["alone"])
    )
    rows: list[dict[str, float]] = []
    for low, high in zip((0, *ENDS[:-1]), ENDS, strict=True):
        inside = [m for m in once if low < m <= high]
        both = [(once[m], alone[m]) for m in inside if m in alone]
        rows.append(
            {
                "up_to": high,
                "sizes": len(both),
                "library": _middle([np.log(each.library_us / settled.library_us) for each, settled in both]),
                "kernels": _middle([log for each, settled in both for log in _apart(each, settled)]),
                "again": _middle([log for _, settled in both for log in _apart(twice[settled.m], settled)]),
                "twice": _middle([abs(log) for m in inside for log in _apart(once[m], twice[m])]),
            }
        )
    return rows


def _apart(point: Point, other: Point) -> list[float]:
    shared = point.ratios.keys() & other.ratios.keys()
    return [float(np.log(point.ratios[at].value / other.ratios[at].value)) for at in shared]


def _middle(logs: Sequence[float]) -> float:
    return float(np.expm1(np.median(logs))) if logs else float("nan")


def print_figures(console: Console, found: Mapping[str, Any]) -> list[dict[str, float]]:
    """Print and return the figures."""
    told = figures(found)
    grid = Grid(title=f"{found['problem']}: without a pause over settled, medians")
    for heading in ("rows up to", "m", "the library", "kernels over it", "the second time", "two glances apart"):
        grid.add_column(heading, justify="right")
    for row in told:
        shares = (f"{row[name]:+.2%}" for name in ("library", "kernels", "again", "twice"))
        grid.add_row(f"{row['up_to']:,}", str(row["sizes"]), *shares)
    console.print(grid)
    many = len(found["together"][0])
    each = [1e3 * seconds / many for seconds in found["seconds"]]
    settled = 1e3 * float(np.mean([point["seconds"] for point in found["alone"]]))
    console.print(f"{each[0]:.0f} and {each[1]:.0f} ms a glance without a pause, {settled:.0f} ms settled")
    return told


@study(GPU_OR_RECORD, again=True)
@click.option("--built", type=click.Path(path_type=Path), help="The file of a dispatcher.")
@click.option("--sizes", type=click.IntRange(min=1), default=150, show_default=True, help="Random m to glance at.")
@click.option("--single", type=click.IntRange(min=1), default=60, show_default=True, help="Of these, with a pause.")
@device_option
@seed_option
@store_option
def main(run: Run, built: Path | None, sizes: int, single: int, device: str, seed: int, store: Path) -> None:
    """Glance, and print the figures; or print those of a record again."""
    console = Console(width=110)
    if run.record is not None:
        print_figures(console, run.record.result)
        return
    if built is None:
        raise click.UsageError("name the file of a dispatcher with --built, or a record with --again")
    dispatcher = read_dispatcher(built)
    drawn = np.random.default_rng(seed).choice(dispatcher.most_rows, sizes, replace=False) + 1
    template = find_template(SPACE)
    with (
        LocalEngine(template, artifacts(store), [device], options=SWEEPING) as engine,
        engine.beside(find_template(template.complement)) as beside,
    ):
        sweep = Sweep(engine, kernels_of(dispatcher), [beside]).wait()
        report: dict[str, Any] = {"problem": str(dispatcher.problem), "device": engine.product}
        report |= compared(sweep, drawn.tolist(), single)
    report["figures"] = print_figures(console, report)
    run.keep(report)
