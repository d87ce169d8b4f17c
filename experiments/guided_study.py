"""How soon a guided search finds the best of a recorded table, its model trained without the problem.

    python -m tilescout.experiments.guided_study gemm_sm90 --out guided.json

For each problem of the table: a model is trained on the others, and a search that it guides is replayed, the default
configuration first. Its seed settles nothing: with a model nothing in a guided search is random.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import track

from tilescout.costmodel.estimator import CostModel
from tilescout.search.evaluate.replay import ReplayEvaluator
from tilescout.search.evaluate.table import Table
from tilescout.search.loop import Budget
from tilescout.search.records import StudyResult
from tilescout.search.sources import largest_table
from tilescout.search.training import train_model
from tilescout.search.tuning import TuneOptions, run_study
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template

TRIALS = 60


@dataclass(frozen=True)
class Convergence:
    """How a search went.

    Attributes
    ----------
    problem
        What was searched.
    within
        Measurements until one was within 1 % of the best recorded; None if none of `TRIALS` was.
    stopped
        Measurements after which it stopped by itself; None if it did not.
    regret
        What it had found when it stopped, over the best recorded, less 1.
    gpu_seconds, exhaustive_gpu_seconds
        Recorded seconds of GPU time of the search until it stopped, and of the whole table.
    """

    problem: str
    within: int | None
    stopped: int | None
    regret: float
    gpu_seconds: float
    exhaustive_gpu_seconds: float


def study(table: Table, template: KernelTemplate, problem: Problem) -> Convergence:
    """The guided search of a problem by a model that was trained without it."""
    model = train_model(table, template, without=[problem])
    stopping = _search(table, template, problem, model, whole=False)
    going_on = _search(table, template, problem, model, whole=True)
    rows = table.rows(problem)
    best = float(table.times_us[rows].min())
    regret = np.minimum.accumulate([trial.measurement.time_us for trial in going_on.trials]) / best - 1
    within = np.flatnonzero(regret <= 0.01)
    assert stopping.best is not None
    return Convergence(
        problem=str(problem),
        within=int(within[0]) + 1 if len(within) else None,
        stopped=len(stopping.trials) if stopping.stopped else None,
        regret=stopping.best.measurement.time_us / best - 1,
        gpu_seconds=stopping.gpu_seconds,
        exhaustive_gpu_seconds=float(np.asarray(table.data["gpu_seconds"])[rows].sum()),
    )


def _search(table: Table, template: KernelTemplate, problem: Problem, model: CostModel, whole: bool) -> StudyResult:
    with TemporaryDirectory() as folder, ReplayEvaluator(table, template, problem) as evaluator:
        budget = Budget(trials=TRIALS, whole=whole)
        options = TuneOptions("guided", 0, budget, Path(folder), settings={"model": model})
        return run_study(template, evaluator, options)


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space")
    parser.add_argument("--table", type=Path, help="the largest shipped one by default")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    template = find_template(arguments.space)
    table = Table.read(arguments.table) if arguments.table else largest_table(template)
    found = []
    for problem in track(table.problems, "train and search"):
        found.append(study(table, template, problem))
        arguments.out.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    print(f"{'problem':>24} {'within 1 %':>10} {'stopped':>8} {'regret':>7} {'GPU s':>7} {'all, s':>7}")
    for one in found:
        print(
            f"{one.problem:>24} {one.within or '-':>10} {one.stopped or '-':>8} {one.regret:7.2%} "
            f"{one.gpu_seconds:7.3f} {one.exhaustive_gpu_seconds:7.2f}"
        )
    counts = [one.within or TRIALS for one in found]
    print(f"within 1 %: median {np.median(counts):g}, 90th percentile {np.quantile(counts, 0.9):g} measurements")


if __name__ == "__main__":
    main()
