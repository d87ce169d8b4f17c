"""The gain of searching a second space beside the gain that is estimated, by tables of both spaces.

    python -m tilescout.experiments.research complement-gain whole.parquet sharing.parquet --out gain.json

A search of ``gemm_sm90`` might search its complement too where a tile that only the latter has is estimated to be
faster, by a margin. Read are a table of ``gemm_sm90`` and one of its complement with the same problems. Of each problem
are told: the estimated gain of tiles, and the speed of the complement's fastest row over that of the other table.
"""

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.runner import Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.template import SKINNY
from tilescout.spaces.gemm_streamk_sm90.layout import STEP
from tilescout.spaces.gemm_streamk_sm90.rules import DIRECTIONS
from tilescout.spaces.gemm_streamk_sm90.template import estimated_cycles
from tilescout.spaces.templates import find_template

MARGIN = 0.025
"""The estimated gain of tiles, relative, that counts as one."""


def gain_of_tiles(problem: GemmProblem, device: Device) -> float:
    """By which share of the time a tile that ``gemm_sm90`` lacks is estimated to be faster than all that it has.

    The tiles are not shared, each is computed by itself, and all of them by blocks without clusters. Below 0 the
    fastest is one that ``gemm_sm90`` has.
    """
    columns = find_template("gemm_streamk_sm90").space(problem, device).columns
    single = (columns["cluster_m"] * columns["cluster_n"] == 1) & (columns["schedule"] == "cooperative")
    plain = (columns["swizzle"] == 1) & np.isin(columns["raster"], DIRECTIONS)
    shallow = columns["tile_k"] == 128 // problem.element.bytes  # as much as the widest swizzle has
    kept = single & plain & shallow & (columns["split"] == 1) & (columns["stream_k"] == 0)
    columns = {name: column[kept] for name, column in columns.items()}
    estimates = estimated_cycles(columns, problem, device)
    lacking = (columns["tile_n"] % (2 * STEP) > 0) | ((columns["swap_ab"] == 1) & (problem.m > SKINNY))
    fastest, other = (float(estimates[those].min(initial=np.inf)) for those in (lacking, ~lacking))
    return 1 - fastest / other


def gains(whole: Table, sharing: Table) -> dict[str, dict[str, Any]]:
    """Estimated and measured gain of each problem, and whether a gain is expected.

    Raises
    ------
    TilescoutError
        If the tables have no problem in common.
    """
    best = {one.problem: one.best_timing for one in whole.summarise()}
    found = {}
    for one in sharing.summarise():
        problem, device, other = one.problem, find_device(sharing.card.device), best.get(one.problem)
        if one.best_timing is None or other is None or not isinstance(problem, GemmProblem):
            continue
        estimated = gain_of_tiles(problem, device)
        found[str(problem)] = {
            "estimated": estimated,
            "measured": other.ratio / one.best_timing.ratio - 1,
            "expected": estimated > MARGIN,
        }
    if not found:
        raise TilescoutError("the tables have no problem in common: give two that were collected on one suite")
    return dict(sorted(found.items(), key=lambda item: -item[1]["estimated"]))


@study("a table of gemm_sm90 and one of its complement")
@click.argument("whole", type=click.Path(path_type=Path))
@click.argument("sharing", type=click.Path(path_type=Path))
def main(run: Run, whole: Path, sharing: Path) -> None:
    """Print estimated and measured gains of the second space."""
    found = gains(Table.read(whole), Table.read(sharing))
    grid = Grid(title="by how much the second space is faster")
    for heading in ("problem", "estimated, of tiles", "measured", "expected"):
        grid.add_column(heading)
    for problem, one in found.items():
        grid.add_row(problem, f"{one['estimated']:.1%}", f"{one['measured']:.1%}", "yes" if one["expected"] else "no")
    Console(width=120).print(grid)
    counts = {}
    for name, wanted in (("expected", True), ("not expected", False)):
        some = [one["measured"] for one in found.values() if one["expected"] is wanted]
        counts[name] = {"problems": len(some), "more than 1 %": sum(gain > 0.01 for gain in some)}
    for name, count in counts.items():
        print(f"{name}: {count['problems']} problems, {count['more than 1 %']} gain more than 1 %")
    run.keep({"problems": found, "counts": counts})
