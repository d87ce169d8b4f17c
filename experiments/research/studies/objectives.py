"""Measure kernels in chains and in sandwiches, and find which of the two predicts the time of a real block.

    python -m tilescout.experiments.research objectives --out objectives/
    python -m tilescout.experiments.research objectives --again objectives/objectives.json

**Side by side.** On every problem of a table, the default configuration and the table's fastest ones are measured by
both objectives, in turns with the library. The figures are speeds over the library.

**Prediction.** Transformer blocks of published sizes run as CUDA graphs: with the library's matrix products, with our
default configuration of each, and with those that the shipped cost model predicts to be fastest among all that were
compiled. Nothing is chosen by a measured time, which would favour the objective that it was measured by. An objective
predicts that the products save the sum of (library's time - ours) of the library's block. What the block really takes,
over the library's block, is measured in turns. The error is the predicted ratio less the measured one.

**The decision**, made before the measurement: `sandwich` becomes the default if its mean absolute error is smaller, and
the 95 % interval of the difference (a bootstrap over six blocks or more) does not hold 0. Otherwise `chain` stays.

The products of the blocks are measured first, then those of the table as far as --seconds goes, then the blocks. A
failure of one problem or block is its result.
"""

import math
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.options import Finite, collected, store_option
from tilescout.experiments.research.block_graphs import graph_of, heat, in_turns, products_of, run_by
from tilescout.experiments.research.kernels import compile_all, finalists
from tilescout.experiments.research.llama_block import BlockSizes, make_block
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.search.build.artifacts import Artifact
from tilescout.search.build.loading import Launch
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import VERSION, Objective, ProtocolOptions
from tilescout.search.measure.worker import Job, Worker
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import load_workload

FILE, SPACE = "objectives.json", "gemm_sm90"
DTYPE = "bf16"
DEFAULT, PREDICTED = "default", "predicted"
MODELS: Mapping[str, BlockSizes] = {
    "llama3-8b": BlockSizes(),
    "qwen3-8b": BlockSizes(intermediate=12288),  # Qwen/Qwen3-8B, config.json
    "llama3-70b": BlockSizes(hidden=8192, intermediate=28672, heads=64),  # arXiv:2407.21783, table 3
}
HEATING_US = 300_000.0
PASSES = 2  # through a block in a graph: the graph's start is then a small part of it
DIFFERENT = 0.05  # of the results of two blocks, relative: more than the rounding of some bf16 operations in turn
RESERVED_SECONDS = 60.0  # that the blocks take
RESAMPLES = 10_000
FEWEST_BLOCKS = 6  # from which anything is decided: a bootstrap over fewer tells too little

Kernels = Mapping[Configuration, Artifact]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """The parameters of the command; its help text says what each means."""

    table: Path | None
    good: int
    models: tuple[str, ...]
    rows: tuple[int, ...]
    repeats: int
    heats: int
    rounds: int
    seconds: float
    store: Path
    device: str


@dataclass(frozen=True)
class Here:
    """The means of measuring: the template and its compiled kernels, the device, and the options."""

    template: KernelTemplate
    device: Device
    kernels: Kernels
    options: Options

    def job(self, problem: Problem, configuration: Configuration, library_us: float, protocol: ProtocolOptions) -> Job:
        """The job of measuring a configuration."""
        return make_job(self.template, configuration, self.kernels[configuration], problem, library_us, protocol)


def predicted_best(here: Here, problem: Problem) -> Configuration | None:
    """The compiled configuration that the shipped cost model predicts to be fastest; None where no model is shipped."""
    path = shipped_model(here.template.name, here.device.name)
    if path is None:
        return None
    knobs = here.template.knobs
    codes = [[knob.code(configuration[knob.name]) for knob in knobs] for configuration in here.kernels]
    pool = SearchSpace.of_codes(here.template.name, knobs, codes, problem, here.device)
    legal = np.ones(len(pool), dtype=np.bool_)
    for rule in here.template.constraints:
        legal &= rule.holds(pool.columns, problem, here.device)
    if not legal.any():
        return None
    fitting = pool.subset(np.flatnonzero(legal))
    model, _ = load_model(path)
    return fitting[int(np.argmin(model.predict(space_features(fitting, here.template)).mean))]


