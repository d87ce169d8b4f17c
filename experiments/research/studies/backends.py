"""The kernels of all backends that TorchInductor may choose from, beside ours, on one host in one run.

    python -m tilescout.experiments.research backends --problem 4096x4096x4096:bf16 --out backends.json

On every problem these are found, and then race each other and the library in interleaved rounds:

- "torch.mm": what every speed is over; TorchInductor calls it ATen
- "cuBLASLt, best of its list" and "cuBLASLt, tuned": the best of the heuristic's candidates, and of `tune cublaslt`
- "Triton", "CUTLASS", "CuteDSL", "NVGEMM": what the TorchInductor of this torch chooses when it may have that one alone
- "Quack, tuned": the fastest of the configurations that Quack's own autotuner lists
- "operators, first 10", "operators, ranked", "operators, all": the fastest of the CUTLASS operators that NVGEMM lists,
  when the first 10 are timed, the 4 that our ranker puts first, or all
- "ours, default" and "ours": `gemm_sm90` without a search, and the answer of `tune gemm_sm90`

What this torch or host lacks is said. Beside the speed stands what finding each took: seconds from asking to knowing,
seconds of one core that compiled, and seconds of benchmarking. Kernels are compiled into an empty store. One compiled
kernel of Quack's, the operators' and ours serves all sizes, so that on the second problem of a signature their seconds
are those of benchmarking.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.compare.inference import geometric_mean
from tilescout.experiments.research.inductor_backends import NoBackendError, tune_by
from tilescout.experiments.research.kernels import CHAINS, LIVE_CHAINS
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.nvgemm_ranking import predicted
from tilescout.experiments.research.studies.peer_kernels import listed
from tilescout.search import Budget, tune
from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore
from tilescout.search.build.loading import Launch
from tilescout.search.engines.engine import Engine, Task
from tilescout.search.engines.jobs import make_job
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import VERSION, Objective
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import load_workload

PROBLEMS = (
    *("4096x4096x4096:bf16", "16x4096x4096:bf16", "256x4096x14336:bf16"),
    *("512x1024x4096:bf16:bias+gelu", "1024x4096x4096:e4m3-bf16"),
)
INDUCTOR = {"Triton": "TRITON", "CUTLASS": "CUTLASS", "CuteDSL": "CUTEDSL", "NVGEMM": "NVGEMM"}
TIMED, KEPT = 10, 4  # of the operators: by TorchInductor, and by our ranker
OURS, DEFAULT, OF_LIST, CUBLASLT = "ours", "ours, default", "cuBLASLt, best of its list", "cuBLASLt, tuned"


@dataclass(frozen=True)
class Entrant:
    """A kernel of a space that takes part in the race, and what finding it took.

    Attributes
    ----------
    space, configuration
        What it is.
    seconds, compiling, benchmarking
        From asking to knowing; of one core that compiled; of the GPU.
    """

    space: str
    configuration: Configuration
    seconds: float
    compiling: float
    benchmarking: float

    def to_dict(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return asdict(self) | {"configuration": dict(self.configuration)}


def searched(space: str, problem: GemmProblem, trials: int, device: str, store: Path) -> dict[str, Entrant]:
    """The answer of a search as users run it, and for our kernels the default and the best of the library's list."""
    started = time.monotonic()
    result = tune(
        space,
        problem,
        budget=Budget(trials=trials),
        device=device,
        objective=Objective.CHAIN,
        store=store,
        mlflow=False,
    )
    seconds = time.monotonic() - started
    assert result.best is not None
    cost = (seconds, result.compile_seconds, result.gpu_seconds)
    if space == "cublaslt":
        return {CUBLASLT: Entrant(space, result.best.configuration, *cost)}
    found = {DEFAULT: Entrant(space, result.info.default, 0.0, 0.0, 0.0)}
    if (best := result.library_best) is not None:
        found[OF_LIST] = Entrant(best.space, best.configuration, best.gpu_seconds, 0.0, best.gpu_seconds)
    return found | {OURS: Entrant(space, result.best.configuration, *cost)}


