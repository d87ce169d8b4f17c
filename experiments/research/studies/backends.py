"""The kernels of all backends that TorchInductor may choose from, beside ours, on one host in one run.

    python -m tilescout.experiments.research backends --suite recorded --out backends.json

On every problem these are found, and then race each other and the library in interleaved rounds; cuBLASLt's have a
race of their own behind it, which tells what `tune cublaslt` left:

- "torch.mm": what every speed is over; TorchInductor calls it ATen. In e4m3 it is `torch._scaled_mm`, and where the
  problem's accumulation is accurate, "torch.mm, fast sums" is the same with `use_fast_accum=True`: less accurate, and
  no answer to that problem, but what other people's figures are often over
- "cuBLASLt, best of its list" and "cuBLASLt, tuned": the best of the heuristic's candidates, and of `tune cublaslt`
- "cuBLASLt, best of all", with --screen: the best of all of its algorithms that were screened for so many seconds
- "Triton", "CUTLASS", "CuteDSL", "NVGEMM": what the TorchInductor of this torch chooses when it may have that one alone
- "Quack, tuned": the fastest of the configurations that Quack's own autotuner lists
- "operators, first 10", "operators, ranked", "operators, all": the fastest of the CUTLASS operators that NVGEMM lists,
  when the first 10 are timed, the 4 that our ranker puts first, or all
- "ours, default" and "ours": `gemm_sm90` without a search, and the answer of `tune gemm_sm90`, which searches the
  complement of that space too where it may be faster; then the answers of both are rows of their own
- "exported": what an export of these searches names for the problem, which may be an algorithm of cuBLASLt or, where
  nothing was proven, the library itself

What this torch or host lacks is said. Beside the speed stands what finding each took: seconds from asking to knowing,
seconds of one core that compiled, and seconds of benchmarking. Kernels are compiled into an empty store. One compiled
kernel of Quack's, the operators', CUTLASS's and ours serves all sizes, so that on the second problem of a signature
their seconds are those of benchmarking. The processes that compile and measure are started before the first problem.
With --objects, what nvcc made for CUTLASS's is kept between runs, and a row of CUTLASS says what that took once.

With --together, all problems are searched as one suite before the first race, and each search takes its share of the
suite's seconds; a search that ends by itself leaves its trials to the others. Quack's kernels and the operators are
compiled while cuBLASLt's algorithms are searched, so that their seconds are those of benchmarking on all problems.

With --before, the problems of earlier files are kept as they are and not run again, so that several runs make one file;
it says which run each problem is of. Where nothing is left to run, no GPU is needed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tilescout.experiments.commands.options import Finite, collected, seed_option, store_option
from tilescout.experiments.research.backend_entrants import (
    SEARCHED,
    Answers,
    Entrant,
    begin_compiling,
    best_of_all,
    engines_of,
    found_by_engines,
    searched,
)
from tilescout.experiments.research.backend_rows import (
    CUBLASLT,
    EXPORTED,
    FAST,
    LEFT,
    LIBRARIES,
    LIBRARY,
    OF_ALL,
    OURS,
    known_before,
    over_library,
    print_means,
    print_speeds,
    summarised,
)
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.kept_nvcc import KeptObjects, find_nvcc
from tilescout.experiments.research.kernels import CHAINS
from tilescout.experiments.research.runner import Run, device_option, study
from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore
from tilescout.search.build.loading import Launch
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.protocol import VERSION, Objective
from tilescout.search.measure.race import Estimate, Race, RaceOptions, run_race
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inductor.tuning import NoBackendError, Tuned, tune_by
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import Tensors, load_workload

PROBLEMS = (
    *("4096x4096x4096:bf16", "16x4096x4096:bf16", "256x4096x14336:bf16"),
    *("512x1024x4096:bf16:bias+gelu", "1024x4096x4096:e4m3-bf16"),
)
INDUCTOR = {"Triton": "TRITON", "CUTLASS": "CUTLASS", "CuteDSL": "CUTEDSL", "NVGEMM": "NVGEMM"}
CUTLASS_SETTINGS = {
    "cutlass.cutlass_op_allowlist_regex": r"align\d+_warpspecialized_(cooperative|pingpong)_epi_tma",
    "cutlass.cutlass_max_profiling_configs": 14,
}
"""Settings of TorchInductor, in the words of its own configuration, for the kernels of CUTLASS.

