"""Measure what ranking TorchInductor's NVGEMM candidates costs, by recorded times of all of them.

    python -m tilescout.experiments.research nvgemm-ranking experiments/results/peers-2026-11-21/peers.json

TorchInductor times the first of its list of candidates, and our ranker keeps the best few of all by prediction. For
each problem of the file, which `peer-kernels` wrote, this prints how much slower the fastest of either choice is than
the fastest of all 24 operators for Hopper.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.peer_kernels import listed
from tilescout.search.export.nvgemm_model import OPERATORS, learned_ranker
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

DEVICE = "h200"
TIMED = 10  # nvgemm_max_profiling_configs of torch 2.14 and 2.15
KEPT = (1, 2, 4)


def predicted(problem: GemmProblem) -> NDArray[np.float64]:
    """The log times that our model predicts for the operators, in CUTLASS's order: [operators]."""
    template = find_template(OPERATORS)
    space = template.space(problem, find_device(DEVICE))
    depth = 128 // problem.element.bytes
    candidates = [{**space[index], "tile_k": depth} for index in listed(template, space)]
    return learned_ranker(DEVICE).predict(problem, candidates)  # type: ignore[arg-type]


def losses(times: Sequence[float], predictions: NDArray[np.float64], timed: int, kept: Sequence[int]) -> list[float]:
    """Losses of the fastest of the first ``timed``, and of the best ``kept`` by prediction, against the fastest of all.

    A loss is the time over the fastest time, less 1.

    Parameters
    ----------
    times, predictions
        Of the same operators, in CUTLASS's order, each in a unit of its own.
    """
    measured = np.asarray(times)
    ranked = measured[np.argsort(predictions, kind="stable")]
    fastest = [measured[:timed].min(), *(ranked[:count].min() for count in kept)]
    return [float(time / measured.min() - 1) for time in fastest]


def ranking_losses(times: Path) -> dict[str, tuple[float, list[float]]]:
    """The fastest time, in ms, and the `losses` of each problem of a file of `peer-kernels`."""
    recorded = Record.read(times).result["chosen by, in ms"][OPERATORS]
    return {
        problem: (min(measured), losses(measured, predicted(GemmProblem.parse(problem)), TIMED, KEPT))
        for problem, measured in recorded.items()
    }


@study("the file that peer-kernels wrote")
@click.argument("times", type=click.Path(path_type=Path))
def main(run: Run, times: Path) -> None:
    """Print what the candidates that are timed lose on each problem of TIMES, a file of `peer-kernels`."""
    grid = Grid(title="slower than the fastest operator", title_justify="left")
    for heading in ("problem", "µs", f"TorchInductor's {TIMED}", *(f"our {count}" for count in KEPT)):
        grid.add_column(heading, justify="right")
    found = ranking_losses(times)
    for problem, (fastest, lost) in found.items():
        grid.add_row(problem, f"{fastest * 1e3:.1f}", *(f"{loss:.1%}" for loss in lost))
    Console(width=160).print(grid)
    run.keep({problem: lost for problem, (_, lost) in found.items()})
