"""Check grouped products on a GPU, and time them beside what others run.

    python -m tilescout.experiments.research grouped check quack_varlen --out check.json
    python -m tilescout.experiments.research grouped peers quack_varlen 128x4096x1536x2048:bf16:zipf-1 --out peers.json

- ``check`` verifies ``torch._grouped_mm`` and random configurations of a space on problems at the edges: single tokens,
  empty experts, all tokens to one expert, sizes that no tile divides.
- ``peers`` races configurations of spaces, cuBLAS expert by expert (which has to know the sizes on the host), with
  ``--triton N`` for N of the problems the kernel that TorchInductor's autotuning chooses among its Triton kernels, and
  ``torch._grouped_mm`` in interleaved rounds. Of each space it takes the default and, of some configurations, the
  fastest by a first measurement; the race is on draws of the routing that this one did not see. All times are over
  that of ``torch._grouped_mm`` beside them. One measurement is not to be trusted where the card is at its power cap:
  ``--finalists N`` has the N fastest by it race on the same draws, and takes the winner.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import numpy as np

from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.grouped_tuners import QUACK, TRITON, TUNERS
from tilescout.experiments.research.runner import Run, study
from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.loading import Launch
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import ProtocolOptions, is_pruned, protocol_of
from tilescout.search.measure.verification import Case, WrongResultError
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ProblemError, SpaceError, one_line
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import Tensors, Workload, load_workload

if TYPE_CHECKING:
    import torch

DEVICE = DEVICES["h200"]  # the rules are those of every Hopper GPU
WORKLOAD = "tilescout.spaces.grouped:Grouped"
EDGES = (
    "1x1x8x8:bf16:balanced", "7x1x264x72:bf16:one", "128x1x1536x2048:bf16:one", "5x3x584x328:bf16:zipf-1",
    "8x200x264x520:bf16:one", "64x1000x520x1048:bf16:zipf-1.5", "300x700x136x264:bf16:zipf-1",
    "33x4097x1544x776:bf16:balanced", "4x130x72x8:bf16:recorded-129.0.0.1", "6x9x1000x4104:bf16:recorded-0.0.9.0.0.0",
    # k that is long enough for a last wave to be shared: one tile, empty experts, waves before it
    "7x1x264x8200:bf16:one", "14x847x584x6152:bf16:recorded-0.1.0.63.64.65.389.0.0.129.7.2.127.0",
    "12x1500x1544x4104:bf16:zipf-1", "8x1024x4096x14336:bf16:zipf-1", "8x300x4096x14336:bf16:one",
)  # fmt: skip
WRONG_ENDS = (
    (100, 50, 200, 150, 300, 300, 20, 10), (10, 20, 301, 5000, 2**31 - 1, 300, 300, 300), (-5, -300, 0, 7, 7, 7, 7, 7),
)  # fmt: skip
SMALL = GroupedProblem.parse("8x300x520x4104")  # of so many experts as the wrong ends have
UNBEATEN = 0.01  # a ratio that no kernel reaches: with it as the incumbent a right one is verified, and not timed
UNSEEN = 1000  # the first of the draws on which the chosen ones are judged
ROUNDS, PAIRS = 8, 2
QUICK = ProtocolOptions(heating_us=2000.0)


@contextmanager
def compilers(
    templates: Sequence[KernelTemplate], store: Path, signature: str = GroupedProblem.dtype
) -> Iterator[Mapping[str, CompilePool]]:
    """A pool of compilers of a signature for each space, by its name."""
    kept = ArtifactStore(store)
    pools = {each.name: CompilePool(each, signature, DEVICE.arch, kept, CompileOptions()) for each in templates}
    try:
        yield pools
    finally:
        for pool in pools.values():
            pool.close()


def chosen(template: KernelTemplate, problem: GroupedProblem, sample: int, seed: int) -> list[Configuration]:
    """The default of a problem, and random legal configurations."""
    space = template.space(problem, DEVICE)
    drawn = space.sample(min(sample, len(space)), np.random.default_rng(seed))
    default = template.default(problem, DEVICE)
    return list(dict.fromkeys([default, *(space[int(index)] for index in drawn)]))


def check(names: Sequence[str], sample: int, seed: int, store: Path) -> dict[str, Any]:
    """Verify the library, the default and `sample` random configurations of every space on the edge problems."""
    problems, templates = [GroupedProblem.parse(text) for text in EDGES], [find_template(name) for name in names]
    failed, errors, tried = list[str](), list[float](), 0
    with compilers(templates, store) as pools, MeasuringProcess("cuda", timeout=60) as process:
        waiting = [
            (problem, each, pools[template.name].submit(each), template)
            for template in templates
            for problem in problems
            for each in chosen(template, problem, sample, seed)
        ]
        for problem, configuration, built, template in sorted(waiting, key=lambda one: EDGES.index(str(one[0]))):
            artifact = built.result()
            if isinstance(artifact, CompileFailure):
                outcome = Measurement.of_failure(artifact)
            else:
                library_us = process.prepare(template.workload, str(problem), QUICK)
                job = make_job(template, configuration, artifact, problem, library_us, QUICK)
                outcome = process.measure(replace(job, incumbent=UNBEATEN))
            tried += 1
            errors.append(outcome.relative_error or 0.0)
            if outcome.failed:
                failed.append(f"{template.name} {problem}: {configuration}: {outcome.status}: {outcome.error}")
                print(failed[-1], flush=True)
        library = library_errors(problems)  # behind all others: a second process that has the GPU slows them
        failed += [f"torch._grouped_mm: {text}" for text, error in library.items() if isinstance(error, str)]
        careful = {
            each.name: survives(each, pools[each.name], chosen(each, SMALL, sample, seed), SMALL)
            for each in templates
            if each.careful
        }
    failed += [f"{name}: {why}" for name, why in careful.items() if why]
    largest = max(errors, default=0.0)
    print(f"{tried} kernels on {len(EDGES)} problems: {len(failed)} failed, largest error {largest:.2g}", flush=True)
    return {
        "problems": EDGES,
        "library": library,
        "wrong offsets do no harm": [name for name, why in careful.items() if not why],
        "kernels": tried,
        "failed": failed,
        "largest_relative_error": largest,
    }


def survives(
    template: KernelTemplate,
    pool: CompilePool,
    configurations: Sequence[Configuration],
    problem: GroupedProblem,
    ends_of_none: Sequence[Sequence[int]] = WRONG_ENDS,
) -> str:
    """Launch kernels on offsets of 8 experts that are none; say what one did that it must not, or nothing."""
    import torch

    worker = Worker("cuda")
    case = Case.draw(load_workload(template.workload), problem, torch.Generator("cuda").manual_seed(0))
    findings = torch.empty(3, device="cuda")
    for configuration in configurations:
        built = pool.submit(configuration).result()
        if isinstance(built, CompileFailure):
            return f"{configuration}: {built.error}"
        launch = worker.load(make_job(template, configuration, built, problem, 1.0, QUICK))
        for wrong in ends_of_none:
            case.prepare(math.nan, findings)
            ends = torch.tensor((0, *wrong), dtype=torch.int32, device="cuda")[1:]
            launch((*case.inputs[:2], ends, *case.inputs[3:]), case.output)
            try:
                worker.machine.synchronize()
                case.check_bands()
            except (RuntimeError, WrongResultError) as error:
                return f"{configuration}: {wrong}: {one_line(error)}"
    return ""


def library_errors(problems: Sequence[GroupedProblem]) -> dict[str, float | str]:
    """The relative error of ``torch._grouped_mm`` on each problem and on its edge problem, or what went wrong."""
    import torch

    workload, found = Grouped(), dict[str, float | str]()
    generator = torch.Generator("cuda").manual_seed(0)
    for problem in [*problems, workload.edge_problem(problems[0])]:
        inputs = workload.inputs(problem, generator)
        reference, output = workload.reference(problem, inputs), workload.output(problem, generator.device)
        output.fill_(torch.nan)
        try:
            workload.run_library(problem, inputs, output)
        except RuntimeError as refused:
            found[str(problem)] = one_line(refused)
            continue
        error = float((output - reference).norm() / reference.norm())
        found[str(problem)] = error if error <= problem.tolerance else f"relative error {error:.3g}"
        print(f"torch._grouped_mm on {problem}: {found[str(problem)]}", flush=True)
    return found


class Sized(Grouped):
    """The workload, which keeps the sizes of the groups on the host too, for peers that have to know them."""

    def __init__(self) -> None:
        self.ends: dict[int, list[int]] = {}

    def _tokens(self, problem: GroupedProblem, b: "torch.Tensor", generator: "torch.Generator") -> Tensors:
        inputs = super()._tokens(problem, b, generator)
        self.ends[inputs[2].data_ptr()] = inputs[2].tolist()
        return inputs

    def expert_by_expert(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Run a product of cuBLAS for every expert that has tokens."""
        import torch

        a, b, ends = inputs
        start = 0
        for expert, end in enumerate(self.ends[ends.data_ptr()]):
            if start < end:
                torch.mm(a[start:end], b[expert].t(), out=output[start:end])
            start = end