def measure_product(
    process: MeasuringProcess, here: Here, problem: Problem, named: Mapping[str, Configuration]
) -> dict[str, Any]:
    """The library's time and the ratios of named configurations to it, by each objective, as JSON."""
    found: dict[str, Any] = {
        "configurations": {name: dict(configuration) for name, configuration in named.items()},
        "library_us": {},
        "ratios": {name: {} for name in named},
        "errors": {},
    }
    for objective in Objective:
        protocol = ProtocolOptions(objective=objective)
        library_us = process.prepare(here.template.workload, str(problem), protocol)
        found["library_us"][str(objective)] = library_us
        for name, configuration in [*named.items()] * here.options.repeats:
            if configuration not in here.kernels:
                found["errors"][name] = "it did not compile"
            if name in found["errors"]:
                continue
            measured = process.measure(here.job(problem, configuration, library_us, protocol))
            if measured.timing is None:
                found["errors"][name] = f"{measured.status}: {measured.error}"
                continue
            timing = measured.timing
            repeats = found["ratios"][name].setdefault(str(objective), [])
            repeats.append([timing.ratio, timing.ratio_low, timing.ratio_high])
    return found


def ratio_of(product: Mapping[str, Any], name: str, objective: Objective) -> tuple[float, float, float] | None:
    """The ratio of a configuration over all repeats, with its 95 % interval; None if it was not timed by both."""
    repeats = product["ratios"].get(name, {})
    if name in product["errors"] or any(str(each) not in repeats for each in Objective):
        return None
    values, low, high = np.array(repeats[str(objective)]).T
    noise = float(np.log(high / low).mean()) / (2 * 1.96)
    return mean_interval(values.tolist(), noise)


