"""Tell what fixed repeats cost, by replays of a graph of several launches and by single launches.

    cd experiments/results/measurement-2026-11-22-paired-8
    python -m tilescout.experiments.research fixed-launches study-*.json

The study `measurement` measures random configurations as a search does, and times each of them by 20 replays of a CUDA
graph besides. A kernel that is too short to be timed alone fills the graph several times, so that 20 replays are up to
660 launches. Here both are worked out from what it recorded: the GPU seconds of 20 replays, measured, and those of
verifying each configuration and launching it 20 times, from the times of the kernels. Neither has the host's cost of a
launch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.kernels import BLOCK_US
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.measurement import FIXED_LAUNCHES
from tilescout.search.measure.protocol import ProtocolOptions, block_launches


@dataclass(frozen=True)
class Repeats:
    """The cost of timing the random configurations of a problem by fixed repeats, over that of a search.

    Attributes
    ----------
    configurations
        How many there were.
    launches
        Launches in a replay.
    by_replays, by_launches
        GPU seconds of 20 replays of each, and of verifying each and launching it 20 times, over the GPU seconds in
        which a search measured them.
    """

    configurations: int
    launches: int
    by_replays: float
    by_launches: float


def repeats_of(problem: Mapping[str, Any]) -> Repeats:
    """The costs on a problem, from its record of the study `measurement`.

    A configuration that was not timed counts with the time that its pilot told; one without either ran nowhere.
    """
    pruning, library_us = problem["pruning"], problem["library_us"]
    ratios = [trial["ratio"] or trial["pilot"] or np.nan for trial in pruning["trials"]]
    once = float(np.nansum(ratios)) * library_us * 1e-6
    searched = pruning["gpu_seconds"]["as searched"]
    return Repeats(
        configurations=pruning["configurations"],
        launches=block_launches(library_us, BLOCK_US, ProtocolOptions()),
        by_replays=pruning["gpu_seconds"]["fixed"] / searched,
        by_launches=(pruning["as_searched"]["verify"] + FIXED_LAUNCHES * once) / searched,
    )


@study("records of the study `measurement`")
@click.argument("records", type=click.Path(path_type=Path), nargs=-1, required=True)
def main(run: Run, records: tuple[Path, ...]) -> None:
    """Print what fixed repeats cost on every problem."""
    grid = Grid(
        title=f"GPU time of {FIXED_LAUNCHES} repeats of each configuration over a search's", title_justify="left"
    )
    for heading in ("problem", "configurations", "launches a replay", "replays", "single launches"):
        grid.add_column(heading, justify="right")
    found: dict[str, Repeats] = {}
    for path in records:
        found |= {name: repeats_of(one) for name, one in Record.read(path).result["problems"].items()}
    for name, one in found.items():
        grid.add_row(
            name, str(one.configurations), str(one.launches), f"{one.by_replays:.1f}", f"{one.by_launches:.1f}"
        )
    Console(width=160).print(grid)
    run.keep({"problems": {name: asdict(one) for name, one in found.items()}})
