"""Race default configurations against the library, on problems that nothing was chosen on.

    python -m tilescout.experiments.research default-live --seed 71 --out default.json

The problems are drawn by a seed as those of the suite `out-of-sample`, of published models that no suite holds, some of
them with 8-bit elements. Each default is compiled, verified and raced against what `torch.mm` or `torch._scaled_mm`
runs. Nothing is searched. Beside it stands what comes of running the default only where it is expected to be faster
than the library by a margin (`tilescout.spaces.gemm_sm90.gain`).
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.arrays import Floats
from tilescout.experiments.commands.options import Finite, seed_option, store_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.experiments.research.studies.draw_problems import drawn
from tilescout.search.build.artifacts import Artifact
from tilescout.search.dispatch.measuring import SWEEPING
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.gain import MARGIN
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template

_LOG = logging.getLogger(__name__)

SPACE, KEPT_OUT = "gemm_sm90", "out-of-sample"
FP8 = "e4m3-bf16"
ROUNDS = 12
SLOW = 0.95
_NARROWEST = 16


def asked(seed: int, count: int, fp8: int) -> list[GemmProblem]:
    """Problems that are drawn by a seed, of all kinds in turns; the last `fp8` of them have 8-bit elements.

    Raises
    ------
    ProblemError
        If the suite has all of them.
    """
    judged = set(find_suite(KEPT_OUT).problems)
    kinds: dict[str, list[str]] = {}
    for entry in drawn(seed):
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
    engine: Engine, problem: GemmProblem, default: Configuration, artifact: Artifact, seed: int
) -> dict[str, Any]:
    """The library's time, and those of a default over it in each round of a race.

    Raises
    ------
    CannotMeasureError
        If it is wrong or fails.
    """
    library_us = engine.prepare(0, problem).result()
    task = Task(default, artifact, problem, library_us)
    outcome = engine.measure(0, [task]).result()[0]
    if outcome.timing is None:
        raise CannotMeasureError(f"{problem}: {outcome.error}")
    rounds = engine.race(0, [task], ROUNDS, 1, seed).result()[:, 0]
    speed = float(np.exp(-np.log(rounds).mean()))
    return {"library_us": library_us, "speed": speed, "rounds": rounds.tolist()}


def figures(speeds: Floats, expected: Floats) -> dict[str, float]:
    """Speeds over the library's: of the default, and where it runs only where it is expected to be faster."""
    runs = expected > MARGIN
    kept = np.where(runs, speeds, 1.0)
    return {
        "problems": len(speeds),
        "default": float(np.exp(np.log(speeds).mean())),
        "default_least": float(speeds.min()),
        "default_slow": int((speeds < SLOW).sum()),
        "runs": int(runs.sum()),
        "chosen": float(np.exp(np.log(kept).mean())),
        "chosen_least": float(kept.min()),
        "chosen_slow": int((kept < SLOW).sum()),
    }


def by_type(problems: Sequence[str], speeds: Floats, expected: Floats) -> dict[str, dict[str, float]]:
    """The figures of the problems of each type, and of all."""
    types = np.array([text.partition(":")[2] for text in problems])
    kinds = {name: types == name for name in dict.fromkeys(types.tolist())} | {"all": np.ones(len(types), dtype=bool)}
    return {name: figures(speeds[kind], expected[kind]) for name, kind in kinds.items()}


def print_figures(told: Mapping[str, Mapping[str, float]]) -> None:
    """Print the figures by type."""
    grid = Grid(title="speed over the library's: geometric mean, least, and how many are below 0.95")
    for heading in ("type", "problems", "default, always", "runs on", "default or library"):
        grid.add_column(heading, justify="right")
    for name, one in told.items():
        always, chosen = (
            f"{one[key]:.3f}, {one[f'{key}_least']:.3f}, {one[f'{key}_slow']}" for key in ("default", "chosen")
        )
        grid.add_row(name, str(one["problems"]), always, str(one["runs"]), chosen)
    Console(width=120).print(grid)


def told(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The figures of problems that were raced."""
    speeds, expected = (np.array([each[key] for each in found]) for key in ("speed", "expected"))
    return by_type([each["problem"] for each in found], speeds, expected)


@study(GPU_OR_RECORD, again=True)
@click.option("--count", type=click.IntRange(1, 40), default=40, show_default=True, help="Problems to draw.")
@click.option("--fp8", type=click.IntRange(min=0), default=10, show_default=True, help="Of them, with 8-bit elements.")
@click.option("--seconds", type=Finite(min=0), default=80.0, show_default=True, help="To race for.")
@device_option
@seed_option
@store_option
def main(run: Run, count: int, fp8: int, seconds: float, device: str, seed: int, store: Path) -> None:
    """Race the default of each problem."""
    if run.record is not None:
        print_figures(told(run.record.result["problems"]))
        return
    problems = asked(seed, count, min(fp8, count))
    template = find_template(SPACE)
    started, console = time.monotonic(), Console(width=120)
    found: list[dict[str, Any]] = []
    report: dict[str, Any] = {"problems": found}
    with LocalEngine(template, artifacts(store), [device], options=SWEEPING) as engine:
        defaults = [engine.default(problem) for problem in problems]
        built = [engine.compile(each, problem.signature) for each, problem in zip(defaults, problems, strict=True)]
        report |= {"device": engine.product, "protocol": engine.protocol, "versions": dict(engine.versions)}
        for problem, default, future in zip(problems, defaults, built, strict=True):
            if time.monotonic() - started > seconds:
                break
            artifact = future.result()
            try:
                if not isinstance(artifact, Artifact):
                    raise CannotMeasureError(f"{problem}: {artifact.error}")
                race = raced(engine, problem, default, artifact, seed)
            except CannotMeasureError as error:
                _LOG.warning("%s", error)
                continue
            expected = template.gain(problem, engine.device)
            found.append({"problem": str(problem), "configuration": dict(default), "expected": expected, **race})
            console.print(f"{problem}: {race['speed']:.3f} of the library's speed", highlight=False)
            run.keep(report)
    report["figures"] = told(found)
    print_figures(report["figures"])
    run.keep(report)
