"""Tune drawn problems as `tune` does, go on for long, and race each answer against the best of all that was tried.

    python -m tilescout.experiments.research tunings-judged --drawn 141 --count 4 --out judged.json

The problems are drawn from published models by a seed, so that nobody has seen them. Each is tuned from an empty store,
in both its spaces where the second may be faster, and ends by itself. Then the search of each of these spaces goes on
for `--further` trials more, whatever its sampler says: what these find, an answer may miss. The answer and the fastest
of all trials, those of each space, run in heats against each other and `torch.mm`, in sandwiches. The answer and the
fastest of that race then run in one of their own, in the same heats where they are of one space. The regret is the
answer's time over the other's there, less 1: what was picked in one race is judged in the other.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from tilescout.experiments.research.benchmarks.wall_time import draw
from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.experiments.research.studies.tunings_out_of_sample import estimate, raced
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
from tilescout.spaces.templates import find_template

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


def judged(engines: dict[str, LocalEngine], problem: Problem, options: TuneOptions, further: int) -> dict[str, Any]:
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
    """
    engine: Engine = next(iter(engines.values()))
    started = time.perf_counter()
    tuned = tune_suite(engine, [problem], options)
    seconds = time.perf_counter() - started
    answer = fastest(tuned)
    assert answer.best is not None
    all_ = [longer(engines[result.info.space], problem, options, result, further) for result in tuned]
    runners = {
        f"{result.info.space} {trial.number}": (result.info.space, trial.configuration)
        for result in all_
        for trial in leaders(result)
    }
    runners[ANSWER] = answer.info.space, answer.best.configuration
    race = raced_by_space(engines, problem, runners)
    best = fastest_of(race)
    found: dict[str, Any] = {
        "tuned": [summary(result) for result in tuned],
        "all": [summary(result) for result in all_],
        "race": race,
    }
    found |= {"answer": answer.info.space, "best": best, "seconds": seconds}
    if runners[best] == runners[ANSWER]:
        return {**found, "again": {}, "regret": [0.0, 0.0, 0.0]}
    again = raced_by_space(engines, problem, {name: runners[name] for name in (ANSWER, best)})
    return {**found, "again": again, "regret": regret(again[ANSWER], again[best])}


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
    """The figures of a study and the ratios to `torch.mm` of its trials, as JSON."""
    timed = [(dict(each.configuration), each.measurement.timing) for each in result.trials]
    return {
        "space": result.info.space,
        "trials": len(result.trials),
        "stopped": result.stopped or "",
        "model": Path(result.info.model).name,
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
    return f"{text} in {found['seconds']:.1f} s; in all {trials}"


@study(GPU)
@click.option("--drawn", "seed", type=click.IntRange(min=0), required=True, help="Draw the problems by this seed.")
@click.option("--count", default=4, show_default=True, help="How many problems.")
@click.option("--sampler", default="guided", show_default=True, help="Of the searches, as `tune --sampler` has it.")
@click.option("--further", default=80, show_default=True, help="Trials in each space behind its tuning.")
def main(run: Run, seed: int, count: int, sampler: str, further: int) -> None:
    """Judge the answers of tunings, and print their regrets."""
    template, second = find_template("gemm_sm90"), find_template("gemm_streamk_sm90")
    done = dict[str, Any]()
    problems: Sequence[Problem] = [template.parse(name) for name in draw(seed, count)]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        engine = stack.enter_context(make_engine(template, problems[0], artifacts(Path(folder)), device="cuda", gpus=1))
        assert isinstance(engine, LocalEngine)
        engines = {template.name: engine, second.name: stack.enter_context(engine.beside(second))}
        options = TuneOptions(sampler, 0, Budget(FIRST), studies(Path(folder)), race=RaceOptions())
        for problem in problems:
            done[str(problem)] = judged(engines, problem, options, further)
            run.keep({"problems": done})
            print(line(str(problem), done[str(problem)]), flush=True)
    missed = sum(found["regret"][0] > 0.01 for found in done.values())
    print(f"{missed} of {len(done)} more than 1 % off")