It may have those with TMA in their epilogue and without stream-K, 14 of the 66 in bf16: nvcc takes some 40 s of a core
for each. What nvcc compiled serves all sizes: it stays in TorchInductor's cache, or in the folder of --objects.
"""


@dataclass(frozen=True)
class Inductor:
    """A backend of TorchInductor's.

    Attributes
    ----------
    name
        As TorchInductor calls it.
    settings
        Those of its configuration.
    objects
        What its compiler keeps; None if that is TorchInductor's own affair.
    absent
        Why it has no kernel, by the signatures of problems for which it has none.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    objects: KeptObjects | None = None
    absent: dict[str, str] = field(default_factory=dict)

    def tune(self, problem: GemmProblem, inputs: Tensors) -> tuple[Tuned, dict[str, Any]]:
        """Have a problem compiled and tuned; what came of it, and what that took, ready for JSON.

        Raises
        ------
        NoBackendError
            If it has no kernel for such problems; of each signature that is asked once.
        """
        if problem.signature in self.absent:
            raise NoBackendError(self.absent[problem.signature])
        before = self.objects.given() if self.objects is not None else []
        try:
            tuned = tune_by(self.name, problem, inputs, self.settings)
        except NoBackendError as error:
            self.absent[problem.signature] = one_line(error)
            raise
        told = tuned.to_dict()
        if self.objects is not None:
            took = self.objects.spent(self.objects.given()[len(before) :])
            told["compiling"] = sum(each.core_seconds for each in took)
            told["the longest"] = max((each.seconds for each in took), default=0.0)
        return tuned, told


OTHERS = {"Quack": "quack_sm90", "operators": "cutlass_operators"}
LEAVABLE = {"cuBLASLt": "cublaslt", **OTHERS}
"""The spaces that may be left out, by the name that one is left out by; ours always take part."""


def raced(
    worker: Worker,
    problem: GemmProblem,
    entrants: Mapping[str, Entrant | str],
    store: Path,
    seed: int,
    inductor: Mapping[str, Inductor],
) -> dict[str, Any]:
    """The race of all that there is for a problem, with TorchInductor's kernels, tuned here; ready for JSON."""
    import torch

    workload = find_template("gemm_sm90").workload
    bench = worker.bench(workload, str(problem), CHAINS, None)
    inputs = load_workload(workload).inputs(problem, torch.Generator(worker.machine.device).manual_seed(seed))
    rows: dict[str, dict[str, Any]] = {
        who: {"error": one} if isinstance(one, str) else one.to_dict() for who, one in entrants.items()
    }
    runners: dict[str, str] = {}  # a kernel that several have found runs once
    first: dict[tuple[str, Configuration], str] = {}
    launches: dict[str, Launch] = {}
    for who, entrant in entrants.items():
        if not isinstance(entrant, str):
            runners[who] = first.setdefault((entrant.space, entrant.configuration), who)
            if runners[who] == who:
                launches[who] = _load(worker, problem, entrant, ArtifactStore(artifacts(store)), bench.library_us)
    for who, backend in inductor.items():
        try:
            tuned, rows[who] = backend.tune(problem, inputs)
            bench.verify(tuned.launch_into, edge=False)
            launches[who] = tuned.launch
        except (NoBackendError, TilescoutError, RuntimeError) as error:
            rows[who] = {"error": one_line(error)}
    for who, launch in other_sums(problem, workload).items():
        rows[who], launches[who] = {"seconds": 0.0}, launch
    names = list(launches)

    def run(some: Sequence[str], first: str) -> Race:
        def measure(racing: Sequence[int], rounds: int, pairs: int, at: int) -> NDArray[np.float64]:
            return bench.race([launches[some[number]] for number in racing], rounds, pairs, at)

        return run_race(range(len(some)), some.index(first), measure, RaceOptions(candidates=len(some)), seed)

    race = run(names, OURS if OURS in names else names[0])
    for number, ratio in race.ratios.items():
        rows[names[number]]["speed"] = asdict(ratio.inverse())
    for who, runner in runners.items():
        if runner != who:
            rows[who] |= {"speed": rows[runner]["speed"], "the kernel of": runner}
    rows[LIBRARY] = {"seconds": 0.0, "speed": asdict(Estimate(1.0, 1.0, 1.0))}
    if OURS in rows and EXPORTED not in rows:  # nothing was proven, and the library chooses
        rows[EXPORTED] = rows[LIBRARY] | {"the kernel of": LIBRARY}
    report = {"library_us": bench.library_us, "rounds": race.rounds, "rows": rows}
    if CUBLASLT not in runners:
        return report
    # Where ours lead, these have left the race after a heat, which does not tell a per cent between them.
    racers = list(dict.fromkeys(runners[who] for who in LIBRARIES if who in runners))
    final = run(racers, runners[CUBLASLT])
    lead = asdict(final.over_default.inverse())
    return report | {LEFT: {"fastest": racers[final.winner], "rounds": final.rounds, "over the search's": lead}}


