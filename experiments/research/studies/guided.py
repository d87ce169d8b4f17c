"""Measure how soon a guided search finds the best of a table, with a model trained without the problem.

    python -m tilescout.experiments.research guided gemm_sm90 --out guided.json

For each problem of the table, a cost model is trained on those of other shapes. A search guided by it is then replayed
from the table; its first trial is the default. With a model, nothing in a guided search is random, so one seed is
enough.

Trains and searches on all cores. The models are kept in the store; `tilescout evaluate-model` shares them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from tilescout.costmodel.blend import BlendOptions
from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.ranking import RankingOptions
from tilescout.experiments.commands.model_options import steps_option, trees_option
from tilescout.experiments.commands.options import (
    collected,
    processes_option,
    space_argument,
    store_option,
)
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.experiments.compare.processes import each
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.records import StudyResult
from tilescout.search.tables.shipped import named_table, template_of
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.templates import load_template

TRIALS = 60


@dataclass(frozen=True)
class Convergence:
    """How a search went.

    Attributes
    ----------
    problem
        What was searched.
    within
        Measurements until one was within 1 % of the best recorded; None if none of all was.
    stopped
        Measurements after which it stopped by itself; None if it did not.
    regret
        What it had found when it stopped, over the best recorded, less 1.
    gpu_seconds, exhaustive_gpu_seconds
        Recorded seconds of GPU time of the search until it stopped, and of the whole table.
    within_gpu_seconds
        The same until one was within 1 %, which no search can know; None if none was.
    """

    problem: str
    within: int | None
    stopped: int | None
    regret: float
    gpu_seconds: float
    exhaustive_gpu_seconds: float
    within_gpu_seconds: float | None = None


def converge(models: HeldOutModels, name: str, trials: int) -> Convergence:
    """The guided search of the problem of this name by a model that was trained without those of its shape."""
    model = models.without(models.of_shape(name))
    return convergence(Table.read(models.tables[0]), name, "guided", 0, {"model": model}, trials)


def convergence(
    table: Table, name: str, sampler: str, seed: int, settings: Mapping[str, object], trials: int
) -> Convergence:
    """A search of the problem of this name on a table, the default first.

    Parameters
    ----------
    table, name
        The table, and one of its problems.
    sampler, seed, settings
        The strategy, its seed, and what else it takes.
    trials
        Most measurements.
    """
    template = template_of(table)
    problem = table.problem(name)

    def search(budget: Budget) -> StudyResult:
        with TemporaryDirectory() as folder, Evaluator(ReplayEngine(table, template), problem) as evaluator:
            return run_study(evaluator, TuneOptions(sampler, seed, budget, Path(folder), settings=settings))

    stopping, going_on = search(Budget(trials)), search(Budget(trials, whole=True))
    rows = table.rows(problem)
    best = float(table.times_us[rows].min())
    regret = np.minimum.accumulate([trial.measurement.time_us for trial in going_on.trials]) / best - 1
    within = np.flatnonzero(regret <= 0.01)
    spent = np.cumsum([trial.measurement.gpu_seconds for trial in going_on.trials])
    assert stopping.best is not None
    return Convergence(
        problem=str(problem),
        within=int(within[0]) + 1 if len(within) else None,
        stopped=len(stopping.trials) if stopping.stopped else None,
        regret=stopping.best.measurement.time_us / best - 1,
        gpu_seconds=stopping.gpu_seconds,
        exhaustive_gpu_seconds=float(np.asarray(table.data["gpu_seconds"])[rows].sum()),
        within_gpu_seconds=float(spent[within[0]]) if len(within) else None,
    )


def print_found(found: Sequence[Convergence], trials: int) -> None:
    """Print a line a problem, and how many measurements it took in the median and at the 90th percentile."""
    print(f"{'problem':>24} {'within 1 %':>10} {'stopped':>8} {'regret':>7} {'GPU s':>7} {'all, s':>7}")
    for one in found:
        print(
            f"{one.problem:>24} {one.within or '-':>10} {one.stopped or '-':>8} {one.regret:7.2%} "
            f"{one.gpu_seconds:7.3f} {one.exhaustive_gpu_seconds:7.2f}"
        )
    counts = [one.within or trials for one in found]
    print(f"within 1 %: median {np.median(counts):g}, 90th percentile {np.quantile(counts, 0.9):g} measurements")


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    space: str
    table: Path | None
    trials: int
    trees: int
    steps: int
    processes: int | None
    store: Path


@study(TABLES, out_required=True)
@space_argument
@click.option(
    "--table", type=click.Path(path_type=Path), help="The table to search. [default: the largest shipped one]"
)
@click.option("--trials", default=TRIALS, show_default=True, help="Most measurements of a search.")
@trees_option
@steps_option
@processes_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Search every problem of the table, and print how soon each was good."""
    template = load_template(asked.space)
    recorded = named_table(template, asked.table)
    options = BlendOptions(ForestOptions(trees=asked.trees), RankingOptions(steps=asked.steps))
    models = HeldOutModels.of([recorded], asked.store, options)
    names = [str(problem) for problem in recorded.problems]
    searches = [(models, name, asked.trials) for name in names]
    found: list[Convergence] = []
    for one in each(converge, searches, asked.processes or available_cores(), "train and search"):
        found = sorted([*found, one], key=lambda one: names.index(one.problem))
        run.keep([asdict(one) for one in found])
    print_found(found, asked.trials)
