"""Tune other people's kernels, and compare with what their own libraries choose.

    python -m tilescout.experiments.peer_kernels --out peers.json

On this machine's GPU, an H200, for `quack_sm90` and `cutlass_operators` on some problems of the suite ``recorded``.
First what the libraries would choose of their own configurations, each timed once and their way: Quack's 44 by the
function that its autotuner times with, the 24 Hopper operators by TorchInductor's benchmarker. Then `tilescout tune`,
its first trials the default and those configurations, with the race at its end. Last our answer, the library's default
and its choice run against each other and cuBLAS in interleaved rounds.
"""

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tilescout.experiments.compare.rankings import ranked
from tilescout.search.evaluate.artifacts import Artifact, ArtifactStore
from tilescout.search.evaluate.compile import CompileOptions, CompilePool
from tilescout.search.evaluate.live import LiveEvaluator
from tilescout.search.evaluate.machine import CudaMachine
from tilescout.search.evaluate.protocol import VERSION
from tilescout.search.evaluate.runtime import Launch, load_launch, load_runtime_libraries
from tilescout.search.loop import Budget
from tilescout.search.race import RaceOptions, run_race
from tilescout.search.records import StudyInfo
from tilescout.search.store import STORE, artifacts, studies
from tilescout.search.tuning import TuneOptions, run_study
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.libraries.bare import without_init
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import find_workload

PROBLEMS = ("4096x4096x4096:bf16", "16x4096x4096:bf16", "64x8192x8192:bf16", "256x4096x14336:bf16")
SPACES = ("quack_sm90", "cutlass_operators")


def listed(template: KernelTemplate, space: SearchSpace) -> list[int]:
    """The configurations among which the library itself chooses, in its order."""
    if template.name == "quack_sm90":
        return ranked(template, space, "quack")
    default = template.default(space.problem, space.device)
    same = (space.columns["swizzle"] == default["swizzle"]) & (space.columns["raster"] == default["raster"])
    return [int(index) for index in same.nonzero()[0]]


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
    return float(_bench_cuda_graph_l2_rotate(lambda a, b, d: launch((a, b), d), *sets, extra_kwargs={}))


def time_as_inductor(launch: Launch, a: Any, b: Any, d: Any) -> float:
    """Milliseconds of a launch as TorchInductor's autotuner takes them."""
    from torch._inductor.runtime.benchmarking import benchmarker

    return float(benchmarker.benchmark_gpu(lambda: launch((a, b), d)))


def choose(space: str, problems: Sequence[str], built: Sequence[tuple[str, str, str, int]]) -> dict[str, list[float]]:
    """Times of compiled configurations (library, checksum, function, blocks of a cluster) on each problem, in ms."""
    import torch

    machine, workload = CudaMachine(0), find_template(space).workload
    load_runtime_libraries()
    launches = [
        load_launch(Path(library), checksum, function, workload, machine.max_clusters(blocks))
        for library, checksum, function, blocks in built
    ]
    generator = torch.Generator(machine.device).manual_seed(0)
    measure = time_as_quack if space == "quack_sm90" else time_as_inductor
    found = {}
    for text in problems:
        gemm, problem = find_workload(workload), GemmProblem.parse(text)
        (a, b), output = gemm.inputs(problem, generator), gemm.output(problem, machine.device)
        warm_until = time.monotonic() + 0.2  # as Quack does
        while time.monotonic() < warm_until:
            gemm.run_library(problem, (a, b), output)
            machine.synchronize()
        found[text] = [measure(launch, a, b, output) for launch in launches]
    return found


def choices_of(
    template: KernelTemplate, pool: CompilePool, problems: Sequence[str]
) -> dict[str, tuple[Configuration, list[float]]]:
    """The library's own choice for each problem, and the times in ms that it chose by."""
    space = template.space(GemmProblem.parse(problems[0]), find_device("h200"))
    configurations = [space[index] for index in listed(template, space)]
    submitted = {configuration: pool.submit(configuration) for configuration in configurations}
    outcomes = {configuration: future.result() for configuration, future in submitted.items()}
    failed = [str(c) for c, kernel in outcomes.items() if not isinstance(kernel, Artifact)]
    print(f"{template.name}: {len(outcomes)} listed, do not compile: {failed}", flush=True)
    compiled = {c: kernel for c, kernel in outcomes.items() if isinstance(kernel, Artifact)}
    configurations = list(compiled)
    built = [(str(k.path), k.sha256, k.function, template.blocks_per_cluster(c)) for c, k in compiled.items()]
    # In a process of its own: while another process has the GPU, times spread.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        times = process.submit(choose, template.name, problems, built).result()
    return {problem: (configurations[row.index(min(row))], row) for problem, row in times.items()}


def compare(template: KernelTemplate, problem: str, theirs: Configuration, store: Path, trials: int) -> dict[str, Any]:
    """Tune, then race our answer against the library's default and its choice; the outcome as JSON."""
    from tilescout.search.tracking import MlflowTracker, default_store

    uri, root = default_store(store)

    def make_tracker(info: StudyInfo, run_id: str | None) -> MlflowTracker:
        return MlflowTracker(uri, root, info, run_id)

    with LiveEvaluator(template, GemmProblem.parse(problem), artifacts(store)) as evaluator:
        space = evaluator.space
        first = listed(template, space)
        options = TuneOptions("tpe", 0, Budget(min(trials, len(space))), studies(store), first=first)
        result = run_study(template, evaluator, options, make_tracker)
        assert result.best is not None
        default = space.index(template.default(space.problem, space.device))
        named = {"ours": result.best.index, "their default": default, "their choice": space.index(theirs)}
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


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", action="append", choices=SPACES, help="repeatable; without it: both")
    parser.add_argument("--problem", action="append", help=f"repeatable; without it: {', '.join(PROBLEMS)}")
    parser.add_argument("--trials", type=int, default=128, help="of a search; its list of theirs comes first")
    parser.add_argument("--store", type=Path, default=STORE, help="folder of compiled kernels, studies and MLflow")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    spaces = arguments.space or SPACES
    problems = [str(GemmProblem.parse(text)) for text in arguments.problem or PROBLEMS]

    started = time.monotonic()
    report: dict[str, Any] = {"protocol": VERSION}
    kernels = ArtifactStore(artifacts(arguments.store))
    signature, arch = GemmProblem.parse(problems[0]).signature, find_device("h200").arch
    theirs = {}
    for name in spaces:
        template = find_template(name)
        with CompilePool(template, signature, arch, kernels, CompileOptions()) as pool:
            theirs[name] = choices_of(template, pool, problems)
        print(f"{name}: chosen after {time.monotonic() - started:.0f} s", flush=True)
    report["chosen by, in ms"] = {name: {p: row for p, (_, row) in found.items()} for name, found in theirs.items()}
    report["problems"] = {}
    for problem in problems:
        for name in spaces:
            chosen = theirs[name][problem][0]
            outcome = compare(find_template(name), problem, chosen, arguments.store, arguments.trials)
            report["problems"].setdefault(problem, {})[name] = outcome
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
            if outcome["not tracked"]:
                print(outcome["not tracked"], flush=True)
            speeds = ", ".join(
                f"{who} {speed['value']:.4f} [{speed['low']:.4f}, {speed['high']:.4f}]"
                for who, speed in outcome["speedup_over_library"].items()
            )
            seconds = time.monotonic() - started
            print(f"{seconds:4.0f} s {problem:>20} {name:<18} {outcome['winner']} wins: {speeds}", flush=True)


if __name__ == "__main__":
    main()
