r"""Study how the errors of a cost model are alike, and what a search gains that knows.

    python -m tilescout.experiments.research correlated-errors search/tables/recorded/*.parquet --out errors.json.gz

Models learn from the tables, and each problem is looked at by the one that never saw its shape. First, how likely the
model's errors on a problem are under several covariances: those of the configurations that it expects to be fastest,
for a search goes there. Then searches with the whole budget, by what is set with ``--setting``: what is left to find
after each measurement, and the chance that the process gave before it of something more than 1 % faster.

With ``work_length=1000:alone=0`` features tell nothing apart, and no configuration has an error alone: that is how
searches were corrected before.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import optuna
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.blend import BlendOptions
from tilescout.costmodel.likeness import Likeness
from tilescout.costmodel.posterior import Covariance, Kernel, KernelSum, chance_below
from tilescout.experiments.commands.options import collected, processes_option, seed_option, store_option
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.experiments.compare.processes import each
from tilescout.experiments.compare.truth import Truth
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.experiments.research.studies.stop_rule import parts_of
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers.guided import GuidedOptions, GuidedSampler
from tilescout.search.samplers.others import features_of, points_of
from tilescout.search.studies.records import TrialRecord
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.loop import run

GAIN = 0.01
TRIALS = 64
FASTEST = 160
"""Configurations of a problem whose errors are looked at: those that the model expects to be fastest."""

AT = (3, 10, 20, 60)
BINS = (0.0, 0.05, 0.2, 0.5, 1.0)
LEAST = 10
"""Measurements from which on a chance is judged: no search stops earlier."""

BEFORE = "work_length=1000:alone=0"


@dataclass(frozen=True)
class Played:
    """A search with its whole budget.

    Attributes
    ----------
    table, problem, setting
        What was searched, and how.
    left
        After each measurement, the best found over the best recorded, less 1.
    chance
        The chance then of something more than `GAIN` faster; NaN without a time.
    """

    table: str
    problem: str
    setting: str
    left: Sequence[float]
    chance: Sequence[float]


@dataclass(frozen=True)
class Likely:
    """The mean log likelihood of a configuration's error on a problem, by covariance."""

    table: str
    problem: str
    by: dict[str, float]


def covariances(knobs: int, features: int) -> dict[str, tuple[Covariance, slice]]:
    """Covariances of errors by name, and which coordinates each sees: knobs come first."""
    o = GuidedOptions()
    by_knobs, by_work = Kernel.even(knobs, o.length, o.noise), Kernel.even(features, o.work_length, o.noise)
    return {
        "knobs": (by_knobs, slice(knobs)),
        "knobs, alone": (KernelSum((by_knobs,), o.alone**2), slice(knobs)),
        "features, alone": (KernelSum((by_work,), o.alone**2), slice(knobs, None)),
        "knobs, features, alone": (KernelSum((by_knobs, by_work), o.alone**2), slice(None)),
    }


def log_likelihood(
    errors: np.ndarray, spread: np.ndarray, shift: float, covariance: Covariance, points: np.ndarray
) -> float:
    """The mean over configurations of the log density of a model's errors, their scale as likely as any."""
    noise = GuidedOptions().noise
    shared = covariance.between(points, points) + covariance.alone * np.eye(len(errors))
    whole = shared * np.outer(spread, spread) + shift**2 + noise**2 * np.eye(len(errors))
    factor = np.linalg.cholesky(whole)
    white = np.linalg.solve(factor, errors)
    scale = float(white @ white) / len(errors)
    return float(-0.5 * np.log(2 * np.pi * scale) - 0.5 - np.log(np.diag(factor)).mean())


def likely(models: HeldOutModels, path: Path, name: str, without: tuple[str, ...]) -> Likely:
    """How likely the errors of a model that never saw some problems are on one of them."""
    table = Table.read(path)
    recording = ReplayEngine(table, template_of(table)).recording(table.problem(name))
    truth, features = Truth.of(recording), features_of(recording.space)
    expected = models.without(without).predict(features)
    timed = np.flatnonzero(truth.timed)
    few = timed[np.argsort(expected.mean[timed], kind="stable")[:FASTEST]]
    knobs, work = points_of(recording.space), Likeness.of(features).points(features)
    points = np.concatenate([knobs, work], axis=1)[few]
    errors = np.log(truth.times_us[few]) - expected.mean[few]
    found = {
        which: log_likelihood(errors, expected.spread[few], expected.shift, covariance, points[:, seen])
        for which, (covariance, seen) in covariances(knobs.shape[1], work.shape[1]).items()
    }
    return Likely(table.path.stem, name, found)


def play(models: HeldOutModels, path: Path, name: str, without: tuple[str, ...], setting: str, trials: int) -> Played:
    """The search of a problem by a model that never saw some."""
    table = Table.read(path)
    problem = table.problem(name)
    engine = ReplayEngine(table, template_of(table))
    recording = engine.recording(problem)
    truth = Truth.of(recording)
    given: dict[str, Any] = dict(part.split("=", 1) for part in setting.split(":") if part)
    sampler = GuidedSampler(recording.space, 0, model=models.without(without), others=None, **given)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(sampler=sampler, direction="minimize")
    tried: list[int] = []
    chances: list[float] = []

    def note(trial: TrialRecord) -> None:
        tried.append(trial.index)
        free = sampler.free(search)
        best = float(np.log(np.where(truth.timed[tried], truth.times_us[tried], np.inf).min()))
        if not np.isfinite(best) or not len(free):
            chances.append(float("nan"))
            return
        mean, std = sampler.posterior(search).at(free)
        each_one = np.sort(chance_below(mean, std, best + np.log(1 - GAIN)))[-sampler.tuning.ahead :]
        chances.append(1 - float(np.prod(1 - each_one)))

    with Evaluator(engine, problem) as evaluator:
        run(search, evaluator, Budget(trials, whole=True), evaluator.library_us(), note)
    left = np.minimum.accumulate(truth.times_us[tried]) / truth.best_us - 1
    return Played(table.path.stem, name, setting, left.tolist(), chances)