def speeds(result: Mapping[str, Any]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """The speeds over the library on the table's problems, by problem, kernel and objective, with 95 % intervals.

    A problem or kernel that was not timed by both objectives is left out.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for text in result["recorded"]:
        product = result["products"].get(text, {"error": "not measured"})
        for name in product["ratios"] if "error" not in product else ():
            by_objective = {}
            for objective in Objective:
                ratio = ratio_of(product, name, objective) if name != PREDICTED else None
                if ratio is not None:
                    value, low, high = ratio
                    by_objective[str(objective)] = [1 / value, 1 / high, 1 / low]
            if by_objective:
                found.setdefault(text, {})[name] = by_objective
    return found


def measure_block(worker: Worker, here: Here, sizes: BlockSizes, rows: int, ways: Mapping[str, Any]) -> dict[str, Any]:
    """The time of a block with the library's products, and of every way over it, in [heats, rounds], as JSON.

    Parameters
    ----------
    worker
        Loads the kernels, and has the device.
    here
        See `Here`.
    sizes, rows
        The block, and the rows of its input.
    ways
        By way and problem: the configuration that runs, None for the library.
    """
    import torch

    machine, workload = worker.machine, load_workload(here.template.workload)
    block = make_block(sizes, torch.bfloat16, str(machine.device))
    generator = torch.Generator(machine.device).manual_seed(rows)
    shape = (1, rows, sizes.hidden)
    x = torch.randn(shape, generator=generator, device=machine.device, dtype=torch.bfloat16)
    counts = products_of(block, rows, DTYPE)

    def launch_of(text: str, configuration: Configuration | None) -> Launch:
        problem = here.template.parse(text)
        if configuration is None:
            return lambda inputs, output: workload.run_library(problem, inputs, output)
        return worker.load(here.job(problem, configuration, math.nan, ProtocolOptions()))

    def graph(way: Mapping[str, Configuration | None]) -> Any:
        run_by(block, rows, DTYPE, {text: launch_of(text, way.get(text)) for text in counts})
        return graph_of(machine, block, x, PASSES)

    library, expected = graph({})
    heat(machine, library, HEATING_US)
    exact, replays, wrong = expected.float().clone(), {}, {}
    for name, way in ways.items():
        replay, result = graph(way)
        replay()
        machine.synchronize()
        error = float((result.float() - exact).norm() / exact.norm())
        if error <= DIFFERENT:  # NaN is not
            replays[name] = replay
        else:
            wrong[name] = f"its results differ by {error:.3g} from the library's block"
    found: dict[str, Any] = {"counts": dict(counts), "errors": wrong, "ratios": {}}
    if replays:
        heats, rounds = here.options.heats, here.options.rounds
        ratios, whole_us = in_turns(machine, library, list(replays.values()), heats, rounds, seed=rows)
        found["library_us"] = whole_us / PASSES
        found["ratios"] = {name: ratios[:, :, at].tolist() for at, name in enumerate(replays)}
    return found


def measured_ratio(ratios: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The ratio of a way, with its 95 % interval: heats are what is counted, rounds of one heat are correlated."""
    return mean_interval(np.median(np.array(ratios), axis=1).tolist())


def saving_us(
    counts: Mapping[str, int], products: Mapping[str, Any], name: str, objective: Objective
) -> tuple[float, float]:
    """The time that a way saves of a block's products by an objective, in µs, and half of its 95 % interval.

    A product that was not timed runs the library's kernel, and saves nothing.
    """
    saved, variance = 0.0, 0.0
    for text, count in counts.items():
        ratio = ratio_of(products[text], name, objective) if "error" not in products[text] else None
        if ratio is not None:
            library_us = products[text]["library_us"][str(objective)]
            value, low, high = ratio
            saved += count * (1 - value) * library_us
            variance += (count * (high - low) / 2 * library_us) ** 2
    return saved, math.sqrt(variance)


def predictions(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of every block and way: the measured ratio, and by each objective the predicted one with its error.

    Half-widths of 95 % intervals stand beside them; that of an error is of both of its parts.
    """
    found = []
    for title, block in result["blocks"].items():
        for way, ratios in block.get("ratios", {}).items():
            value, low, high = measured_ratio(ratios)
            row: dict[str, Any] = {"block": title, "way": way, "us": block["library_us"]}
            row |= {"measured": value, "half": (high - low) / 2}
            for objective in Objective:
                saved, half = saving_us(block["counts"], result["products"], way, objective)
                predicted, half = 1 - saved / block["library_us"], half / block["library_us"]
                error = {"predicted": predicted, "error": predicted - value, "half": math.hypot(half, row["half"])}
                row[str(objective)] = error
            found.append(row)
    return found


def verdict(rows: Sequence[Mapping[str, Any]], seed: int = 0) -> dict[str, Any]:
    """The errors of each objective over all blocks, the difference, and the default that follows.

    Intervals of 95 % are of a bootstrap over the blocks: the ways of one block have most of their products in common.
    """
    blocks = list(dict.fromkeys(row["block"] for row in rows))
    errors = {str(each): [np.array([row[each]["error"] for row in rows if row["block"] == b]) for b in blocks]
              for each in Objective}  # fmt: skip
    drawn = np.random.default_rng(seed).integers(len(blocks), size=(RESAMPLES, len(blocks)))
    counts = np.array([len(each) for each in errors[Objective.CHAIN]])

    def over(values: Sequence[Floats]) -> list[float]:
        sums = np.array([each.sum() for each in values])
        low, high = np.quantile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [0.025, 0.975])
        return [float(sums.sum() / counts.sum()), float(low), float(high)]

    found: dict[str, Any] = {
        objective: {"mean": over(values), "absolute": over([abs(each) for each in values])}
        for objective, values in errors.items()
    }
    chain, sandwich = errors[Objective.CHAIN], errors[Objective.SANDWICH]
    found["difference"] = over([abs(ours) - abs(theirs) for ours, theirs in zip(sandwich, chain, strict=True)])
    surely_closer = len(blocks) >= FEWEST_BLOCKS and found["difference"][2] < 0
    found["default"] = str(Objective.SANDWICH if surely_closer else Objective.CHAIN)
    return found


def show(result: Mapping[str, Any], console: Console) -> None:
    """Print both parts, the failures, and what was decided last."""
    grid = Grid(title="speed over the library, by chain and by sandwich", title_justify="left")
    for heading in ("problem", "library µs", "", "kernel", *Objective):
        grid.add_column(heading, justify="right", no_wrap=True)
    found = speeds(result)
    for text in result["recorded"]:
        product = result["products"].get(text, {"error": "there was no time left"})
        if "error" in product:
            console.print(f"{text}: {product['error']}", markup=False)
            continue
        us = [f"{product['library_us'][str(each)]:.2f}" for each in Objective]
        for name, by_objective in found.get(text, {}).items():
            cells = (f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in by_objective.values())
            grid.add_row(text, *us, name, *cells)
    for name in dict.fromkeys(name for one in found.values() for name in one):
        timed = [one[name] for one in found.values() if name in one]
        means = [f"{geometric_mean(one[str(each)][0] for one in timed):.3f}" for each in Objective]
        grid.add_row(f"geometric mean of {len(timed)}", "", "", name, *means)
    console.print(grid)
    for text, product in [*result["products"].items(), *result["blocks"].items()]:
        faults = {"": product["error"]} if "error" in product else product["errors"]
        for name, fault in faults.items():
            console.print(f"{text} {name}: {fault}", markup=False)
    rows = predictions(result)
    if not rows:
        console.print("no block was timed: nothing is decided")
        return
    grid = Grid(title="time of a block over the library's block", title_justify="left")
    for heading in ("block", "µs", "way", "measured", *Objective, *(f"error by {each}, %" for each in Objective)):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown = [row, *(row[each] for each in Objective)]
        grid.add_row(
            row["block"],
            f"{row['us']:.1f}",
            row["way"],
            f"{row['measured']:.4f} ± {row['half']:.4f}",
            *(f"{each['predicted']:.4f}" for each in shown[1:]),
            *(f"{100 * each['error']:+.2f} ± {100 * each['half']:.2f}" for each in shown[1:]),
        )
    console.print(grid)
    decided = verdict(rows)
    grid = Grid(title="error of the predicted ratio over all blocks, % [95 %]", title_justify="left")
    for heading in ("", "mean", "mean absolute"):
        grid.add_column(heading, justify="right", no_wrap=True)

    def percent(values: Iterable[float]) -> str:
        value, low, high = (100 * each for each in values)
        return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"

    for each in Objective:
        grid.add_row(each, percent(decided[each]["mean"]), percent(decided[each]["absolute"]))
    grid.add_row("sandwich less chain", "", percent(decided["difference"]))
    console.print(grid)
    console.print(f"the default that follows: {decided['default']}")


@study(GPU_OR_RECORD, again=True)
@click.option(
    "--table", type=click.Path(path_type=Path), help="The table. [default: the largest shipped one of the GEMM]"
)
@click.option("--good", default=2, show_default=True, help="The table's fastest configurations to measure.")
@click.option(
    "--model", "models", type=click.Choice(list(MODELS)), multiple=True, default=list(MODELS), show_default=True,
    help="A model whose block runs; repeatable.",
)  # fmt: skip
@click.option("--rows", multiple=True, default=[16, 64, 512, 2048], show_default=True, help="Tokens; repeatable.")
@click.option("--repeats", default=3, show_default=True, help="Measurements of a kernel by each objective.")
@click.option("--heats", default=5, show_default=True, help="Queues of rounds of a block's ways.")
@click.option("--rounds", default=12, show_default=True, help="Rounds of each.")
@click.option(
    "--seconds", type=Finite(min=0), default=230.0, show_default=True, help="Seconds of all, blocks included."
)
@store_option
@device_option
@collected(Options)
def main(run: Run, options: Options) -> None:
    """Measure products by both objectives, and blocks with them; print both, and the default that follows."""
    console = Console(width=150)
    if run.record is not None:
        show(run.record.result, console)
        return
    if run.out is None:
        raise click.UsageError("name a folder to write to with --out, or a file with --again")
    try:
        run.out.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"can't make the folder {run.out} of --out: {one_line(error)}") from error
    run.out = run.out / FILE
    result = measure(run, options)
    show(result, console)


def measure(run: Run, options: Options) -> dict[str, Any]:
    """Everything that the study measures, written as far as it has come after every part."""
    started = time.monotonic()
    table = Table.read(options.table) if options.table else largest_table(find_template(SPACE))
    template = find_template(table.card.space)
    products: dict[str, Any] = {}
    result: dict[str, Any] = {"protocol": VERSION, "table": table.path.name, "products": products, "blocks": {}}
    result["recorded"] = [str(problem) for problem in table.problems]
    blocks = {f"{name} {rows}": (MODELS[name], rows) for name in options.models for rows in options.rows}
    with MeasuringProcess(options.device, LiveOptions().timeout) as process:
        result["device"] = process.describe()
        device = find_device(result["device"]["name"])
        wanted = {str(problem): finalists(table, problem, options.good) for problem in table.problems}
        named = {text: {DEFAULT: found[-1]} | {f"best {at}": each for at, each in enumerate(found[:-1], 1)}
                 for text, found in wanted.items()}  # fmt: skip
        texts = list(dict.fromkeys(text for sizes, rows in blocks.values() for text in sizes.problems(rows, DTYPE)))
        defaults = {text: template.default(template.parse(text), device) for text in texts}
        pool = dict.fromkeys([*defaults.values(), *(each for found in wanted.values() for each in found)])
        built = dict(compile_all(template, table.problems[0], device.arch, list(pool), artifacts(options.store)))
        here = Here(template, device, built, options)
        print(f"{time.monotonic() - started:4.0f} s: {len(built)} of {len(pool)} kernels compiled", flush=True)
        for text in texts:
            best = predicted_best(here, template.parse(text))
            named[text] = {**named.get(text, {}), DEFAULT: defaults[text]} | ({PREDICTED: best} if best else {})
        for text in [*texts, *(text for text in named if text not in texts)]:
            late = time.monotonic() - started > options.seconds - RESERVED_SECONDS
            if text not in texts and late:
                print(f"no time is left for {text}", flush=True)
                continue
            try:
                products[text] = measure_product(process, here, template.parse(text), named[text])
            except Exception as error:  # one problem's failure is its result: the others are still worth measuring
                traceback.print_exc()
                products[text] = {"error": one_line(error, 200)}
            run.keep(result)
            print(f"{time.monotonic() - started:4.0f} s: {text} measured", flush=True)
    worker = Worker(options.device)
    for title, (sizes, rows) in blocks.items():
        ways = {way: _runnable(products, sizes.problems(rows, DTYPE), named, way) for way in (DEFAULT, PREDICTED)}
        try:
            result["blocks"][title] = measure_block(worker, here, sizes, rows, {w: c for w, c in ways.items() if c})
        except Exception as error:  # as above
            traceback.print_exc()
            result["blocks"][title] = {"error": one_line(error, 200)}
        worker.machine.release()
        run.keep(result)
        print(f"{time.monotonic() - started:4.0f} s: block {title} measured", flush=True)
    return result


def _runnable(
    products: Mapping[str, Any], texts: Sequence[str], named: Mapping[str, Mapping[str, Configuration]], way: str
) -> dict[str, Configuration]:
    """The configurations of a way by problem, of those that were timed by both objectives."""
    timed = [text for text in texts if "error" not in products[text]]
    return {text: named[text][way] for text in timed if ratio_of(products[text], way, Objective.CHAIN) is not None}
