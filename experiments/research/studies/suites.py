"""Measure what a guided search gains from the trials of a suite's other problems.

    python -m tilescout.experiments.research suites gemm_sm90 --out suite.json
    python -m tilescout.experiments.research suites gemm_sm90 --cold --out suite-cold.json

The problems of a table are searched one after the other, in several random orders. Each is searched twice: alone, and
with the trials of the problems before it. The model was trained without the problem's family; with ``--cold`` there is
no trained model, and one is learned from the trials. The orders run on all cores.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import optuna
from numpy.typing import NDArray

from tilescout.costmodel.blend import BlendOptions
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.evaluation import median_interval
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
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.others import OtherTrials
from tilescout.search.tables.shipped import named_table, template_of
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.loop import run
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, load_template

TRIALS = 25
SHOWN = (1, 2, 5, 10, 20)
"""Trials after which the regret is printed."""


@dataclass(frozen=True)
class Gain:
    """Two searches of a problem.

    Attributes
    ----------
    problem
        The problem that was searched.
    before
        The number of problems whose trials the second search knew.
    alone, together
        The best found after each trial over the best recorded, less 1, without and with those trials.
    """

    problem: str
    before: int
    alone: list[float]
    together: list[float]


def gains_of(models: HeldOutModels, cold: bool, trials: int, seed: int) -> list[Gain]:
    """Search the problems of the table in the random order of this seed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = Table.read(models.tables[0])
    template = template_of(table)
    known: list[OtherTrials] = []
    gains = []
    for place in np.random.default_rng(seed).permutation(len(table.problems)):
        problem = table.problems[place]
        model = None if cold else models.without(family_beside(table, problem))
        alone, _ = search(table, template, problem, model, (), trials, seed)
        together, found = search(table, template, problem, model, tuple(known), trials, seed)
        gains.append(Gain(str(problem), len(known), alone.tolist(), together.tolist()))
        known += [found] if found is not None else []
    return gains


def search(
    table: Table,
    template: KernelTemplate,
    problem: Problem,
    model: CostModel | None,
    others: Sequence[OtherTrials],
    trials: int,
    seed: int,
) -> tuple[NDArray[np.float64], OtherTrials | None]:
    """The regret after each trial of a replayed search, of shape [trials], and what it found."""
    engine = ReplayEngine(table, template)
    with Evaluator(engine, problem) as evaluator:
        sampler = make_sampler("guided", evaluator.space, seed, model=model, others=lambda: others)
        study = optuna.create_study(sampler=sampler)
        tried: list[int] = []
        budget = Budget(min(trials, len(evaluator.space)), whole=True)
        run(study, evaluator, budget, evaluator.library_us(), lambda trial: tried.append(trial.index))
        times = table.times_us[engine.recording(problem).rows]
        slowest = times[np.isfinite(times)].max()  # what is known before anything was timed
        best = np.minimum.accumulate(np.minimum(times[tried], slowest))
        return best / times.min() - 1, OtherTrials.of_study(study, evaluator.space)


def family_beside(table: Table, problem: Problem) -> tuple[str, ...]:
    """The problems of the table that are of this one's family, itself among them."""
    return tuple(str(other) for other in table.problems if other.family == problem.family)


def print_gains(gains: Sequence[Gain], trials: int) -> None:
    """Print the regret of searches after some trials: medians and their 95 % intervals, and means."""
    print(f"{len(gains)} searches; regret alone -> with the trials of the problems before, median [95 %] and mean")
    for count in (count for count in SHOWN if count <= trials):
        cells = []
        for regrets in ([gain.alone for gain in gains], [gain.together for gain in gains]):
            after = [each[min(count, len(each)) - 1] for each in regrets]
            middle = median_interval(after)
            cells.append(f"{middle.value:.1%} [{middle.low:.1%}, {middle.high:.1%}], {np.mean(after):.1%}")
        print(f"after {count:3}: {cells[0]} -> {cells[1]}")


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    space: str
    table: Path | None
    cold: bool
    orders: int
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
@click.option("--cold", is_flag=True, help="Search without a trained model.")
@click.option("--orders", default=5, show_default=True, help="Random orders of the problems.")
@click.option("--trials", default=TRIALS, show_default=True, help="Trials of each search.")
@trees_option
@steps_option
@processes_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Search the problems of the table in random orders, alone and together, and print the regrets."""
    template = load_template(asked.space)
    recorded = named_table(template, asked.table)
    options = BlendOptions(ForestOptions(trees=asked.trees), RankingOptions(steps=asked.steps))
    models = HeldOutModels.of([recorded], asked.store, options)
    if not asked.cold:
        families = dict.fromkeys(family_beside(recorded, problem) for problem in recorded.problems)
        models.train(list(families), asked.processes or available_cores())
    searches = [(models, asked.cold, asked.trials, seed) for seed in range(asked.orders)]
    gains: list[Gain] = []
    for found in each(gains_of, searches, asked.processes or available_cores(), "search"):
        gains += found
        run.keep([asdict(gain) for gain in gains])
    print_gains([gain for gain in gains if gain.before], asked.trials)