def _load(worker: Worker, problem: GemmProblem, entrant: Entrant, kernels: ArtifactStore, library_us: float) -> Launch:
    """A kernel that was compiled for a problem, loaded."""
    template, arch = find_template(entrant.space), find_device(worker.machine.name).arch
    artifact = kernels.find(ArtifactKey.of(template, entrant.configuration, problem.signature, arch))
    assert isinstance(artifact, Artifact)
    return worker.load(make_job(template, entrant.configuration, artifact, problem, library_us, CHAINS))


def other_sums(problem: GemmProblem, workload: str) -> dict[str, Launch]:
    """The library's function with fast accumulation, where a problem's is accurate and might be fast, by its row."""
    if problem.element.bytes != 1 or problem.fast:
        return {}
    return {FAST: partial(load_workload(workload).run_library, replace(problem, fast=True))}


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    problems: tuple[str, ...]
    suites: tuple[str, ...]
    before: tuple[Path, ...]
    trials: int
    screen: float
    seconds: float
    others: bool
    without: tuple[str, ...]
    cutlass: Path | None
    objects: Path | None
    together: bool
    device: str
    seed: int
    store: Path

    @property
    def inductor(self) -> dict[str, Inductor]:
        """The backends of TorchInductor that take part."""
        chosen = {who: Inductor(name) for who, name in INDUCTOR.items() if self.others and who not in self.without}
        if "CUTLASS" in chosen and self.cutlass is not None:
            settings = {"cutlass.cutlass_dir": str(self.cutlass.resolve()), **CUTLASS_SETTINGS}
            objects, nvcc = (KeptObjects(self.objects.resolve()) if self.objects else None), find_nvcc()
            if objects is not None and nvcc is not None:
                settings["cuda.cuda_cxx"] = str(objects.compiler(nvcc))
            chosen["CUTLASS"] = Inductor(INDUCTOR["CUTLASS"], settings, objects if nvcc else None)
        return chosen

    @property
    def spaces(self) -> tuple[str, ...]:
        """The spaces whose kernels take part."""
        left_out = {*self.without, *(() if self.others else OTHERS)}
        chosen = {"ours": "gemm_sm90", **LEAVABLE}
        return tuple(name for who, name in chosen.items() if who not in left_out)

    def parsed(self) -> list[GemmProblem]:
        """The problems, without repeats."""
        found = [GemmProblem.parse(text) for text in self.problems]
        found += [problem for suite in self.suites for problem in find_suite(suite).parsed(GemmProblem.parse)]
        return list(dict.fromkeys(found)) or [GemmProblem.parse(text) for text in (PROBLEMS if not self.before else ())]


