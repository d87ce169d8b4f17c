"""Tune drawn problems as `tune` does, go on for long, and race each answer against the best of all that was tried.

    python -m tilescout.experiments.research tunings-judged --drawn 141 --count 4 --out judged.json

The problems are drawn by a seed: products of published models that no cost model learned from, and rows of its own; or
they are those of a suite, for ``--space``, whose kernels are judged. Each is tuned from an empty store, in both its
spaces where the second may be faster, and ends by itself. Then the search of each of these spaces goes on for
`--further` trials more, whatever its sampler says: what these find, an answer may miss. The answer and the fastest of
all trials, those of each space, run in heats against each other and `torch.mm`, in sandwiches. The answer and the
fastest of that race then run in one of their own, in the same heats where they are of one space. The regret is the
answer's time over the other's there, less 1: what was picked in one race is judged in the other.

With `--from-portfolio` each problem is tuned by that sampler once more, before its search goes on: from a store that
holds the portfolios of both spaces, and nothing else when a tuning begins. With `--from-empty` it is, too, from a store
that holds nothing then. These answers run in the same races. With `--models` all this is done once more, right behind
each, by the cost models in that folder, beside the shipped ones: two models can be compared on the same problems alone,
since what 60 trials more find depends on the model, too.
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.options import suite_problems
from tilescout.experiments.research.benchmarks.wall_time import draw
from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.experiments.research.studies.draw_problems import pool_option
from tilescout.experiments.research.studies.tunings_out_of_sample import estimate, raced
from tilescout.experiments.research.timed_tuning import kernels
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.selection import make_engine
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.answers import fastest
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import tune_suite
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import complement_on, find_template

FIRST = 64
"""Trials of a tuning at most."""

BEST = 3
"""Trials of each space that race beside the answer."""

ANSWER = "answer"

Runner = tuple[str, Configuration]
"""The space of a kernel, and its configuration."""

Race = dict[str, list[list[float]]]
"""Log ratios to `torch.mm` of each runner, of shape [heats, rounds]."""


def leaders(result: StudyResult) -> list[TrialRecord]:
    """The trials of a study that were measured the fastest."""
    timed = [trial for trial in result.trials if trial.measurement.timing is not None]
    return sorted(timed, key=lambda trial: trial.measurement.timing.ratio if trial.measurement.timing else np.inf)[
        :BEST
    ]


@dataclass(frozen=True)
class Search:
    """How a problem is searched.

    Attributes
    ----------
    sampler
        As `tune --sampler` has it.
    models
        The folder of the cost models; None for the shipped ones.
    """

    sampler: str
    models: Path | None = None

    def __str__(self) -> str:
        """Its name in what is printed and kept."""
        return self.sampler if self.models is None else f"{self.sampler} by {self.models.name}"

    def applied(self, options: TuneOptions) -> TuneOptions:
        """The options of a tuning, with this search."""
        named = {} if self.models is None else {"model": self.models}
        return replace(options, sampler=self.sampler, settings={**options.settings, **named})


@dataclass(frozen=True)
class Beside:
    """More tunings of a problem, from a store that holds the portfolios, or nothing, when each begins.

    Attributes
    ----------
    engines
        The engine of each space by its name, the first one's first; their artifacts are kept in this store alone.
    folder
        Where that store and the studies are.
    searches
        By which a problem is tuned, once by each.
    portfolio
        Whether the store holds the portfolios.
    """

    engines: Mapping[str, LocalEngine]
    folder: Path
    searches: Sequence[Search]
    portfolio: bool

    def tuned(self, problem: Problem, options: TuneOptions) -> "dict[str, Tuned]":
        """The tunings of a problem, by the names of their answers."""
        store, found = artifacts(self.folder), {}
        begun = "the portfolio" if self.portfolio else "an empty store"
        for engine in self.engines.values() if self.portfolio else ():
            stock = engine.template.stock_in(engine.space(problem))
            for compiled in [engine.compile(each, problem.signature) for each in stock]:
                compiled.result()
        kept, count = set(store.glob("??/*")), kernels(store)
        for number, search in enumerate(self.searches):
            asked = replace(search.applied(options), studies=studies(self.folder / str(number)))
            tuning = Tuned.of(next(iter(self.engines.values())), problem, asked)
            found[f"{search} from {begun}"] = replace(tuning, compiled=kernels(store) - count)
            for new in set(store.glob("??/*")) - kept:
                shutil.rmtree(new)
        return found


@dataclass(frozen=True)
class Tuned:
    """A tuning.

    Attributes
    ----------
    results
        Of each space.
    seconds
        It took, by the clock on the wall.
    compiled
        Kernels that it had compiled; None if that was not counted.
    """

    results: Sequence[StudyResult]
    seconds: float
    compiled: int | None = None

    @classmethod
    def of(cls, engine: Engine, problem: Problem, options: TuneOptions) -> "Tuned":
        """Tune a problem, in both its spaces where the second may be faster."""
        started = time.perf_counter()
        return cls(tune_suite(engine, [problem], options), time.perf_counter() - started)

    @property
    def answer(self) -> Runner:
        """The space and the configuration of its answer."""
        best = fastest(self.results)
        assert best.best is not None
        return best.info.space, best.best.configuration

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        tuned = [summary(result) for result in self.results]
        space, configuration = self.answer
        answer = {"answer": space, "kernel": dict(configuration)}
        return {"tuned": tuned, **answer, "seconds": self.seconds, "compiled": self.compiled}


def judged(
    engines: dict[str, LocalEngine],
    problem: Problem,
    options: TuneOptions,
    further: int,
    more: Sequence[Beside] = (),
) -> dict[str, Any]:
    """Tune a problem, go on, and race; what was found, as JSON.

    Parameters
    ----------
    engines
        The engine of each space by its name, the first one's first.
    problem
        The problem.
    options
        Of the tuning.
    further
        Trials behind it.
    more
        Further tunings, whose answers run in the same races.
    """
    tuned = Tuned.of(next(iter(engines.values())), problem, options)
    beside = {name: its for each in more for name, its in each.tuned(problem, options).items()}
    all_ = [longer(engines[result.info.space], problem, options, result, further) for result in tuned.results]
    runners = {
        f"{result.info.space} {trial.number}": (result.info.space, trial.configuration)
        for result in all_
        for trial in leaders(result)
    }
    answers = {ANSWER: tuned, **beside}
    runners |= {name: tuning.answer for name, tuning in answers.items()}
    race = raced_by_space(engines, problem, runners)
    best = fastest_of(race)
    others = [name for name in answers if runners[name] != runners[best]]
    again = raced_by_space(engines, problem, {name: runners[name] for name in (*others, best)}) if others else {}
    regrets = {name: regret(again[name], again[best]) if name in others else [0.0, 0.0, 0.0] for name in answers}
    found = tuned.to_dict() | {"all": [summary(result) for result in all_], "race": race, "best": best, "again": again}
    return found | {
        "regret": regrets[ANSWER],
        "beside": {name: {**tuning.to_dict(), "regret": regrets[name]} for name, tuning in beside.items()},
    }


def longer(engine: Engine, problem: Problem, options: TuneOptions, result: StudyResult, further: int) -> StudyResult:
    """The study of a result, after so many trials more."""
    budget = Budget(len(result.trials) + further, whole=True)
    asked = replace(options, budget=budget, resume=result.info.name)
    [found] = tune_suite(engine, [problem], asked, complement=False)
    return found


def raced_by_space(engines: dict[str, LocalEngine], problem: Problem, runners: dict[str, Runner]) -> Race:
    """Race kernels against `torch.mm`, those of a space in the same heats."""
    race = Race()
    for space in dict.fromkeys(space for space, _ in runners.values()):
        of_space = {name: configuration for name, (its, configuration) in runners.items() if its == space}
        race |= raced(engines[space], problem, of_space)
    return race


def fastest_of(race: Race) -> str:
    """The runner of the least mean time."""
    return min(race, key=lambda name: float(np.mean(race[name])))


def summary(result: StudyResult) -> dict[str, Any]:
    """The figures of a study, where its seconds went, and the ratios to `torch.mm` of its trials, as JSON."""
    timed = [(dict(each.configuration), each.measurement.timing) for each in result.trials]
    return {
        "space": result.info.space,
        "trials": len(result.trials),
        "stopped": result.stopped or "",
        "model": Path(result.info.model).name,
        "model_sha256": result.info.model_sha256,
        "library_us": result.info.library_us,
        "wall": dict(result.wall),
        "measured": [[configuration, timing.ratio] for configuration, timing in timed if timing is not None],
    }


def regret(answer: list[list[float]], best: list[list[float]]) -> list[float]:
    """The time of the answer over that of another, less 1, and the ends of its 95 % interval.

    Parameters
    ----------
    answer, best
        Log ratios of each, of shape [heats, rounds].
    """
    return [each - 1 for each in estimate(np.asarray(answer) - np.asarray(best))]


def line(name: str, found: dict[str, Any]) -> str:
    """The figures of a problem."""
    spaces = ", ".join(f"{one['space']} {one['trials']}" for one in found["tuned"])
    trials = sum(one["trials"] for one in found["all"])
    value, low, high = found["regret"]
    text = f"{name:>24}  {value:6.2%} [{low:6.2%}, {high:6.2%}]  {found['answer']}; tried {spaces}"
    text += f" in {found['seconds']:.1f} s; in all {trials}"
    for other, its in found["beside"].items():
        tried, (value, low, high) = sum(one["trials"] for one in its["tuned"]), its["regret"]
        text += f"\n{'':>24}  {value:6.2%} [{low:6.2%}, {high:6.2%}]  {other}: {tried} trials"
        text += f", {its['compiled']} compiled, in {its['seconds']:.1f} s"
    return text


@study(GPU)
@click.option("--drawn", "seed", type=click.IntRange(min=0), help="Draw the problems by this seed.")
@pool_option
@click.option("--count", default=4, show_default=True, help="How many problems to draw.")
@click.option("--signature", default="bf16", show_default=True, help="Element types of what is drawn.")
@click.option("--suite", help="Take the problems of this suite instead.")
@click.option("--space", default="gemm_sm90", show_default=True, help="Search this one and its complement.")
@click.option("--sampler", default="guided", show_default=True, help="Of the searches, as `tune --sampler` has it.")
@click.option(
    "--from-portfolio", "stocked", multiple=True, help="Tune from the portfolios too, by this sampler; repeatable."
)
@click.option("--from-empty", "anew", multiple=True, help="The same from an empty store; repeatable.")
@click.option(
    "--models",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of cost models, by which all tunings are made once more.",
)
@click.option("--further", default=80, show_default=True, help="Trials in each space behind its tuning.")
def main(
    run: Run,
    seed: int | None,
    pool: str,
    count: int,
    signature: str,
    suite: str | None,
    space: str,
    sampler: str,
    stocked: tuple[str, ...],
    anew: tuple[str, ...],
    models: Path | None,
    further: int,
) -> None:
    """Judge the answers of tunings, and print their regrets."""
    if (seed is None) == (suite is None):
        raise click.UsageError("name a seed to draw by, or a suite")
    template = find_template(space)
    done = dict[str, Any]()
    if suite is not None:
        problems = suite_problems(template, suite, None)
    else:
        assert seed is not None
        problems = [template.parse(name).with_signature(signature) for name in draw(seed, count, pool)]
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)

        def opened(place: Path) -> dict[str, LocalEngine]:
            engine = stack.enter_context(make_engine(template, problems[0], artifacts(place), device="cuda", gpus=1))
            assert isinstance(engine, LocalEngine)
            second = complement_on(template, engine.device)
            beside = {} if second is None else {second.name: stack.enter_context(engine.beside(second))}
            return {template.name: engine, **beside}

        engines = opened(folder)
        by = [None] if models is None else [None, models]
        empty = [Search(each, its) for each in (sampler, *anew) for its in by][1:]  # the first is the answer's
        stock = [Search(each, its) for each in stocked for its in by]
        more = [
            Beside(opened(folder / place), folder / place, searches, place == "portfolio")
            for place, searches in (("empty", empty), ("portfolio", stock))
            if searches
        ]
        options = TuneOptions(sampler, 0, Budget(FIRST), studies(folder), race=RaceOptions())
        for problem in problems:
            done[str(problem)] = judged(engines, problem, options, further, more)
            run.keep({"problems": done})
            print(line(str(problem), done[str(problem)]), flush=True)
    missed = sum(found["regret"][0] > 0.01 for found in done.values())
    print(f"{missed} of {len(done)} more than 1 % off")