def peers(
    templates: Sequence[KernelTemplate],
    texts: Sequence[str],
    configurations: Mapping[str, Mapping[str, Sequence[Configuration]]],
    pools: Mapping[str, CompilePool],
    options: ProtocolOptions,
    run: Run,
    tuners: Mapping[str, int],
    finalists: int = 1,
) -> None:
    """Race, on every problem, the default and the fastest of each space, and the peers; keep the result after each."""
    built = {
        text: {
            name: [(each, pools[name].submit(each)) for each in those] for name, those in configurations[text].items()
        }
        for text in texts
    }
    worker = Worker("cuda")
    result: dict[str, Any] = {"device": worker.machine.name, "versions": worker.machine.versions()}
    result |= {"protocol": protocol_of(options.objective)[0], "rounds": ROUNDS, "pairs": PAIRS, "problems": {}}
    for number, text in enumerate(texts):
        started, problem = time.perf_counter(), GroupedProblem.parse(text)
        bench = Bench(worker.machine, cast(Workload, Grouped()), problem, options)
        launches: dict[str, Launch] = {}
        record: dict[str, Any] = {"library_us": bench.library_us, "spaces": {}}
        for template in templates:
            rows: list[tuple[dict[str, Any], Launch | None]] = []
            best: float | None = None
            for each, future in built[text][template.name]:
                rows.append(measured(worker, bench, template, each, future.result(), best))
                best = min(best or math.inf, rows[-1][0].get("ratio", math.inf))
            record["spaces"][template.name] = [row for row, _ in rows]
            launches |= {f"{template.name} default": launch for _, launch in rows[:1] if launch is not None}
            launches |= {f"{template.name} best": best for best in fastest_of(rows, bench, finalists)}
        del bench
        worker.machine.release()  # there may be no room for the operands of two
        asked = [name for name, most in tuners.items() if number < most]
        record |= judged(worker, problem, launches, options, asked)
        worker.machine.release()
        record["seconds"] = time.perf_counter() - started
        result["problems"][text] = record
        run.keep(result)
        floor, speeds = record["floor_us"] / record["judged_us"], record["speedup_over_library"]
        shown = "  ".join(
            f"{name} {each['value']:.3f} ({1 / each['value'] / floor:.2f})" for name, each in speeds.items()
        )
        print(f"{text:<40} {record['judged_us']:8.1f} us ({1 / floor:.2f})  {shown}", flush=True)
    print("speeds over torch._grouped_mm, on draws that nothing was chosen on; in brackets the time over the floor")


