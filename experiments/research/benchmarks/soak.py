"""Search live for long, with every tenth kernel wrong, hanging, crashing or writing outside its output.

    python -m tilescout.experiments.research soak --out soak.json

Tries 2,000 kernels of `tilescout.experiments.research.faulty_kernels`, each compiled for itself, by the loop and the
processes of any live search, into a study on disk. Says whether

- a trial was lost: is every kernel in the study, and did it end as its fault must
- GPU memory was leaked: what is used before the engine starts, in the course of the search, and after the engine's end
- the ratio of the default drifts: measured before the search and after it, and of the same kernel in its course
"""

import math
import resource
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.options import Finite
from tilescout.experiments.research.faulty_kernels import KNOWN_BY, VARIANTS, FaultyKernels, fault_of
from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.search.build.artifacts import Artifact
from tilescout.search.engines.engine import Engine, LiveOptions, Task
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Status
from tilescout.search.measure.protocol import DEFAULT_OBJECTIVE, Objective, ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.places import study_store
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.trials import finished_trials
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import of_any_problem

PROBLEM = "8192x8192:bf16"
TRIALS = 2000
REPEATS = 9
"""Measurements of the default before the search, and as many after it."""
SETTLING, NEAR = 15.0, 16.0
"""Seconds in which memory must be given back once all processes have ended, and the MiB that may be left."""
SAMPLES = 20
"""How often the GPU's memory is looked at in the course of the search."""


def memory_used() -> float:
    """MiB of memory that are in use on all GPUs; not a number where there is none."""
    if shutil.which("nvidia-smi") is None:
        return math.nan
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60)
    return float(sum(map(float, done.stdout.split())))


def memory_by_process() -> dict[str, float]:
    """MiB of GPU memory by the number of the process that has them, as far as the driver tells; it may hide some."""
    if shutil.which("nvidia-smi") is None:
        return {}
    ask = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60)
    told = (line.split(", ") for line in done.stdout.splitlines())
    return {pid: float(used) for pid, used in told if used.strip().isdecimal()}


def memory_settled(wanted: float) -> list[tuple[float, float]]:
    """Seconds and MiB in use, until no more than what is wanted is, or for `SETTLING` seconds."""
    began, found = time.perf_counter(), list[tuple[float, float]]()
    while not found or (found[-1][1] > wanted + NEAR and found[-1][0] < SETTLING):
        time.sleep(1)
        found.append((time.perf_counter() - began, memory_used()))
    return found


