"""Check the softmax kernels on a GPU, tune them, and compare them with torch's.

    python -m tilescout.experiments.research softmax check --out check.json
    python -m tilescout.experiments.research softmax tune 8192x8192:bf16 ... --out FOLDER
    python -m tilescout.experiments.research softmax peers 8192x8192:bf16 ... --tuned FOLDER --out peers.json

- ``check`` verifies random configurations on problems of odd sizes.
- ``tune`` searches as ``tilescout tune`` does, for many problems in one process, and writes FOLDER/8192x8192-bf16.json.
- ``peers`` times the default and the tuned configuration, ``torch.softmax``, and its compiled form without and with
  autotuning, in interleaved rounds. All are relative to a copy of the same bytes beside them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.kernels import CHAINS, LIVE_CHAINS
from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.loading import Launch, load_launch
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.jobs import make_job
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.machine import Machine, make_machine
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import VERSION, ProtocolOptions
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import BuildError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import Tensors, load_workload

if TYPE_CHECKING:
    import torch

Compile = Callable[[RowwiseProblem, Configuration], Callable[[], Artifact | CompileFailure]]
"""Starts compiling a configuration for a problem; what comes back waits for it."""

DEVICE = DEVICES["h200"]  # the rules are those of every Hopper GPU
TEMPLATE = find_template("softmax_sm90")
WORKLOAD = load_workload(TEMPLATE.workload)
ODD_PROBLEMS = (
    "1x1:bf16", "5x3:fp32", "389x24:bf16", "1000x1000:bf16", "77x1001:bf16", "129x8192:bf16", "33x8190:fp16",
    "300x2048:fp16", "64x50257:bf16", "3x131072:bf16", "19x65540:fp32", "100x4100:fp32", "211x1023:fp32",
    "2x1048576:bf16", "7x300000:fp32",
)  # fmt: skip
UNBEATEN = 0.01  # a ratio that no kernel reaches: with it as the incumbent a right one is verified, and not timed
ROUNDS, PAIRS = 20, 5


@contextmanager
def compilers(store: Path) -> Iterator[Compile]:
    """Compilers for every type, with one process a core in all."""
    pools: dict[str, CompilePool] = {}
    kept = ArtifactStore(store)

    def submit(problem: RowwiseProblem, configuration: Configuration) -> Callable[[], Artifact | CompileFailure]:
        name = problem.signature
        if name not in pools:
            pools[name] = CompilePool(TEMPLATE, name, DEVICE.arch, kept, CompileOptions())
        return pools[name].submit(configuration).result

    try:
        yield submit
    finally:
        for pool in pools.values():
            pool.close()


def check(sample: int, seed: int, store: Path) -> dict[str, Any]:
    """Verify the default and `sample` random configurations of every odd problem; say what failed."""
    generator, options = np.random.default_rng(seed), ProtocolOptions(heating_us=1000.0)
    tried, errors, failed = 0, [], []
    with compilers(store) as submit, MeasuringProcess("cuda", timeout=60) as process:
        waiting = []
        for problem in map(RowwiseProblem.parse, ODD_PROBLEMS):
            space = TEMPLATE.space(problem, DEVICE)
            drawn = [space[int(index)] for index in space.sample(sample, generator)]
            chosen = dict.fromkeys([TEMPLATE.default(problem, DEVICE), *drawn])
            waiting.append((problem, [(each, submit(problem, each)) for each in chosen]))
        for problem, kernels in waiting:
            library_us = process.prepare(TEMPLATE.workload, str(problem), options)
            for configuration, built in kernels:
                artifact = built()
                if isinstance(artifact, CompileFailure):
                    outcome = Measurement.of_failure(artifact)
                else:
                    job = make_job(TEMPLATE, configuration, artifact, problem, library_us, options)
                    outcome = process.measure(replace(job, incumbent=UNBEATEN))
                tried += 1
                errors.append(outcome.relative_error or 0.0)
                if outcome.failed:
                    failed.append(f"{problem}: {configuration}: {outcome.status}: {outcome.error}")
                    print(failed[-1], flush=True)
    print(f"{tried} kernels on {len(ODD_PROBLEMS)} problems: {len(failed)} failed, largest error {max(errors):.2g}")
    return {"problems": ODD_PROBLEMS, "kernels": tried, "failed": failed, "largest_relative_error": max(errors)}


def tune(texts: Sequence[str], trials: int, store: Path, out: Path) -> None:
    """Search the space of every problem; write what was found to the folder `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with LocalEngine(TEMPLATE, artifacts(store), options=LIVE_CHAINS) as engine:
        for problem in map(RowwiseProblem.parse, texts):
            with Evaluator(engine, problem) as evaluator:
                result = run_study(evaluator, TuneOptions("tpe", 0, Budget(trials), studies(store)))
            (out / file_of(problem)).write_text(json.dumps(result.to_dict(), indent=2) + "\n")
            print(f"{problem!s:>17}  {len(result.trials)} trials in {result.seconds:.1f} s", flush=True)


def file_of(problem: RowwiseProblem) -> str:
    """Name of the file of a problem's result."""
    return f"{str(problem).replace(':', '-')}.json"


def peers(texts: Sequence[str], tuned: Path | None, store: Path, run: Run) -> None:
    """Time all contenders on every problem relative to a copy, with 95 % intervals; keep the result after each."""
    machine = make_machine("cuda")
    result: dict[str, Any] = {"device": machine.name, "versions": machine.versions(), "protocol": VERSION}
    result |= {"rounds": ROUNDS, "pairs": PAIRS, "problems": {}}
    chosen = {RowwiseProblem.parse(text): configurations(text, tuned) for text in texts}
    with compilers(store) as submit:
        built = {
            problem: {name: submit(problem, each) for name, each in named.items()} for problem, named in chosen.items()
        }
        ours = {problem: {name: wait() for name, wait in named.items()} for problem, named in built.items()}
    for problem, named in ours.items():
        launches = {name: loaded(machine, chosen[problem][name], each) for name, each in named.items()}
        record = side_by_side(machine, problem, launches)
        record["configurations"] = {name: dict(each) for name, each in chosen[problem].items()}
        result["problems"][str(problem)] = record
        run.keep(result)
        shares = "  ".join(f"{name} {found['value']:.4f}" for name, found in record["bandwidth_fraction"].items())
        print(f"{problem!s:>17}  copy {record['copy_us']:7.2f} us  {shares}", flush=True)


def side_by_side(machine: Machine, problem: RowwiseProblem, ours: Mapping[str, Launch]) -> dict[str, Any]:
    """The shares of the copy's bandwidth that our kernels, once verified, and torch's reach."""
    bench = Bench(machine, WORKLOAD, problem, CHAINS)
    for launch in ours.values():
        bench.verify(launch, edge=True)
    launches = dict(ours) | {"torch.softmax": eager, "torch.compile": inductor("default")}
    launches["torch.compile, autotuned"] = inductor("max-autotune-no-cudagraphs")
    for launch in launches.values():  # compiles it
        launch(*operands(bench))
    ratios = bench.race(list(launches.values()), ROUNDS, PAIRS, seed=0)
    return {
        "copy_us": bench.library_us,
        "copy_terabytes_per_second": problem.rate.at(bench.library_us),
        "bandwidth_fraction": {name: share(column) for name, column in zip(launches, ratios.T, strict=True)},
    }


def configurations(text: str, tuned: Path | None) -> dict[str, Configuration]:
    """Our configurations of a problem: the default, and the tuned one where there is one."""
    problem = RowwiseProblem.parse(text)
    found = {"default": TEMPLATE.default(problem, DEVICE)}
    path = tuned / file_of(problem) if tuned is not None else None
    if path is not None and path.exists():
        found["tuned"] = Configuration.of(json.loads(path.read_text())["best"]["configuration"])
    return found


def loaded(machine: Machine, configuration: Configuration, built: Artifact | CompileFailure) -> Launch:
    """The launch of a compiled configuration."""
    if isinstance(built, CompileFailure):
        raise BuildError(f"{configuration} does not compile: {built.error}")
    clusters = machine.max_clusters(TEMPLATE.blocks_per_cluster(configuration))
    return load_launch(built.path, built.sha256, built.function, TEMPLATE.workload, clusters)


def eager(inputs: Tensors, output: "torch.Tensor") -> None:
    """Run torch's own softmax."""
    import torch

    torch.softmax(inputs[0], dim=1, out=output)


def inductor(mode: str) -> Launch:
    """Compile the softmax by TorchInductor, for static sizes; it allocates its output, as it does in a model."""
    import torch

    torch._dynamo.reset()  # there is a limit to how often a function is compiled anew
    compiled = torch.compile(lambda x: torch.softmax(x, dim=1), dynamic=False, mode=mode)

    def launch(inputs: Tensors, output: "torch.Tensor") -> None:
        compiled(inputs[0])

    return launch


def operands(bench: Bench) -> tuple[Tensors, "torch.Tensor"]:
    """An input and an output of the problem."""
    import torch

    device = bench.machine.device
    return WORKLOAD.inputs(bench.problem, torch.Generator(device)), WORKLOAD.output(bench.problem, device)


def share(ratios: Any) -> dict[str, float]:
    """The share of the copy's bandwidth, with its 95 % interval."""
    ratio, low, high = mean_interval(ratios.tolist())
    return {"value": 1 / ratio, "low": 1 / high, "high": 1 / low}


@study(GPU, out_required=True)
@click.argument("part", type=click.Choice(["check", "tune", "peers"]))
@click.argument("problems", nargs=-1)
@click.option("--sample", default=8, show_default=True, help="Random configurations of a problem that are checked.")
@click.option("--trials", default=48, show_default=True, help="Trials of a search.")
@click.option("--tuned", type=click.Path(path_type=Path), help="The folder that `tune` wrote, for `peers`.")
@seed_option
@store_option
def main(
    run: Run, part: str, problems: tuple[str, ...], sample: int, trials: int, tuned: Path | None, seed: int, store: Path
) -> None:
    """Check, tune, or compare with others."""
    assert run.out is not None
    if part == "tune":
        tune(problems, trials, store, run.out)
    elif part == "peers":
        peers(problems, tuned, artifacts(store), run)
    else:
        run.keep(check(sample, seed, artifacts(store)))