def fastest_of(rows: Sequence[tuple[dict[str, Any], Launch | None]], bench: Bench, finalists: int) -> list[Launch]:
    """The launch of the fastest row, none if no row was timed; of several finalists the winner of a race.

    The ratios of a race are written into its rows.
    """
    timed = sorted(
        ((row["ratio"], at, launch) for at, (row, launch) in enumerate(rows) if launch is not None),
        key=lambda one: one[:2],
    )
    racing = [(at, launch) for _, at, launch in timed[:finalists]]
    if len(racing) > 1:
        ratios = bench.race([launch for _, launch in racing], ROUNDS, PAIRS, seed=1)
        for (at, _), column in zip(racing, ratios.T, strict=True):
            rows[at][0]["raced"] = math.exp(float(np.log(column).mean()))
    return [launch for _, launch in sorted(racing, key=lambda one: rows[one[0]][0].get("raced", 0.0))[:1]]


def chosen_row(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of the rows of a space, that of the kernel which was taken as the fastest."""
    raced = [row for row in rows if "raced" in row]
    timed = [row for row in rows if "ratio" in row]
    return min(raced, key=lambda row: row["raced"]) if raced else min(timed, key=lambda row: row["ratio"])


def judged(
    worker: Worker,
    problem: GroupedProblem,
    launches: Mapping[str, Launch],
    options: ProtocolOptions,
    tuners: Sequence[str] = (),
) -> dict[str, Any]:
    """Race what was chosen, and other peers, on draws of the routing that nothing was chosen on."""
    import torch

    unseen = replace(problem, first_draw=UNSEEN, last_draw=UNSEEN + problem.last_draw - problem.first_draw)
    workload = Sized()
    bench = Bench(worker.machine, cast(Workload, workload), unseen, options)
    bench.verify(workload.expert_by_expert, edge=True)
    for launch in launches.values():
        bench.verify(launch, edge=False)
    runners: dict[str, Launch] = {**launches, "cuBLAS by expert": workload.expert_by_expert}
    given, seconds = workload.inputs(unseen, torch.Generator(worker.machine.device).manual_seed(0)), {}
    for name in tuners:
        started = time.perf_counter()
        try:
            launch, checked = TUNERS[name](given)
            bench.verify(checked, edge=False)
            runners[name] = launch
        except (SpaceError, WrongResultError) as error:
            print(f"{problem}: {name}: {error}", flush=True)
        seconds[name] = time.perf_counter() - started
    del given
    ratios = bench.race(list(runners.values()), ROUNDS, PAIRS, seed=0)
    return {
        "judged_on": str(unseen),
        "tuner_seconds": seconds,
        "judged_us": bench.library_us,
        "floor_us": Roofline.of(unseen, DEVICE).time_us,
        "speedup_over_library": {name: speed(column.tolist()) for name, column in zip(runners, ratios.T, strict=True)},
    }


def measured(
    worker: Worker,
    bench: Bench,
    template: KernelTemplate,
    configuration: Configuration,
    built: Artifact | CompileFailure,
    incumbent: float | None,
) -> tuple[dict[str, Any], Launch | None]:
    """The outcome of a configuration as JSON, and its launch where it is right and not much slower than the best."""
    row: dict[str, Any] = {"configuration": dict(configuration)}
    if isinstance(built, CompileFailure):
        return row | {"error": built.error}, None
    launch = worker.load(make_job(template, configuration, built, bench.problem, bench.library_us, bench.options))
    try:
        error, pilot = bench.verify(launch, edge=True)
        ratio = bench.pilot(launch) if pilot is None else pilot
        row |= {"relative_error": error, "pilot": ratio}
        if is_pruned([ratio], incumbent, bench.options):
            return row, None
        timing = bench.time(launch, incumbent)
    except WrongResultError as error_found:
        print(f"{template.name}: {configuration}: {error_found}", flush=True)
        return row | {"error": str(error_found)}, None
    return row | {"ratio": timing.ratio, "low": timing.ratio_low, "high": timing.ratio_high}, launch


def speed(ratios: Sequence[float]) -> dict[str, float]:
    """The speed over the library, with its 95 % interval."""
    ratio, low, high = mean_interval(list(ratios))
    return {"value": 1 / ratio, "low": 1 / high, "high": 1 / low}


@study("a Hopper GPU, and the extra quack for its space", out_required=True)
@click.argument("part", type=click.Choice(["check", "peers"]))
@click.argument("spaces")
@click.argument("problems", nargs=-1)
@click.option("--sample", default=8, show_default=True, help="Random configurations of each space and problem.")
@click.option(
    "--configurations", type=click.Path(path_type=Path), help="A JSON list of configurations instead, for `peers`."
)
@click.option(
    "--triton",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Have TorchInductor tune its Triton kernels for so many of the problems too.",
)
@click.option(
    "--quack",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Have Quack's own autotuner tune for so many of the problems too.",
)
@click.option(
    "--finalists",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Of each space, race so many that were the fastest by one measurement, and take the winner.",
)
@seed_option
@store_option
def main(
    run: Run,
    part: str,
    spaces: str,
    problems: tuple[str, ...],
    sample: int,
    configurations: Path | None,
    triton: int,
    quack: int,
    finalists: int,
    seed: int,
    store: Path,
) -> None:
    """Check, or compare with others; SPACES are names joined by commas."""
    names = spaces.split(",")
    if part == "check":
        run.keep(check(names, sample, seed, artifacts(store)))
        return
    texts = [str(GroupedProblem.parse(text)) for text in problems]
    if not texts:
        raise ProblemError("name the problems to compare on")
    templates = [find_template(name) for name in names]
    given = (
        [] if configurations is None else [Configuration.of(each) for each in json.loads(configurations.read_text())]
    )
    wanted = {text: {each.name: of_space(each, text, given, sample, seed) for each in templates} for text in texts}
    with compilers(templates, artifacts(store)) as pools:
        peers(templates, texts, wanted, pools, ProtocolOptions(), run, {QUACK: quack, TRITON: triton}, finalists)
    print(json.dumps(asdict(ProtocolOptions()), default=str))


def of_space(
    template: KernelTemplate, text: str, given: Sequence[Configuration], sample: int, seed: int
) -> list[Configuration]:
    """The configurations of a space to be tried on a problem, its default first: those given, or drawn ones."""
    problem = GroupedProblem.parse(text)
    if not given:
        return chosen(template, problem, sample, seed)
    space = template.space(problem, DEVICE)
    return list(dict.fromkeys([template.default(problem, DEVICE), *(each for each in given if each in space)]))