@study("an H200, and the extras quack and operators", out_required=True)
@click.option("--problem", "problems", multiple=True, help=f"Repeatable.  [default: {' '.join(PROBLEMS)}]")
@click.option("--suite", "suites", multiple=True, help="A suite of problems; repeatable.")
@click.option(
    "--before",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Keep the problems of this earlier file, and run the others; repeatable.",
)
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Of each search.")
@click.option(
    "--screen",
    type=Finite(min=0),
    default=0.0,
    show_default=True,
    help="Seconds of screening all of cuBLASLt's algorithms.",
)
@seconds_option(170.0)
@click.option(
    "--others/--no-others", default=True, show_default=True, help="Also TorchInductor's, Quack's and the operators."
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice([*INDUCTOR, *LEAVABLE]),
    help="Leave this one out, such as the search of cuBLASLt; repeatable.",
)
@click.option(
    "--cutlass",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="CUTLASS's sources, with python/cutlass_library and include/, for TorchInductor's CUTLASS; nvcc is needed.",
)
@click.option(
    "--objects",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Keep what nvcc makes there for --cutlass, and what it took; what is there is not compiled again.",
)
@click.option(
    "--together",
    is_flag=True,
    help="Search all problems as one suite first, which takes less time; each is said to take its share of that.",
)
@device_option
@seed_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Find the best kernel of every backend for each problem, and race them all."""
    console, clock = Console(width=240), Clock()

    def say(line: str) -> None:
        console.print(f"{clock.spent:4.0f} s {line}", highlight=False, soft_wrap=True, markup=False)

    runs, found = known_before(asked.before)
    left = [problem for problem in asked.parsed() if str(problem) not in found]
    report: dict[str, Any] = {"protocol": VERSION, "objective": str(Objective.CHAIN), "runs": runs, "problems": found}
    run.keep(report)
    if left:
        assert run.record is not None
        runs.append({"about": run.record.about})
        for problem, one in _run_all(left, asked, runs[-1], say):
            found[str(problem)] = one | {"run": len(runs) - 1}
            run.keep(report)
    kinds = {text: _kind(GemmProblem.parse(text)) for text in found}
    for kind in ("all", *dict.fromkeys(kinds.values())):
        of = {text: one for text, one in found.items() if kind in ("all", kinds[text])}
        report.setdefault("means", {})[kind] = summarised(of, asked.seed)
        report.setdefault("over the library's best", {})[kind] = over_library(of, asked.seed)
    print_speeds(console, found, report["over the library's best"])
    print_means(console, report["means"])
    run.keep(report)


def _kind(problem: GemmProblem) -> str:
    return f"{problem.dtype} with an epilogue" if problem.epilogue else problem.dtype


def _run_all(
    problems: Sequence[GemmProblem], asked: Asked, about: dict[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[GemmProblem, dict[str, Any]]]:
    """Yield the findings for each problem that there is time for; the run's device, versions and seconds are noted."""
    clock, inductor = Clock(asked.seconds), asked.inductor
    with ExitStack() as stack:
        engines = engines_of(asked.spaces, asked.store, asked.device, stack)
        worker = Worker(asked.device)
        about |= {"device": worker.machine.name, "versions": worker.machine.versions()}
        searches: dict[str, dict[str, Answers | str]] = {}
        for space, each in engines.items():
            if not asked.together or space not in SEARCHED or isinstance(each, str):
                continue
            if each.template.loader:  # none of its kernels is compiled: the cores are free
                begin_compiling(engines, problems)
            searches[space] = searched(each, problems, asked.trials, asked.store)
            say(f"{space}: {len(problems)} problems searched")
        for problem in problems:
            if clock.left < 0:
                say(f"{problem}: not begun, {asked.seconds:g} s are over")
                continue
            entrants = found_by_engines(engines, problem, asked.trials, asked.store, searches)
            say(f"{problem}: found {', '.join(who for who, one in entrants.items() if not isinstance(one, str))}")
            cublaslt = engines.get("cublaslt")
            try:
                if asked.screen and isinstance(cublaslt, Engine):
                    entrants[OF_ALL] = best_of_all(worker.machine, cublaslt, problem, asked.screen, asked.seed)
                one = raced(worker, problem, entrants, asked.store, asked.seed, inductor)
            except (TilescoutError, RuntimeError) as error:
                say(f"{problem}: {one_line(error)}")
                continue
            about["seconds"] = clock.spent
            rows = one["rows"].items()
            say(f"{problem}: " + ", ".join(f"{who} {row['speed']['value']:.3f}" for who, row in rows if "speed" in row))
            yield problem, one
