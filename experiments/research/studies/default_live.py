"""Race default configurations against the library, on problems that nothing was chosen on.

    python -m tilescout.experiments.research default-live --seed 71 --out default.json

The problems are drawn by a seed as those of the suite `out-of-sample`, of published models that no suite holds, some of
them with 8-bit elements. Each default is compiled, verified and raced against what `torch.mm` or `torch._scaled_mm`
runs, and so is the kernel that `default_or_library` answers, of either GEMM space. Nothing is searched. Where the
answer is the library its speed is 1. With `--no-always` the answers alone are raced: that takes a third of the time.
With `--suite` the problems are those of a suite; `out-of-sample` is judged so, and by nothing fitted to it.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.arrays import Floats
from tilescout.experiments.commands.options import collected, seed_option, store_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.experiments.research.studies.draw_problems import drawn, pool_option
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.dispatch.measuring import SWEEPING
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.unmeasured import Kernel
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template

_LOG = logging.getLogger(__name__)

SPACE, KEPT_OUT = "gemm_sm90", "out-of-sample"
FP8 = "e4m3-bf16"
ROUNDS = 12
SLOW = 0.95
_NARROWEST = 16


def asked(seed: int, count: int, fp8: int, pool: str) -> list[GemmProblem]:
    """Problems drawn by a seed of a list of models, of all kinds in turns; the last `fp8` have 8-bit elements.

    Raises
    ------
    ProblemError
        If the suite has all of them.
    """
    judged = set(find_suite(KEPT_OUT).problems)
    kinds: dict[str, list[str]] = {}
    for entry in drawn(seed, pool):
        if entry.problem not in judged:
            kinds.setdefault(entry.label.rpartition(", ")[2], []).append(entry.problem)
    turns = [each for row in zip(*kinds.values(), strict=False) for each in row][:count]
    if not turns:
        raise ProblemError(f"all problems of seed {seed} are of the suite {KEPT_OUT}: draw by another seed")
    found = [GemmProblem.parse(text) for text in turns]
    # The library computes no 8-bit product of fewer columns than fill 16 bytes.
    wide = [each for each in found if each.n % _NARROWEST == 0]
    chosen = wide[max(len(wide) - fp8, 0) :]
    return [GemmProblem.parse(f"{each.m}x{each.n}x{each.k}:{FP8}") if each in chosen else each for each in found]


def raced(
    engine: Engine, problem: GemmProblem, kernels: Sequence[tuple[Kernel, Artifact]], seed: int
) -> dict[str, Any]:
    """The library's time, and the speeds over its of kernels of either space, by a race.

    Raises
    ------
    CannotMeasureError
        If one is wrong or fails.
    """
    library_us = engine.prepare(0, problem).result()
    tasks = [
        Task(configuration, artifact, problem, library_us, template=find_template(space))
        for (space, configuration), artifact in kernels
    ]
    for outcome in engine.measure(0, tasks).result():
        if outcome.timing is None:
            raise CannotMeasureError(f"{problem}: {outcome.error}")
    rounds = engine.race(0, tasks, ROUNDS, 1, seed).result()
    return {
        "library_us": library_us,
        "speeds": np.exp(-np.log(rounds).mean(axis=0)).tolist(),
        "rounds": rounds.tolist(),
    }


def figures(always: Floats, answered: Floats) -> dict[str, float]:
    """Speeds over the library's: of the default, NaN where it was not raced, and of what is answered."""
    known = always[np.isfinite(always)]
    told: dict[str, float] = {
        "problems": len(answered),
        "runs": int((answered != 1.0).sum()),
        "answered": float(np.exp(np.log(answered).mean())),
        "answered_least": float(answered.min()),
        "answered_slow": int((answered < SLOW).sum()),
    }
    if len(known):
        told |= {
            "default": float(np.exp(np.log(known).mean())),
            "default_least": float(known.min()),
            "default_slow": int((known < SLOW).sum()),
        }
    return told


def by_type(problems: Sequence[str], always: Floats, answered: Floats) -> dict[str, dict[str, float]]:
    """The figures of the problems of each type, and of all."""
    types = np.array([text.partition(":")[2] for text in problems])
    kinds = {name: types == name for name in dict.fromkeys(types.tolist())} | {"all": np.ones(len(types), dtype=bool)}
    return {name: figures(always[kind], answered[kind]) for name, kind in kinds.items()}


