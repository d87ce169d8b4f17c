"""One tuning, or one compiling of some kernels, in a process of its own, with the times of all that it waited for.

    python -P -m tilescout.experiments.research.timed_tuning '{"launched": ..., "problem": ...}'

`tilescout.experiments.research.benchmarks.wall_time` starts it, and reads what it prints: `Times`. As `tilescout tune`
does, it has a process that stands by do that, where one is ready.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescout.experiments.commands.standing import TUNING, get_ready
from tilescout.search.build.programs import program, run_ready
from tilescout.search.build.standby import Do, wake

if TYPE_CHECKING:
    from tilescout.search.engines.engine import Engine
    from tilescout.search.tracking.result import TuneResult
    from tilescout.spaces.templates import KernelTemplate

_TIMING = replace(TUNING, entry="tilescout.experiments.research.timed_tuning:ready_to_time")

Span = tuple[float, float]
"""The begin and the end of something, in seconds since the process was launched."""


@dataclass
class Times:
    """When things happened, in seconds since the process was launched.

    Attributes
    ----------
    problem, spaces, cores
        What is tuned, in which spaces, and how many cores the process may use.
    imported
        The modules that set the GPU up were imported; those of the search are imported meanwhile.
    ready, prepared
        The measuring process was there, and the problem was set up on the GPU.
    searched, raced, logged
        The search had its last trial, its race was done and the answer known, and MLflow had all.
    compiling, measuring
        The spans in which a kernel was asked of the compilers and not there, and in which the GPU was at work.
    expecting
        The spans in which a kernel was asked of them that is likely to be asked for later.
    preparing
        The span in which the measuring process and the problem were set up.
    trials, compile_seconds
        Finished trials, or compiled kernels, and the seconds of one core that compiling them took.
    stopped, ratios
        Why the first search ended by itself, and the times of all trials over the library's, those of the first search
        before those of the second; None without a time.
    """

    problem: str = ""
    spaces: list[str] = field(default_factory=list)
    cores: int = 0
    imported: float = 0.0
    ready: float = 0.0
    prepared: float = 0.0
    searched: float = 0.0
    raced: float = 0.0
    logged: float = 0.0
    trials: int = 0
    compile_seconds: float = 0.0
    stopped: str = ""
    ratios: list[float | None] = field(default_factory=list)
    compiling: list[Span] = field(default_factory=list)
    expecting: list[Span] = field(default_factory=list)
    preparing: list[Span] = field(default_factory=list)
    measuring: list[Span] = field(default_factory=list)


def watched(spans: list[Span], now: Callable[[], float], call: Callable[..., "Future[Any]"]) -> Callable[..., Any]:
    """A call of an engine that notes from when to when its future was open."""

    def watch(*arguments: Any, **named: Any) -> "Future[Any]":
        begun = now()
        future = call(*arguments, **named)
        future.add_done_callback(lambda _: spans.append((begun, now())))
        return future

    return watch


def watch(engine: "Engine", times: Times, now: Callable[[], float]) -> None:
    """Note what an engine is asked, from now on, and the one beside it."""
    asked = (
        ("compile", times.compiling),
        ("expect", times.expecting),
        ("prepare", times.preparing),
        ("measure", times.measuring),
    )
    for name, spans in asked:
        setattr(engine, name, watched(spans, now, getattr(engine, name)))
    make = engine.beside

    def beside(template: "KernelTemplate") -> "Engine | None":
        made = make(template)
        if made is not None:
            for name, _ in asked:  # of the engine that it is a copy of
                vars(made).pop(name)
            watch(made, times, now)
        return made

    engine.beside = beside  # type: ignore[method-assign]


def kernels(store: Path) -> int:
    """How many kernels were compiled for an artifact store: those that differ in their launch alone were not."""
    from tilescout.spaces.knobs import Configuration
    from tilescout.spaces.templates import find_template

    found = 0
    for path in store.glob("*/*/artifact.json"):
        record = json.loads(path.read_text())
        template = find_template(record["key"]["space"])
        configuration = Configuration.of(record["key"]["configuration"])
        is_compiled = not template.loader and template.compiled_as(configuration) == configuration
        found += is_compiled and not record["error"]
    return found


def tune(problem: str, store: Path, launched: float, standby: bool) -> Times:
    """Tune a problem as ``tilescout tune --sampler guided`` does, with ``--standby`` or without: in both its spaces."""

    def now() -> float:
        return time.time() - launched

    if standby:
        from tilescout.experiments.commands.early import begin

        begin(())
    from tilescout.search import api
    from tilescout.search.build.compilers import CompileOptions
    from tilescout.search.build.cores import available_cores
    from tilescout.search.build.early import hold_for_next
    from tilescout.search.engines.engine import LiveOptions
    from tilescout.search.engines.selection import make_engine

    times = Times(problem, cores=available_cores(), imported=now())

    def make_watched(*arguments: Any, **named: Any) -> "Engine":
        engine = make_engine(*arguments, **named)
        watch(engine, times, now)

        def note_ready() -> None:
            if engine.versions:  # waits for the measuring process
                times.ready = now()

        threading.Thread(target=note_ready, name="ready", daemon=True).start()
        return engine

    results: list[TuneResult] = []

    def note(result: "TuneResult") -> None:
        times.raced = now()
        hold_for_next()
        results.append(result)

    vars(api)["make_engine"] = make_watched
    live = LiveOptions(CompileOptions(standby=standby))
    api.tune("gemm_sm90", problem, sampler="guided", device="cuda", live=live, store=store, on_result=note)
    times.logged = now()
    trials = [trial for result in results for trial in result.trials]
    times.spaces = [result.info.space for result in results]
    times.trials, times.stopped = len(trials), results[0].stopped
    timings = [trial.measurement.timing for trial in trials]
    times.ratios = [timing.ratio if timing is not None else None for timing in timings]
    times.compile_seconds = sum(trial.measurement.compile_seconds for trial in trials)
    times.prepared = times.preparing[0][1]
    times.searched = max(trial.finished for trial in trials) - launched
    return times


def compile_some(problem: str, count: int, store: Path, launched: float, standby: bool) -> Times:
    """Compile the default and other configurations of a problem, drawn with a fixed seed, without a GPU."""

    def now() -> float:
        return time.time() - launched

    import numpy as np

    from tilescout.search.build.artifacts import Artifact, ArtifactStore
    from tilescout.search.build.compilers import CompileOptions, CompilePool
    from tilescout.search.build.cores import available_cores
    from tilescout.search.studies.folders import artifacts
    from tilescout.spaces.devices import find_device
    from tilescout.spaces.templates import find_template

    times = Times(problem, cores=available_cores(), imported=now())
    template, device = find_template("gemm_sm90"), find_device("h200")
    parsed = template.parse(problem)
    options = CompileOptions(standby=standby)
    with CompilePool(template, parsed.signature, device.arch, ArtifactStore(artifacts(store)), options) as pool:
        pool.start()
        space = template.space(parsed, device)
        drawn = [space[int(index)] for index in space.sample(count - 1, np.random.default_rng(0))]
        times.prepared = now()
        compile_ = watched(times.compiling, now, pool.submit)
        futures = [compile_(each) for each in (template.default(parsed, device), *drawn)]
        built = [future.result() for future in futures]
        times.searched = times.raced = times.logged = now()
    times.trials = sum(isinstance(each, Artifact) for each in built)
    times.compile_seconds = sum(each.compile_seconds for each in built)
    return times


def main() -> None:
    """Do what the arguments ask for, and print the times."""
    asked = json.loads(sys.argv[1])
    asked["store"] = Path(asked["store"])
    times = compile_some(**asked) if "count" in asked else tune(**asked)
    sys.stdout.write(json.dumps(asdict(times)) + "\n")


def ready_to_time() -> Do:
    """Get ready to stand by for `main`, as `tilescout.experiments.commands.standing.ready_to_tune` does."""
    get_ready()
    return program(main)


def run() -> None:
    """Run `main` in a process that stands by, where that is wanted and one is ready; else here."""
    stands_by = json.loads(sys.argv[1])["standby"]
    code = run_ready(_TIMING, sys.argv, heeds=True) if stands_by else None
    if code is None:
        main()
        if stands_by:
            wake(_TIMING)
    sys.exit(code)


if __name__ == "__main__":
    run()
