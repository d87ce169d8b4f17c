"""Tune the kernels of other projects, and compare with what their own libraries choose.

    python -m tilescout.experiments.research peer-kernels --out peers.json

Runs on `quack_sm90` and `cutlass_operators`, in three steps:

- Each library chooses among its own configurations, timed once in its own way: Quack's 44 by the function that its
  autotuner times with, and also with the splits of k that it can add; the 24 Hopper operators by TorchInductor's
  benchmarker.
- A search as of `tilescout tune`, whose first trials are the default and those configurations, ends with its race.
- Our answer, our best without a split of k, the library's default and the library's choices run against each other and
  cuBLAS in interleaved rounds.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.commands.options import store_option
from tilescout.experiments.compare.rankings import ranked
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.runner import Run, study
from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.loading import Launch, load_launch, load_runtime_libraries
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.machine import CudaMachine
from tilescout.search.measure.protocol import VERSION
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.records import StudyInfo
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import BuildError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.libraries.bare import without_init
from tilescout.spaces.processes import spawn_context
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import load_workload

QUACK_WARMUP_MS = 20.0  # a tenth of Quack's own: kernel follows kernel here, on a GPU that is warm
PROBLEMS = ("4096x4096x4096:bf16", "16x4096x4096:bf16", "64x8192x8192:bf16", "256x4096x14336:bf16")
SPACES = ("quack_sm90", "cutlass_operators")


def listed(template: KernelTemplate, space: SearchSpace) -> list[int]:
    """The configurations among which the package itself chooses, in its order."""
    if template.name == "quack_sm90":
        return ranked(template, space, "quack")
    default = template.default(space.problem, space.device)
    same = (space.columns["swizzle"] == default["swizzle"]) & (space.columns["raster"] == default["raster"])
    return [int(index) for index in same.nonzero()[0]]


def listed_splits(template: KernelTemplate, space: SearchSpace) -> list[int]:
    """Those that Quack's autotuner adds to its list with ``split_k=None``, in its order; none of another package."""
    if template.name != "quack_sm90":
        return []
    split = [{**space[index], "split_k": parts} for index in listed(template, space) for parts in (2, 4, 8, 16)]
    return [space.index(each) for each in split if each in space]


def time_as_quack(launch: Launch, a: Any, b: Any, d: Any) -> float:
    """Milliseconds of a launch as Quack's autotuner takes them: inputs rotated, one mean."""
    without_init("quack")
    from quack.bench.bench_utils import (
        _bench_cuda_graph_l2_rotate,
        _clone_l2_rotate_inputs,
        _pick_l2_rotate_count,
    )

    arguments = (a, b, d)
    sets = _clone_l2_rotate_inputs(arguments, {}, _pick_l2_rotate_count(arguments, {}))
    time_ms = _bench_cuda_graph_l2_rotate(
        lambda a, b, d: launch((a, b), d), *sets, extra_kwargs={}, warmup_target_ms=QUACK_WARMUP_MS
    )
    return float(time_ms)


def time_as_inductor(launch: Launch, a: Any, b: Any, d: Any) -> float:
    """Milliseconds of a launch as TorchInductor's autotuner takes them."""
    from torch._inductor.runtime.benchmarking import benchmarker

    return float(benchmarker.benchmark_gpu(lambda: launch((a, b), d)))


@dataclass(frozen=True)
class Kernel:
    """A compiled configuration, as another process loads it: see `load_launch`."""

    shared_object: str
    sha256: str
    function: str
    blocks_per_cluster: int
    scratch_bytes: int


def choose(space: str, kernels: Mapping[str, Sequence[Kernel]]) -> dict[str, list[float]]:
    """Times, in ms, of compiled configurations of each problem."""
    import torch

    machine, workload = CudaMachine(0), find_template(space).workload
    load_runtime_libraries()
    generator = torch.Generator(machine.device).manual_seed(0)
    measure = time_as_quack if space == "quack_sm90" else time_as_inductor
    found = {}
    for text, built in kernels.items():
        gemm, problem = load_workload(workload), GemmProblem.parse(text)
        (a, b), output = gemm.inputs(problem, generator), gemm.output(problem, machine.device)
        launches = [
            load_launch(
                Path(each.shared_object),
                each.sha256,
                each.function,
                workload,
                machine.max_clusters(each.blocks_per_cluster),
                each.scratch_bytes,
            )
            for each in built
        ]
        warm_until = time.monotonic() + 0.2  # as Quack does
        while time.monotonic() < warm_until:
            gemm.run_library(problem, (a, b), output)
            machine.synchronize()
        found[text] = [measure(launch, a, b, output) for launch in launches]
    return found


Choices = dict[str, Configuration]
"""The choices of a package for a problem: without a split of k and, where it would try some, with them."""


