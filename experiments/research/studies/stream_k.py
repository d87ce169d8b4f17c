r"""Compare kernels whose clusters share tiles along k with ``gemm_sm90`` and with the library's candidates.

    python -m tilescout.experiments.research stream-k check --out check.json
    python -m tilescout.experiments.research stream-k compare 282x320x24896:bf16 --out compare.json
    python -m tilescout.experiments.research stream-k listed --listed listed.json --out listed-times.json

- ``check`` verifies the default and random configurations of ``gemm_streamk_sm90`` on problems at the edges: some that
  share tiles, some whose tiles have an odd multiple of 8 columns, some whose blocks are launched two by two, and of
  8-bit products some of each promotion.
- ``compare`` times, on every problem, the default, what is tried first and random ones of the shortest estimates; the
  default of ``gemm_sm90``, the fastest rows of its shipped tables if they have the problem, and what its shipped model
  ranks first of its portfolio; and the candidates of cuBLASLt's heuristic. The two fastest of each then race in
  interleaved rounds. The best of a space is the faster by that race: its speed is a little lucky.
- ``listed`` does the same with the configurations that a file names, ``{problem: {space: [[value of a knob, ...]]}}``,
  and times all of them in full.

A kernel that hangs is ended, and is a line of its own. Of each problem all kernels that were tried are kept.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import click
import numpy as np

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import GPU, Run, device_option, study
from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.process import MeasuringProcess, WorkerLostError
from tilescout.search.measure.protocol import Objective, ProtocolOptions, protocol_of
from tilescout.search.measure.worker import Job
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.shipped import named_tables
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_streamk_sm90.layout import STEP
from tilescout.spaces.gemm_streamk_sm90.rules import TWO_BY_TWO, promotion_of
from tilescout.spaces.gemm_streamk_sm90.template import estimated_cycles
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, find_template

SHARING, WHOLE, LIBRARY = "gemm_streamk_sm90", "gemm_sm90", "cublaslt"
DEVICE = DEVICES["h200"]  # the rules are those of every Hopper GPU
EDGES = (
    "8x8x8:bf16", "1x8x4096:bf16", "257x264x2056:bf16", "64x64x16384:bf16:alpha+bias+gelu", "130x520x3000x3:fp16-fp32",
    "512x512x4096:bf16:mn:bias+relu", "1000x1000x1000:bf16:kn", "200x1496x8200:bf16", "300x4096x4096:e4m3",
    "2112x1152x1024:bf16", "2200x2304x1544:bf16-fp32", "4224x1296x2048:e4m3-bf16:alpha", "331x1296x5136:e4m3",
    "1x16x16:e4m3", "73x432x1168:e4m3:bias+silu", "769x3088x4112:e4m3-bf16:alpha+bias",
)  # fmt: skip
UNBEATEN = 0.01  # a ratio that no kernel reaches: with it as the incumbent a right one is verified, and not timed
FINALISTS, ROUNDS, PAIRS = 2, 12, 2
GUESSES = 8  # of the library's heuristic
RANKED = 10  # of the portfolio, by the model
ROWS = 4  # of a table
QUICKEST = 0.03  # the share of a space, by its estimate, that random ones are drawn from
TIMEOUT = 8.0  # s, of a measurement


@dataclass(frozen=True)
class Prepared:
    """A problem that a process is ready to measure kernels of.

    Attributes
    ----------
    process, problem, options
        Who measures, what, and how.
    library_us
        The library's time.
    """

    process: MeasuringProcess
    problem: GemmProblem
    options: ProtocolOptions
    library_us: float

    @classmethod
    def of(cls, process: MeasuringProcess, problem: GemmProblem, options: ProtocolOptions) -> Self:
        """A problem that a process gets ready for now."""
        return cls(process, problem, options, process.prepare(find_template(SHARING).workload, str(problem), options))

    def measured(
        self,
        template: KernelTemplate,
        configuration: Configuration,
        built: Artifact | CompileFailure,
        incumbent: float | None,
    ) -> tuple[Job | None, Measurement]:
        """The job of measuring a kernel, if it compiled, and the outcome."""
        if isinstance(built, CompileFailure):
            return None, Measurement.of_failure(built)
        job = make_job(template, configuration, built, self.problem, self.library_us, self.options)
        return job, self.process.measure(replace(job, incumbent=incumbent))


def check(
    run: Run,
    process: MeasuringProcess,
    submit: Callable[..., Any],
    sample: int,
    seed: int,
    options: ProtocolOptions,
) -> None:
    """Verify kernels on the edge problems, and keep what is known after each; of what fails a line is printed."""
    template, drawn = find_template(SHARING), np.random.default_rng(seed)
    waiting = []
    for problem in map(GemmProblem.parse, EDGES):
        space = template.space(problem, DEVICE)
        of, ways = space.columns, promotion_of(space.columns, problem)
        kinds = [(of["split"] > 1) | (of["stream_k"] > 0), of["tile_n"] % (2 * STEP) > 0, of["raster"] == TWO_BY_TWO]
        kinds += [ways == way for way in np.unique(ways) if problem.element.bytes == 1]
        those = dict.fromkeys([template.default(problem, DEVICE)])
        for kind in map(np.flatnonzero, kinds):
            those |= dict.fromkeys(space[int(at)] for at in drawn.choice(kind, min(sample, len(kind)), replace=False))
        waiting += [(problem, each, submit(template, each, problem.signature)) for each in those]
    rows: list[dict[str, Any]] = []
    for problem, configuration, future in waiting:
        prepared = Prepared.of(process, problem, options)
        _, outcome = prepared.measured(template, configuration, future.result(), UNBEATEN)
        rows.append({"problem": str(problem), "configuration": dict(configuration), "status": str(outcome.status)})
        rows[-1] |= {"error": outcome.error, "relative_error": outcome.relative_error}
        if outcome.failed:
            print(rows[-1], flush=True)
        wrong = sum(row["status"] not in (Status.OK, Status.PRUNED) for row in rows)
        largest = max(float(row["relative_error"] or 0.0) for row in rows)
        run.keep({"kernels": rows, "failed": wrong, "largest_relative_error": largest})
    print(f"{len(rows)} kernels on {len(EDGES)} problems: {wrong} failed, largest error {largest:.2g}", flush=True)


def of_sharing(problem: GemmProblem, sample: int, generator: np.random.Generator) -> list[Configuration]:
    """The configurations of the space to try: the default, its first ones, random ones of the shortest estimates."""
    template = find_template(SHARING)
    space = template.space(problem, DEVICE)
    quickest = np.argsort(estimated_cycles(space.columns, problem, DEVICE), kind="stable")[
        : max(sample, int(QUICKEST * len(space)))
    ]
    drawn = generator.choice(quickest, min(sample, len(quickest)), replace=False)
    first = [*template.first_in(space), *drawn]
    return list(dict.fromkeys([template.default(problem, DEVICE), *(space[int(index)] for index in first)]))


def of_whole(problem: GemmProblem) -> list[Configuration]:
    """The configurations of ``gemm_sm90`` to try."""
    template = find_template(WHOLE)
    found = [template.default(problem, DEVICE)]
    for table in named_tables(template, ()):
        if problem in table.problems:
            rows = table.rows(problem)
            found += [table.configuration(int(row)) for row in rows[np.argsort(table.times_us[rows])[:ROWS]]]
    space = template.space(problem, DEVICE)
    legal = space.subset(np.array([space.index(each) for each in template.portfolio(problem, DEVICE) if each in space]))
    path = shipped_model(WHOLE, "h200")
    assert path is not None
    model, _ = load_model(path)
    ranked = np.argsort(model.predict(space_features(legal, template)).mean)[:RANKED]
    return list(dict.fromkeys([*found, *(legal[int(index)] for index in ranked)]))


def compared(
    process: MeasuringProcess,
    problem: GemmProblem,
    built: Mapping[str, Sequence[tuple[Configuration, Any]]],
    options: ProtocolOptions,
    in_full: bool = False,
) -> dict[str, Any]:
    """Time what was compiled of each space for a problem, `in_full` even where it is slow, and race the fastest."""
    started = time.perf_counter()
    prepared = Prepared.of(process, problem, options)
    record: dict[str, Any] = {"library_us": prepared.library_us, "spaces": {}}
    racing: dict[str, Job] = {}
    for name, those in built.items():
        template, rows, best = find_template(name), [], np.inf
        timed: list[tuple[float, int, Job]] = []
        for at, (configuration, future) in enumerate(those):
            # The default of a space is timed in full, to be reported.
            bar = None if in_full or at == 0 or np.isinf(best) else best
            job, outcome = prepared.measured(template, configuration, future.result(), bar)
            row: dict[str, Any] = {"configuration": dict(configuration), "status": str(outcome.status)}
            row["relative_error"] = outcome.relative_error
            if outcome.timing is not None and job is not None:
                row["ratio"] = outcome.timing.ratio
                best = min(best, outcome.timing.ratio)
                timed.append((outcome.timing.ratio, at, job))
            if outcome.failed:
                row["error"] = outcome.error
                print(f"{problem}: {name}: {' '.join(map(str, configuration.values()))}: {row}", flush=True)
            rows.append(row)
        record["spaces"][name] = rows
        racing |= {f"{name} {at}": job for _, at, job in sorted(timed, key=lambda one: one[:2])[:FINALISTS]}
        racing |= {f"{name} {at}": job for _, at, job in timed if at == 0}
    ratios = process.race(list(racing.values()), ROUNDS, PAIRS, 0)
    record["race"] = {name: speed(column.tolist()) for name, column in zip(racing, ratios.T, strict=True)}
    record["seconds"] = time.perf_counter() - started
    return record


def speed(ratios: Sequence[float]) -> dict[str, float]:
    """The speed over the library, with its 95 % interval."""
    ratio, low, high = mean_interval(list(ratios))
    return {"value": 1 / ratio, "low": 1 / high, "high": 1 / low}


def named(path: Path) -> dict[GemmProblem, dict[str, list[Configuration]]]:
    """The configurations that a file names for each problem and space.

    Raises
    ------
    SpaceError
        If a configuration is not legal.
    """
    found: dict[GemmProblem, dict[str, list[Configuration]]] = {}
    for text, spaces in json.loads(path.read_text()).items():
        problem = GemmProblem.parse(text)
        for name, rows in spaces.items():
            space = find_template(name).space(problem, DEVICE)
            those = [Configuration(tuple(zip((knob.name for knob in space.knobs), row, strict=True))) for row in rows]
            found.setdefault(problem, {})[name] = [space[space.index(each)] for each in those]
    return found


def lines(problems: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The best and the default of each space on every problem, over `torch.mm`, and what the best is."""
    for text, record in problems.items():
        if "race" not in record:
            yield f"{text:<28} {record['error']}"
            continue
        cells, best = [], {}
        for name in record["spaces"]:
            raced = {int(key.split()[1]): one for key, one in record["race"].items() if key.split()[0] == name}
            if raced:
                best[name] = max(raced, key=lambda at: raced[at]["value"])
                default = f" (default {raced[0]['value']:.3f})" if 0 in raced else ""
                cells.append(f"{name} {raced[best[name]]['value']:.3f}{default}")
        chosen = {name: record["spaces"][name][at]["configuration"] for name, at in best.items()}
        shown = "; ".join(" ".join(map(str, one.values())) for one in chosen.values())
        yield f"{text:<28} {record['library_us']:8.2f} us  {'  '.join(cells)} | {shown}"