def print_figures(told: Mapping[str, Mapping[str, float]]) -> None:
    """Print the figures by type."""
    grid = Grid(title="speed over the library's: geometric mean, least, and how many are below 0.95")
    for heading in ("type", "problems", "default, always", "runs on", "default or library"):
        grid.add_column(heading, justify="right")
    for name, one in told.items():
        always, chosen = (
            f"{one[key]:.3f}, {one[f'{key}_least']:.3f}, {one[f'{key}_slow']}" if key in one else ""
            for key in ("default", "answered")
        )
        grid.add_row(name, str(one["problems"]), always, str(one["runs"]), chosen)
    Console(width=120).print(grid)


def told(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The figures of problems that were raced."""
    always = np.array([each.get("speed", np.nan) for each in found])
    answered = np.array([each.get("answer_speed", 1.0) for each in found])
    return by_type([each["problem"] for each in found], always, answered)


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    count: int
    pool: str
    suite: str | None
    fp8: int
    seconds: float
    always: bool
    device: str
    seed: int
    store: Path


@study(GPU_OR_RECORD, again=True)
@click.option("--count", type=click.IntRange(1, 40), default=40, show_default=True, help="Problems to draw.")
@pool_option
@click.option("--suite", help="The problems of this suite, none drawn.")
@click.option("--fp8", type=click.IntRange(min=0), default=10, show_default=True, help="Of them, with 8-bit elements.")
@seconds_option(80.0)
@click.option("--always/--no-always", default=True, show_default=True, help="Whether to race the defaults, too.")
@device_option
@seed_option
@store_option
@collected(Asked)
def main(run: Run, wanted: Asked) -> None:
    """Race the default and the answer of each problem."""
    if run.record is not None:
        print_figures(told(run.record.result["problems"]))
        return
    problems = (
        asked(wanted.seed, wanted.count, min(wanted.fp8, wanted.count), wanted.pool)
        if wanted.suite is None
        else list(find_suite(wanted.suite).parsed(GemmProblem.parse))
    )
    template = find_template(SPACE)
    clock, console = Clock(wanted.seconds), Console(width=120)
    found: list[dict[str, Any]] = []
    report: dict[str, Any] = {"problems": found}
    with (
        LocalEngine(template, artifacts(wanted.store), [wanted.device], options=SWEEPING) as engine,
        engine.beside(find_template(template.complement)) as beside,
    ):
        answers = [template.default_or_library(problem, engine.device) for problem in problems]
        listed: list[list[Kernel]] = [
            [(SPACE, engine.default(problem))] if wanted.always else [] for problem in problems
        ]
        for kernels, answer in zip(listed, answers, strict=True):
            if answer is not None and (answer.space, answer.configuration) not in kernels:
                kernels.append((answer.space, answer.configuration))
        built = [
            [(engine if space == SPACE else beside).compile(each, problem.signature) for space, each in kernels]
            for problem, kernels in zip(problems, listed, strict=True)
        ]
        report |= {"device": engine.product, "protocol": engine.protocol, "versions": dict(engine.versions)}
        listing = zip(problems, answers, listed, built, strict=True)
        for problem, answer, kernels, futures in clock.in_time(listing):
            one: dict[str, Any] = {"problem": str(problem)}
            try:
                if kernels:
                    race = raced(engine, problem, list(zip(kernels, map(_built, futures), strict=True)), wanted.seed)
                    one |= race
            except CannotMeasureError as error:
                _LOG.warning("%s", error)
                continue
            if wanted.always:
                one |= {"configuration": dict(kernels[0][1]), "speed": one["speeds"][0]}
            if answer is not None:
                at = kernels.index((answer.space, answer.configuration))
                one["answer"] = {"space": answer.space, "configuration": dict(answer.configuration)}
                one |= {"expected": answer.gain, "answer_speed": one["speeds"][at]}
            found.append(one)
            shown = f"{one['answer_speed']:.3f}" if answer is not None else "the library runs, 1"
            console.print(f"{problem}: {shown} of the library's speed", highlight=False)
            run.keep(report)
    report["figures"] = told(found)
    print_figures(report["figures"])
    run.keep(report)


def _built(future: Future[Artifact | CompileFailure]) -> Artifact:
    """The artifact, once it is compiled.

    Raises
    ------
    CannotMeasureError
        If it does not compile.
    """
    built = future.result()
    if not isinstance(built, Artifact):
        raise CannotMeasureError(built.error)
    return built