def choices_of(
    template: KernelTemplate, pool: CompilePool, problems: Sequence[str]
) -> tuple[dict[str, Choices], dict[str, list[float]]]:
    """The package's own choices for each problem, and the times in ms that it chose by."""
    candidates: dict[str, list[Configuration]] = {}
    plain: dict[str, int] = {}
    for text in problems:
        space = template.space(GemmProblem.parse(text), find_device("h200"))
        first = listed(template, space)
        candidates[text] = [space[index] for index in first + listed_splits(template, space)]
        plain[text] = len(first)
    submitted = {each: pool.submit(each) for row in candidates.values() for each in row}
    outcomes = {configuration: future.result() for configuration, future in submitted.items()}
    failed = [str(c) for c, kernel in outcomes.items() if not isinstance(kernel, Artifact)]
    print(f"{template.name}: {len(outcomes)} listed, do not compile: {failed}", flush=True)
    if failed:
        raise BuildError(f"{template.name}: {len(failed)} of the configurations that its package lists do not compile")
    kernels = {
        text: [kernel_of(template, GemmProblem.parse(text), each, outcomes[each]) for each in row]
        for text, row in candidates.items()
    }
    # In a process of its own: while another process has the GPU, times spread.
    with ProcessPoolExecutor(1, mp_context=spawn_context()) as process:
        times = process.submit(choose, template.name, kernels).result()
    chosen: dict[str, Choices] = {}
    for text, row in times.items():
        chosen[text] = {"their choice": candidates[text][row.index(min(row[: plain[text]]))]}
        if len(row) > plain[text]:
            chosen[text]["their choice, k split too"] = candidates[text][row.index(min(row))]
    return chosen, times


def kernel_of(
    template: KernelTemplate, problem: GemmProblem, configuration: Configuration, built: Artifact | CompileFailure
) -> Kernel:
    """Describe a compiled configuration so that another process can launch it on a problem."""
    assert isinstance(built, Artifact)
    return Kernel(
        str(built.path),
        built.sha256,
        built.function,
        template.blocks_per_cluster(configuration),
        template.scratch_bytes(configuration, problem),
    )


def compare(engine: Engine, problem: str, theirs: Choices, store: Path, trials: int) -> dict[str, Any]:
    """Tune, then race our answer against the package's default and its choices; the outcome as JSON."""
    from tilescout.search.tracking import MlflowTracker, default_store

    uri, root = default_store(store)

    def make_tracker(info: StudyInfo, run_id: str | None) -> MlflowTracker:
        return MlflowTracker(uri, root, info, run_id)

    template = engine.template
    with Evaluator(engine, GemmProblem.parse(problem)) as evaluator:
        space = evaluator.space
        first = listed(template, space) + listed_splits(template, space)
        options = TuneOptions("tpe", 0, Budget(min(len(first) + trials, len(space))), studies(store), first=first)
        result = run_study(evaluator, options, make_tracker)
        assert result.best is not None
        default = space.index(template.default(space.problem, space.device))
        named = {"ours": result.best.index, "their default": default}
        named |= {name: space.index(configuration) for name, configuration in theirs.items()}
        if "split_k" in result.best.configuration:
            whole = (t for t in result.trials if t.measurement.ok and t.configuration["split_k"] == 1)
            named["ours, k not split"] = min(whole, key=lambda trial: trial.measurement.time_us).index
        runners = list(dict.fromkeys(named.values()))
        race = run_race(runners, default, evaluator.race, RaceOptions(candidates=len(runners)), seed=1)
    speeds = {name: asdict(race.ratios[index].inverse()) for name, index in named.items()}
    return {
        "result": result.to_dict(),
        "same": {name: index == named["ours"] for name, index in named.items()},
        "configurations": {name: dict(space[index]) for name, index in named.items()},
        "speedup_over_library": speeds,
        "rounds": race.rounds,
        "not tracked": result.not_tracked,
        "winner": next(name for name, index in named.items() if index == race.winner),
    }


@study("an H200, and the extras quack and operators", out_required=True)
@click.option(
    "--space", "spaces", type=click.Choice(SPACES), multiple=True, default=SPACES, show_default=True, help="Repeatable."
)
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option("--trials", default=84, show_default=True, help="Trials of a search, after all of theirs.")
@store_option
def main(run: Run, spaces: tuple[str, ...], problems: tuple[str, ...], trials: int, store: Path) -> None:
    """Let the libraries choose, tune, and race the choices, on every problem."""
    named = [str(GemmProblem.parse(text)) for text in problems]
    started = time.monotonic()
    report: dict[str, Any] = {"protocol": VERSION}
    kernels = ArtifactStore(artifacts(store))
    signature, arch = GemmProblem.parse(named[0]).signature, find_device("h200").arch
    theirs, times = {}, {}
    for name in spaces:
        template = find_template(name)
        with CompilePool(template, signature, arch, kernels, CompileOptions()) as pool:
            theirs[name], times[name] = choices_of(template, pool, named)
        print(f"{name}: chosen after {time.monotonic() - started:.0f} s", flush=True)
    report["chosen by, in ms"] = times
    report["problems"] = {}
    for name in spaces:
        with LocalEngine(find_template(name), artifacts(store), options=LIVE_CHAINS) as engine:
            for problem in named:
                outcome = compare(engine, problem, theirs[name][problem], store, trials)
                report["problems"].setdefault(problem, {})[name] = outcome
                run.keep(report)
                if outcome["not tracked"]:
                    print(outcome["not tracked"], flush=True)
                speeds = ", ".join(
                    f"{who} {speed['value']:.4f} [{speed['low']:.4f}, {speed['high']:.4f}]"
                    for who, speed in outcome["speedup_over_library"].items()
                )
                seconds = time.monotonic() - started
                print(f"{seconds:4.0f} s {problem:>20} {name:<18} {outcome['winner']} wins: {speeds}", flush=True)
