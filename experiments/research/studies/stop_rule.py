r"""Calibrate the rule by which a guided search stops, on problems that its model has not seen.

    python -m tilescout.experiments.research stop-rule search/tables/recorded/*.parquet --out stop-rule.json

The rule promises that at most one search in twenty stops with more than 1 % left to find. It widens the standard
deviations of its posterior by a factor. The study finds the smallest factor that keeps the promise on a new problem, by
conformal risk control (A. Angelopoulos, S. Bates, A. Fisch, L. Lei, T. Schuster: Conformal risk control, 2022).

Models learn from the tables, as the shipped one does. Each problem is searched by a model that never saw its shape: of
ten parts of the shapes, drawn at random, it has not seen the problem's; with ``--unseen family`` nothing of its family.
The search is replayed, with its whole budget, and without the default: the shipped defaults were picked on such tables.
After every measurement the study notes what is left to find, and from which factor on the search would have gone on. A
search misses if it stops while more than 1 % is left; the larger the factor, the later it stops.

Problems of one shape count as one, by their mean. The factor holds for problems that are drawn like these.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import optuna
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.blend import BlendOptions
from tilescout.experiments.commands.options import collected, processes_option, seed_option, store_option
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.experiments.compare.inference import share_interval
from tilescout.experiments.compare.processes import each
from tilescout.experiments.compare.truth import Truth
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.search.studies.records import TrialRecord
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tuning.loop import Budget, run
from tilescout.spaces.problems import Problem
from tilescout.spaces.shapes import shape_groups

RISK = 0.05
"""The promised share of searches that stop with more than `GAIN` left."""

GAIN = 0.01
TRIALS = 64
PARTS = 10
"""Parts of the problems; a model has not seen one of them."""

UNSEEN = ("shape", "family")


@dataclass(frozen=True)
class Watched:
    """A search with its whole budget.

    Attributes
    ----------
    table, problem, shape, family
        What was searched, the label of its shape, and its family.
    left
        After each measurement, the best found over the best recorded, less 1.
    widest
        After each measurement, the factor from which on the search would have gone on; 0 where it may not stop yet.
    gpu_seconds
        Recorded GPU seconds of each measurement.
    """

    table: str
    problem: str
    shape: str
    family: str
    left: Sequence[float]
    widest: Sequence[float]
    gpu_seconds: Sequence[float]

    def stop(self, factor: float) -> int | None:
        """The measurements after which it stops by itself; None if it uses its budget."""
        at = np.flatnonzero(np.asarray(self.widest) > factor)
        return int(at[0]) + 1 if len(at) else None

    def misses(self, factor: float) -> bool:
        """Whether it stops by itself with more than `GAIN` left."""
        at = self.stop(factor)
        return at is not None and self.left[at - 1] > GAIN

    @property
    def least(self) -> float:
        """The smallest factor with which it does not miss."""
        bad = np.asarray(self.left) > GAIN
        return float(np.max(np.asarray(self.widest)[bad], initial=0.0))


def parts_of(problems: Sequence[Problem], seed: int) -> dict[str, tuple[str, ...]]:
    """Of each problem, those that its model has not seen: one of `PARTS` parts of all, with whole shapes."""
    labels = shape_groups(problems)
    shapes = np.random.default_rng(seed).permutation(list(dict.fromkeys(labels))).tolist()
    part_of = {shape: at % PARTS for at, shape in enumerate(shapes)}
    own = [part_of[label] for label in labels]
    held = [
        tuple(str(problem) for problem, part in zip(problems, own, strict=True) if part == at) for at in range(PARTS)
    ]
    return {str(problem): held[part] for problem, part in zip(problems, own, strict=True)}


def watch(models: HeldOutModels, path: Path, name: str, shape: str, without: tuple[str, ...], trials: int) -> Watched:
    """The search of a problem of a table by a model that never saw some problems."""
    table = Table.read(path)
    problem = table.problem(name)
    engine = ReplayEngine(table, template_of(table))
    recording = engine.recording(problem)
    truth = Truth.of(recording)
    sampler = GuidedSampler(recording.space, 0, model=models.without(without))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(sampler=sampler, direction="minimize")
    tried: list[int] = []
    widest: list[float] = []

    def note(trial: TrialRecord) -> None:
        tried.append(trial.index)
        widest.append(sampler.widest_stop(search))

    with Evaluator(engine, problem) as evaluator:
        run(search, evaluator, Budget(trials, whole=True), evaluator.library_us(), note)
    left = np.minimum.accumulate(truth.times_us[tried]) / truth.best_us - 1
    return Watched(
        table=table.path.stem,
        problem=name,
        shape=shape,
        family=problem.family,
        left=left.tolist(),
        widest=widest,
        gpu_seconds=truth.gpu_seconds[tried].tolist(),
    )


def calibrated(searches: Sequence[Watched], risk: float = RISK) -> float | None:
    """The smallest factor, at least 1, that keeps the promise; None if there are too few shapes for any to.

    With n shapes whose mean share of misses is r, the expected share on a new problem is at most (n r + 1) / (n + 1).
    """
    shapes = [[one for one in searches if one.shape == shape] for shape in dict.fromkeys(s.shape for s in searches)]
    for factor in sorted({1.0, *(one.least for one in searches if one.least > 1)}):
        missed = sum(float(np.mean([one.misses(factor) for one in shape])) for shape in shapes)
        if (missed + 1) / (len(shapes) + 1) <= risk:
            return factor
    return None


def figures(searches: Sequence[Watched], factor: float) -> dict[str, float]:
    """How searches do that stop by a factor: how many miss, after how many measurements they stop, and GPU seconds."""
    stops = [one.stop(factor) for one in searches]
    ends = [at if at is not None else len(one.left) for at, one in zip(stops, searches, strict=True)]
    misses = sum(one.misses(factor) for one in searches)
    low, high = share_interval(misses, len(searches))
    return {
        "factor": factor,
        "searches": len(searches),
        "misses": misses,
        "share_low": low,
        "share_high": high,
        "stopped": sum(at is not None for at in stops),
        "measurements_median": float(np.median(ends)),
        "measurements_mean": float(np.mean(ends)),
        "gpu_seconds_mean": float(np.mean([sum(s.gpu_seconds[:end]) for s, end in zip(searches, ends, strict=True)])),
    }


def print_figures(console: Console, searches: Sequence[Watched]) -> dict[str, object]:
    """Print and return the factor, and what it costs."""
    factor = calibrated(searches)
    shapes = len({one.shape for one in searches})
    rows = [figures(searches, 1.0)] + ([figures(searches, factor)] if factor is not None else [])
    grid = Grid(
        title=f"{len(searches)} searches of {shapes} shapes that the models have not seen", title_justify="left"
    )
    for heading in ("factor", "misses [95 %]", "stopped", "measurements: median", "mean", "GPU s: mean"):
        grid.add_column(heading, justify="right")
    for row in rows:
        grid.add_row(
            f"{row['factor']:.3f}",
            f"{row['misses']:g} [{row['share_low']:.1%}, {row['share_high']:.1%}]",
            f"{row['stopped']:g}",
            f"{row['measurements_median']:g}",
            f"{row['measurements_mean']:.1f}",
            f"{row['gpu_seconds_mean']:.3f}",
        )
    console.print(grid)
    worst = sorted(searches, key=lambda one: -one.least)[:5]
    for one in worst:
        console.print(f"{one.table} {one.problem}: no miss from a factor of {one.least:.3f} on", highlight=False)
    if factor is None:
        console.print(f"{shapes} shapes are too few for a promise of {RISK:.0%}: {1 / RISK - 1:.0f} are needed")
    return {"factor": factor, "shapes": shapes, "risk": RISK, "figures": rows}


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    tables: tuple[Path, ...]
    learned: tuple[Path, ...]
    unseen: str
    seed: int
    trials: int
    processes: int | None
    store: Path


@study(TABLES, again=True)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--learn",
    "learned",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Table that models learn from; repeatable. [default: TABLES]",
)
@click.option(
    "--unseen",
    type=click.Choice(UNSEEN),
    default=UNSEEN[0],
    show_default=True,
    help="What a model has not seen of the problem that it searches: its shape, or its whole family.",
)
@seed_option
@click.option("--trials", default=TRIALS, show_default=True, help="Measurements of a search.")
@processes_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Search every problem of the tables, and print the factor."""
    if run.record is not None:
        print_figures(Console(), [Watched(**one) for one in run.record.result["searches"]])
        return
    if not asked.tables:
        raise click.UsageError("name tables, or a file with --again")
    tables = [Table.read(path) for path in asked.tables]
    processes = asked.processes or available_cores()
    learned = [Table.read(path) for path in asked.learned] or tables
    models = HeldOutModels.of(learned, asked.store, BlendOptions())
    problems = [(table, problem) for table in tables for problem in table.problems]
    if asked.unseen == "family":
        without = {str(problem): models.of_family(problem) for _, problem in problems}
    else:
        known = dict.fromkeys([*models.problems(), *(problem for _, problem in problems)])
        without = parts_of(list(known), asked.seed)
    models.train(list(dict.fromkeys(without.values())), processes)
    labels = shape_groups([problem for _, problem in problems])
    jobs = [
        (models, table.path, str(problem), label, without[str(problem)], asked.trials)
        for (table, problem), label in zip(problems, labels, strict=True)
    ]
    found = sorted(each(watch, jobs, processes, "search"), key=lambda one: (one.table, one.problem))
    result = {"searches": [asdict(one) for one in found]}
    run.keep({**result, **print_figures(Console(), found)})