@study(GPU, out_required=True)
@click.argument("part", type=click.Choice(["check", "compare", "listed"]))
@click.argument("problems", nargs=-1)
@click.option("--listed", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="What ``listed`` times.")
@click.option("--sample", default=4, show_default=True, help="Random configurations of each problem.")
@click.option(
    "--objective",
    type=click.Choice([str(each) for each in Objective]),
    default=str(Objective.CHAIN),
    show_default=True,
    help="What runs around a kernel while it is timed.",
)
@seconds_option(300.0)
@device_option
@seed_option
@store_option
def main(
    run: Run,
    part: str,
    problems: tuple[str, ...],
    listed: Path | None,
    sample: int,
    objective: Objective,
    seconds: float,
    device: str,
    seed: int,
    store: Path,
) -> None:
    """Verify, or compare; see the module."""
    options, generator = ProtocolOptions(objective=Objective(objective)), np.random.default_rng(seed)
    clock, kept = Clock(seconds), ArtifactStore(artifacts(store))
    with ExitStack() as stack:
        pools = {
            name: stack.enter_context(CompilePool(find_template(name), "bf16", DEVICE.arch, kept, CompileOptions()))
            for name in (SHARING, WHOLE, LIBRARY)
        }
        process = stack.enter_context(MeasuringProcess(device, TIMEOUT))

        def submit(template: KernelTemplate, configuration: Configuration, signature: str) -> Any:
            return pools[template.name].submit(configuration, signature)

        if part == "check":
            check(run, process, submit, sample, seed, options)
            return
        if part == "listed":
            if listed is None:
                raise click.UsageError("listed needs a file of configurations: give --listed")
            chosen = named(listed)
        else:
            chosen = {
                problem: {SHARING: of_sharing(problem, sample, generator), WHOLE: of_whole(problem)}
                for problem in map(GemmProblem.parse, problems)
            }
        built = {
            problem: {
                name: [(each, pools[name].submit(each, problem.signature)) for each in those]
                for name, those in spaces.items()
            }
            for problem, spaces in chosen.items()
        }
        found: dict[str, Any] = {}
        result = {"protocol": protocol_of(options.objective)[0], "problems": found, **process.describe()}
        for problem, spaces in clock.in_time(built.items()):
            try:
                known = process.listing(find_template(LIBRARY).loader, str(problem), GUESSES)
                names = [knob.name for knob in find_template(LIBRARY).knobs]
                guesses = [Configuration(tuple(zip(names, row, strict=True))) for row in known.rows]
                own = [(each, pools[LIBRARY].submit(each, problem.signature)) for each in guesses]
                found[str(problem)] = compared(process, problem, {**spaces, LIBRARY: own}, options, part == "listed")
            except (TilescoutError, WorkerLostError) as error:
                found[str(problem)] = {"error": one_line(error)}
            run.keep(result)
            print(*lines({str(problem): found[str(problem)]}), flush=True)