def host_memory() -> float:
    """The most MiB of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured_again(engine: Engine, problem: Problem, library_us: float, repeats: int) -> list[float]:
    """Ratios of the default, measured so many times, each in full and for itself."""
    default = engine.template.default(problem, engine.device)
    built = engine.compile(default, problem.signature).result()
    assert isinstance(built, Artifact), built.error
    task = Task(default, built, problem, library_us)
    outcomes = [engine.measure(0, [task]).result()[0] for _ in range(repeats)]
    return [outcome.timing.ratio for outcome in outcomes if outcome.timing is not None]


def unlike(expected: Mapping[Configuration, frozenset[Status]], found: Sequence[TrialRecord]) -> list[str]:
    """Configurations that have no trial, or two, or one with an end that it must not have; a line for each."""
    counts = Counter(trial.configuration for trial in found)
    wrong = [
        f"{configuration}: {counts[configuration]} trials" for configuration in expected if counts[configuration] != 1
    ]
    return wrong + [
        f"{trial.configuration}: {trial.measurement.status} ({trial.measurement.error})"
        for trial in found
        if trial.measurement.status not in expected[trial.configuration]
    ]


def drift(before: Sequence[float], after: Sequence[float]) -> float:
    """By how much the median of ratios changed, relative."""
    return float(np.median(after) / np.median(before)) - 1 if before and after else math.nan


def soak(
    engine: Engine,
    problem: Problem,
    store: Path,
    expected: Mapping[Configuration, frozenset[Status]],
    like_default: Callable[[Configuration], bool],
    budget: Budget,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """Search all configurations, and say what was lost, leaked and drifted.

    Parameters
    ----------
    engine, problem, store
        What tries configurations, on what, and the folder of the study.
    expected
        How the trial of each configuration may end, in the order of the space.
    like_default
        Whether a configuration is the same kernel as the default.
    budget, repeats
        When the search ends, and how often the default is measured before and after it.
    """
    memory, course = list[tuple[int, float, float]](), list[float]()
    processes = list[dict[str, float]]()
    started = time.perf_counter()

    def on_trial(trial: TrialRecord) -> None:
        if trial.number % max(1, len(expected) // SAMPLES) == 0:
            memory.append((trial.number, memory_used(), host_memory()))
            processes.append(memory_by_process())
        if trial.measurement.timing is not None and like_default(trial.configuration):
            course.append(trial.measurement.timing.ratio)

    with Evaluator(engine, problem) as evaluator:
        before = measured_again(engine, problem, evaluator.library_us(), repeats)
        options = TuneOptions("exhaustive", 0, budget, studies(store), race=RaceOptions(candidates=1, looks=2))
        result = run_study(evaluator, options, on_trial=on_trial)
        after = measured_again(engine, problem, evaluator.library_us(), repeats)
        stored = finished_trials(study_store(studies(store)).load(result.info.name), evaluator.space)
    third = max(1, len(course) // 3)
    early, late = ([used for _, used, _ in part] for part in (memory[: len(memory) // 2], memory[len(memory) // 2 :]))
    return {
        "problem": str(problem),
        "provenance": asdict(engine.provenance),
        "seconds": time.perf_counter() - started,
        "wanted": len(expected),
        "trials": len(result.trials),
        "stored": len(stored),
        "ends": dict(Counter(str(trial.measurement.status) for trial in stored)),
        "unlike": unlike(expected, stored),
        "memory": memory,
        "memory_by_process": processes,
        "memory_growth": float(np.median(late) - np.median(early)) if early and late else math.nan,
        "default_before": before,
        "default_after": after,
        "default_drift": drift(before, after),
        "default_in_course": course,
        "drift_in_course": drift(course[:third], course[-third:]),
        "library_us": result.info.library_us,
        "not_raced": result.not_raced,
    }


@study(GPU)
@click.option("--trials", default=TRIALS, show_default=True, type=click.IntRange(min=1), help="Kernels.")
@click.option("--problem", default=PROBLEM, show_default=True, help="ROWSxCOLUMNS:DTYPE.")
@click.option(
    "--timeout", type=Finite(min=0), default=3.0, show_default=True, help="Seconds until a kernel is taken to hang."
)
@click.option("--seconds", type=Finite(min=0), default=170.0, show_default=True, help="Begin no trial after that.")
@click.option(
    "--objective",
    type=click.Choice([str(each) for each in Objective]),
    default=str(DEFAULT_OBJECTIVE),
    show_default=True,
    help="What runs around a kernel while it is timed.",
)
def main(run: Run, trials: int, problem: str, timeout: float, seconds: float, objective: str) -> None:
    """Search, and print whether something was lost, leaked or drifted."""
    template = FaultyKernels(trials)
    expected = {Configuration.of({"number": number}): KNOWN_BY[fault_of(number)] for number in range(trials)}
    options = LiveOptions(protocol=ProtocolOptions(Objective(objective)), timeout=timeout)
    before = memory_used()
    with TemporaryDirectory() as folder:
        store = Path(folder)
        with LocalEngine(of_any_problem(template), artifacts(store), options=options) as engine:
            result = soak(
                engine,
                template.parse(problem),
                store,
                expected,
                lambda configuration: int(configuration["number"]) % len(VARIANTS) == 0,
                Budget(trials=trials, seconds=seconds),
            )
            result["processes"] = sum(process.starts for process in engine._processes)
    settled = memory_settled(before)
    result |= {
        "memory_before": before,
        "memory_after": settled[-1][1],
        "memory_settled": settled,
        "faults": dict(Counter(map(fault_of, range(trials)))),
    }
    for name, told in told_of(result):
        print(f"{name:>36}  {told}", flush=True)
    run.keep(result)


def told_of(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of the table that is printed."""
    lines = [
        ("trials wanted, had, stored", f"{result['wanted']}, {result['trials']}, {result['stored']}"),
        ("their ends", ", ".join(f"{count} {end}" for end, count in sorted(result["ends"].items()))),
        ("lost, doubled or ended otherwise", str(len(result["unlike"]))),
        ("measuring processes", str(result["processes"])),
        ("GPU memory before and after, MiB", f"{result['memory_before']:.0f}, {result['memory_after']:.0f}"),
        ("its growth in the search, MiB", f"{result['memory_growth']:.0f}"),
        (
            "default's ratio",
            f"{np.median(result['default_before']):.4f} before, {np.median(result['default_after']):.4f} after",
        ),
        ("its drift from before to after", f"{result['default_drift']:+.2%}"),
        (f"the same kernel's in the search ({len(result['default_in_course'])})", f"{result['drift_in_course']:+.2%}"),
        ("host memory, MiB", f"{result['memory'][0][2]:.0f} first, {result['memory'][-1][2]:.0f} last"),
        ("seconds", f"{result['seconds']:.0f}"),
    ]
    return [*lines, *(("unlike", line) for line in result["unlike"][:10])]