def fastest(engine: Engine, problem: GemmProblem, configurations: Sequence[Configuration]) -> Entrant:
    """The fastest of configurations by its own pairs."""
    started = time.monotonic()
    built = [(each, engine.compile(each, problem.signature)) for each in configurations]
    made = [(each, found) for each, future in built if isinstance(found := future.result(), Artifact)]
    library_us = engine.prepare(0, problem).result()
    tasks = [Task(each, artifact, problem, library_us, math.inf) for each, artifact in made]
    outcomes = engine.measure(0, tasks).result()
    timed = {at: each.timing.ratio for at, each in enumerate(outcomes) if each.timing is not None}
    if not timed:
        raise TilescoutError(
            f"none of {len(configurations)} works: {next((each.error for each in outcomes), 'none compiles')}"
        )
    compiling = sum(artifact.compile_seconds for _, artifact in made)
    benchmarking = sum(each.gpu_seconds for each in outcomes)
    best = made[min(timed, key=lambda at: timed[at])][0]
    return Entrant(engine.template.name, best, time.monotonic() - started, compiling, benchmarking)


def choices(template: KernelTemplate, engine: Engine, problem: GemmProblem) -> dict[str, list[Configuration]]:
    """The kernels of another project among which is chosen, by who chooses."""
    space = engine.space(problem)
    every = [space[index] for index in listed(template, space)]
    if template.name == "quack_sm90":
        return {"Quack, tuned": every}
    ranked = [every[at] for at in np.argsort(predicted(problem), kind="stable")[:KEPT]]
    return {
        f"operators, first {TIMED}": every[:TIMED], f"operators, ranked {KEPT}": ranked, "operators, all": every,
    }  # fmt: skip


def found_by_engines(
    problems: Sequence[GemmProblem], trials: int, device: str, store: Path, say: Any
) -> dict[str, dict[str, Entrant | str]]:
    """Of each problem what each finds among the kernels of spaces, or why nothing."""
    found: dict[str, dict[str, Entrant | str]] = {str(problem): {} for problem in problems}
    for space in ("gemm_sm90", "cublaslt"):
        for problem in problems:
            mine = found[str(problem)]
            try:
                mine |= searched(space, problem, trials, device, store)
            except (TilescoutError, AssertionError) as error:
                mine[OURS if space == "gemm_sm90" else CUBLASLT] = one_line(error) or "nothing works"
            say(f"{problem}: searched {space}")
    for space in ("quack_sm90", "cutlass_operators"):
        template = find_template(space)
        try:
            with LocalEngine(template, artifacts(store), [device], options=LIVE_CHAINS) as engine:
                for problem in problems:
                    mine = found[str(problem)]
                    try:
                        for who, some in choices(template, engine, problem).items():
                            mine[who] = fastest(engine, problem, some)
                    except TilescoutError as error:
                        mine[space] = one_line(error)
                    say(f"{problem}: timed those of {space}")
        except (TilescoutError, ImportError) as error:
            for mine in found.values():
                mine[space] = one_line(error)
    return found


def raced(
    worker: Worker,
    problem: GemmProblem,
    entrants: Mapping[str, Entrant | str],
    store: Path,
    absent: dict[str, str],
    seed: int,
) -> dict[str, Any]:
    """The race of all that there is for a problem, with TorchInductor's kernels, tuned here; ready for JSON."""
    import torch

    workload = find_template("gemm_sm90").workload
    bench = worker.bench(workload, str(problem), CHAINS, None)
    inputs = load_workload(workload).inputs(problem, torch.Generator(worker.machine.device).manual_seed(seed))
    arch, kernels = find_device(worker.machine.name).arch, ArtifactStore(artifacts(store))
    rows: dict[str, dict[str, Any]] = {}
    launches: dict[str, Launch] = {}
    for who, entrant in entrants.items():
        if isinstance(entrant, str):
            rows[who] = {"error": entrant}
            continue
        template = find_template(entrant.space)
        artifact = kernels.find(ArtifactKey.of(template, entrant.configuration, problem.signature, arch))
        assert isinstance(artifact, Artifact)
        job = make_job(template, entrant.configuration, artifact, problem, bench.library_us, CHAINS)
        rows[who], launches[who] = entrant.to_dict(), worker.load(job)
    for who, backend in INDUCTOR.items():
        if backend in absent:
            rows[who] = {"error": absent[backend]}
            continue
        try:
            tuned = tune_by(backend, problem, inputs)
            bench.verify(tuned.launch_into, edge=False)
            rows[who], launches[who] = tuned.to_dict(), tuned.launch
        except NoBackendError as error:
            rows[who] = {"error": one_line(error)}
            absent[backend] = one_line(error)
        except (TilescoutError, RuntimeError) as error:
            rows[who] = {"error": one_line(error)}
    names = list(launches)

    def measure(racing: Sequence[int], rounds: int, pairs: int, at: int) -> NDArray[np.float64]:
        return bench.race([launches[names[number]] for number in racing], rounds, pairs, at)

    first = names.index(OURS) if OURS in names else 0
    race = run_race(range(len(names)), first, measure, RaceOptions(candidates=len(names)), seed)
    for number, ratio in race.ratios.items():
        rows[names[number]]["speed"] = asdict(ratio.inverse())
    return {"library_us": bench.library_us, "rounds": race.rounds, "rows": rows}