def left_after(search: Played, trials: int) -> float:
    """The share that is left to find; a space that was used up earlier has nothing left."""
    return search.left[min(trials, len(search.left)) - 1]


def figures(searches: Sequence[Played]) -> dict[str, list[float]]:
    """The shares left after `AT` measurements, and how often a chance in each of `BINS` was right."""
    left = np.array([[left_after(one, at) for at in AT] for one in searches])
    pairs = [
        (chance, left > GAIN)
        for one in searches
        for chance, left in zip(one.chance[LEAST - 1 : TRIALS - 4], one.left[LEAST - 1 : TRIALS - 4], strict=True)
        if not np.isnan(chance)
    ]
    said, held = np.array(pairs, dtype=np.float64).T
    within = np.digitize(said, BINS[1:-1])
    to_1 = [
        int(np.flatnonzero(np.array(one.left) <= GAIN)[0]) + 1 if min(one.left) <= GAIN else TRIALS for one in searches
    ]
    return {
        "mean": left.mean(axis=0).tolist(),
        "p90": np.quantile(left, 0.9, axis=0).tolist(),
        "missed": (left > GAIN).sum(axis=0).tolist(),
        "to_1": [float(np.median(to_1)), float(np.mean(to_1)), float(np.quantile(to_1, 0.9))],
        "said": [float(said[within == at].mean()) for at in range(len(BINS) - 1)],
        "held": [float(held[within == at].mean()) for at in range(len(BINS) - 1)],
        "cases": [int((within == at).sum()) for at in range(len(BINS) - 1)],
    }


def print_found(console: Console, found: Sequence[Likely], searches: Sequence[Played]) -> dict[str, object]:
    """Print and return the likelihoods, what is left, and the chances, by table."""
    result: dict[str, object] = {}
    for table in dict.fromkeys(one.table for one in found):
        means = {name: float(np.mean([one.by[name] for one in found if one.table == table])) for name in found[0].by}
        console.print(f"{table}: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()), highlight=False)
        result[f"likelihood {table}"] = means
    for table in [*dict.fromkeys(one.table for one in searches), ""]:
        grid = Grid(title=table or "all tables", title_justify="left")
        for heading in ("setting", *(f"left after {at}: mean" for at in AT), "90th", "> 1 %", "to 1 %", "said", "held"):
            grid.add_column(heading)
        for setting in dict.fromkeys(one.setting for one in searches):
            one = figures([one for one in searches if one.table.startswith(table) and one.setting == setting])
            grid.add_row(
                setting or "default",
                *(f"{mean:.2%}" for mean in one["mean"]),
                ", ".join(f"{p90:.2%}" for p90 in one["p90"]),
                ", ".join(map(str, one["missed"])),
                ", ".join(f"{at:.1f}" for at in one["to_1"]),
                ", ".join(f"{said:.0%}" for said in one["said"]),
                ", ".join(f"{held:.0%}" for held in one["held"]),
            )
            result[f"{table or 'all'} {setting or 'default'}"] = one
        console.print(grid)
    return result


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    tables: tuple[Path, ...]
    settings: tuple[str, ...]
    seed: int
    processes: int | None
    store: Path


@study(TABLES, again=True)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    default=(BEFORE, ""),
    show_default=True,
    help="Options of guided, KEY=VALUE joined by colons; repeatable. An empty text is its defaults.",
)
@seed_option
@processes_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Look at the errors, search every problem, and print both."""
    if run.record is not None:
        kept = run.record.result
        print_found(
            Console(width=220), [Likely(**one) for one in kept["errors"]], [Played(**one) for one in kept["searches"]]
        )
        return
    if not asked.tables:
        raise click.UsageError("name tables, or a file with --again")
    tables = [Table.read(path) for path in asked.tables]
    processes = asked.processes or available_cores()
    models = HeldOutModels.of(tables, asked.store, BlendOptions())
    without = parts_of(list(dict.fromkeys(models.problems())), asked.seed)
    models.train(list(dict.fromkeys(without.values())), processes)
    problems = [(table.path, str(problem)) for table in tables for problem in table.problems]
    order = {name: at for at, (_, name) in enumerate(problems)}
    looks = [(models, path, name, without[name]) for path, name in problems]
    found = sorted(each(likely, looks, processes, "errors"), key=lambda one: order[one.problem])
    plays = [(*look, setting, TRIALS) for setting in asked.settings for look in looks]
    searches = sorted(each(play, plays, processes, "search"), key=lambda one: (one.setting, order[one.problem]))
    result = {"errors": [asdict(one) for one in found], "searches": [asdict(one) for one in searches]}
    run.keep({**result, **print_found(Console(width=220), found, searches)})