def print_speeds(console: Console, found: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, list[float]]:
    """Print the speeds and the costs of all problems, and return the geometric means over those where each works."""
    names = list(dict.fromkeys(who for one in found.values() for who in one["rows"]))
    grid = Grid(
        title="speed over torch.mm by the race; seconds from asking to knowing (of one core compiling, of benchmarking)"
    )
    for heading in ("", *found, "mean"):
        grid.add_column(heading, overflow="fold")
    means = {}
    for who in names:
        cells, speeds = [], []
        for one in found.values():
            row = one["rows"].get(who, {})
            if "speed" not in row:
                cells.append("-")
                continue
            speeds.append(row["speed"]["value"])
            compiling = row.get("compiling", row.get("precompiling"))
            parts = ", ".join("?" if part is None else f"{part:.1f}" for part in (compiling, row.get("benchmarking")))
            cells.append(f"{speeds[-1]:.3f}\n{row['seconds']:.1f} s ({parts})")
        if speeds:
            means[who] = list(geometric_mean(speeds, seed))
        grid.add_row(who, *cells, f"{means[who][0]:.3f} of {len(speeds)}" if speeds else "-")
    console.print(grid)
    for text, one in found.items():
        for who, row in one["rows"].items():
            if "error" in row:
                console.print(f"{text}: {who}: {row['error']}", highlight=False, soft_wrap=True, markup=False)
    return means


@study("an H200, and the extras quack and operators", out_required=True)
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Of each search.")
@click.option("--seconds", type=float, default=170.0, show_default=True, help="Begin no further race after that.")
@click.option("--device", default="cuda", show_default=True, metavar="cuda[:N]", help="The GPU.")
@seed_option
@store_option
def main(run: Run, problems: tuple[str, ...], trials: int, seconds: float, device: str, seed: int, store: Path) -> None:
    """Find the best kernel of every backend for each problem, and race them all."""
    console, started = Console(width=200), time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - started:4.0f} s {line}", highlight=False, soft_wrap=True, markup=False)

    parsed = [GemmProblem.parse(text) for text in problems]
    entrants = found_by_engines(parsed, trials, device, store, say)
    found: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {"protocol": VERSION, "objective": str(Objective.CHAIN), "problems": found}
    worker, absent = Worker(device), dict[str, str]()
    report |= {"device": worker.machine.name, "versions": worker.machine.versions()}
    for problem in parsed:
        if time.monotonic() - started > seconds:
            say(f"{problem}: not begun, {seconds:g} s are over")
            continue
        try:
            found[str(problem)] = raced(worker, problem, entrants[str(problem)], store, absent, seed)
        except (TilescoutError, RuntimeError) as error:
            say(f"{problem}: {one_line(error)}")
            continue
        run.keep(report)
        rows = found[str(problem)]["rows"].items()
        say(f"{problem}: " + ", ".join(f"{who} {row['speed']['value']:.3f}" for who, row in rows if "speed" in row))
    report["means"] = print_speeds(console, found, seed)
    report["seconds"] = time.monotonic() - started
    run.keep(report)
