"""``tilescout dispatcher``: a few kernels of one product, and the ranges of m that each serves."""

import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory

import click
from click.core import ParameterSource

from tilescout.costmodel.persistence import load_model, model_file
from tilescout.costmodel.relatives import model_for
from tilescout.experiments.commands.dispatcher_plot import draw, has_regret
from tilescout.experiments.commands.model_options import learned_from
from tilescout.experiments.commands.options import (
    Finite,
    Named,
    collected,
    examples,
    json_option,
    mlflow_option,
    space_argument,
    standby_option,
    store_option,
)
from tilescout.experiments.commands.outputs import (
    STDOUT,
    check_mlflow,
    check_output,
    check_plot,
    check_result,
    console_beside,
    write_result,
)
from tilescout.experiments.commands.printing import not_known
from tilescout.experiments.progress import waiting
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.dispatch.building import DispatchOptions, candidates, measure_dispatcher, predict_dispatcher
from tilescout.search.dispatch.dispatcher import LARGEST_M, MOST_KERNELS, Dispatcher, is_dispatcher, read_dispatcher
from tilescout.search.dispatch.kernels import MOST_CANDIDATES, MOST_ROWS, Kernels, Models, portfolios_of
from tilescout.search.dispatch.measuring import SWEEPING, Sweep, measure_beside_library
from tilescout.search.dispatch.points import Point
from tilescout.search.dispatch.recorded import read_sweep
from tilescout.search.dispatch.vendored import is_written, python_text
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.selection import usable_gpus
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import DEVICES, find_device
from tilescout.spaces.errors import DeviceError, ModelError, ProblemError, StoreError
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.templates import KernelTemplate, load_template
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import file_name
from tilescout.spaces.workloads import load_workload

_LOG = logging.getLogger(__name__)
_FORM = "NxK[xBATCH][:DTYPE[-OUT]][:fast][:LAYOUT][:EPILOGUE], as 6144x4096:bf16"
_SECONDS = 70.0
_EVEN_M = 1 << 10  # rows that no alignment stands against
_NOT_REPLAYED = ("device", "model", "candidates", "others", "seconds")  # options that say what is measured, or how
_NOT_PREDICTED = {"plot": "draws what was measured", "seconds": "limits measuring"}  # of no use where a model chooses


@dataclass(frozen=True)
class DispatcherRequest:
    """The parameters of the command; its help text says what each means."""

    space: str
    product: str
    kernels: int
    most_rows: int
    candidates: int
    others: int
    seconds: float
    device: str
    sweep: Path | None
    model: Path | None
    standby: bool
    store: Path
    out: Path | None
    python: Path | None
    plot: Path | None
    mlflow_uri: str | None
    json_path: Path | None

    @property
    def options(self) -> DispatchOptions:
        """How the dispatcher is built."""
        seconds = None if self.sweep is not None else self.seconds
        return DispatchOptions(
            kernels=self.kernels,
            most_rows=self.most_rows,
            candidates=self.candidates,
            others=self.others,
            seconds=seconds,
        )


@click.command(
    epilog=examples(
        "tilescout dispatcher gemm_sm90 --product 6144x4096:bf16",
        "tilescout dispatcher gemm_sm90 --product 6144x4096:bf16 --kernels 4 --plot regret.png --python kernels.py",
        "tilescout dispatcher gemm_sm90 --product 6144x4096:bf16 --device h200 --json -",
    )
)
@space_argument
@click.option(
    "--product",
    required=True,
    metavar="NxK[xBATCH][:...]",
    help="n and k, the number of products in a batch, and the types, layout and epilogue.",
)
@click.option(
    "--kernels", type=click.IntRange(1, MOST_KERNELS), default=8, show_default=True, help="Most kernels to keep."
)
@click.option(
    "--most-rows", type=click.IntRange(16, LARGEST_M), default=MOST_ROWS, show_default=True, help="Largest m."
)
@click.option(
    "--candidates",
    type=click.IntRange(1, MOST_CANDIDATES),
    default=DispatchOptions.candidates,
    show_default=True,
    help="Kernels of the space's portfolio to choose among: those that a model expects to serve best.",
)
@click.option(
    "--others",
    type=click.IntRange(0, MOST_CANDIDATES),
    default=DispatchOptions.others,
    show_default=True,
    help="Likewise of its complement, the second space: gemm_streamk_sm90 for gemm_sm90.",
)
@click.option(
    "--seconds",
    type=Finite(min=1),
    default=_SECONDS,
    show_default=True,
    help="Most seconds to measure; compiling is not counted.",
)
@click.option(
    "--device",
    default="cuda",
    show_default=True,
    metavar="cuda[:N]|NAME",
    help="GPU to measure on. With the name of a device, such as h200, a cost model chooses and nothing is measured.",
)
@click.option(
    "--sweep",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replay recorded times, up to their largest m.",
)
@click.option("--model", type=Named(), help="Cost model, or a folder of some. [default: the shipped one]")
@standby_option
@store_option
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="The dispatcher's file. [default: one in the store]"
)
@click.option("--python", type=click.Path(path_type=Path, dir_okay=False), help="Also write it as a Python file.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw the regret over m into this file.")
@mlflow_option
@json_option
@collected(DispatcherRequest)
def dispatcher(asked: DispatcherRequest) -> None:
    """Choose the few kernels of SPACE that serve a product for every m, and the ranges of m that each serves.

    All candidates are timed at some m, and the best few are kept. These are timed again where it is unclear which is
    fastest: at the ends of their waves. Where the library is faster, the library serves. Without a GPU, recorded times
    can be replayed, or a cost model chooses; then nothing is proven. `tilescout export --dispatcher` makes a bundle.
    """
    _check(asked)
    template = load_template(asked.space)
    kind = load_workload(template.workload).problem
    if not issubclass(kind, GemmProblem):
        ranges = "; ranges of tokens come from a table: `tilescout collect` one, and `tilescout export --table` it"
        raise ProblemError(
            f"{asked.space} computes no matrix products of the form NxK, which a dispatcher is for"
            f"{ranges if issubclass(kind, GroupedProblem) else ''}"
        )
    try:
        problem = GemmProblem.parse(f"1x{asked.product}")
    except ProblemError as error:
        said = re.sub("problem ('?)1x", r"product \1", str(error), count=1)
        raise ProblemError(re.sub(": expected .*", f": expected {_FORM}", said)) from error
    batch = f", a batch of {problem.batch:,} products" if problem.batch > 1 else ""  # somebody may have named m as well
    Console(stderr=True).say(f"n = {problem.n:,}, k = {problem.k:,}{batch}")
    _check_every_m(template, problem, asked.product)
    with waiting(f"choose kernels for 1 to {asked.most_rows:,} rows"):
        found = _built(asked, template, problem)
    place = asked.out or place_in(asked.store / "dispatchers", found)
    console = console_beside(asked.json_path)
    print_dispatcher(found, console)
    write_result(asked.json_path, found.to_dict())
    try:
        found.write(place)
    except StoreError:
        if asked.json_path is None:
            write_result(STDOUT, found.to_dict())
        raise
    if asked.python is not None:
        write_whole(asked.python, python_text(found).encode())
    if asked.plot is not None:
        draw(found, asked.plot)
    _log(found, asked, place)
    console.say(f"dispatcher: {place}")


def place_in(folder: Path, found: Dispatcher) -> Path:
    """The file of a dispatcher in a store; what a GPU measured has its own, and nothing else takes its place."""
    place = folder / f"{file_name(found.name)}.json"
    if found.versions or not place.exists():
        return place
    try:
        held = read_dispatcher(place)
    except StoreError:  # damaged: there is nothing to keep
        return place
    return place.with_stem(f"{place.stem}-unmeasured") if held.versions else place


def _check(asked: DispatcherRequest) -> None:
    check_result(asked.json_path)
    check_mlflow(asked.mlflow_uri, asked.store)
    if asked.device not in DEVICES and asked.device != "cuda" and not asked.device.removeprefix("cuda:").isdigit():
        raise DeviceError(f"unknown device {asked.device!r}, allowed are cuda, cuda:N, and {', '.join(DEVICES)}")
    context = click.get_current_context()
    if asked.device in DEVICES and asked.sweep is None:
        for name, does in _NOT_PREDICTED.items():
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name} {does}, and with the name of a device a model chooses: drop it")
    if asked.sweep is not None:
        for name in _NOT_REPLAYED:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name} changes nothing where --sweep replays recorded times: leave it out")
    outputs = [path for path in (asked.out, asked.python, asked.plot) if path is not None]
    files = [path.resolve() for path in outputs if path.is_file() or not path.exists()]  # a terminal takes several
    if len(set(files)) < len(files):
        raise click.UsageError("--out, --python and --plot name a file twice: name one for each")
    for path, kind, is_one in (
        (asked.out, "a dispatcher", is_dispatcher),
        (asked.python, "a dispatcher in Python", is_written),
    ):
        if path is not None:
            check_output(path, kind, is_one)
    if asked.plot is not None:
        check_plot(asked.plot)


def _check_every_m(template: KernelTemplate, problem: GemmProblem, product: str) -> None:
    """Refuse a product that a template can't compute, or not for every m."""
    try:
        template.check(problem)
    except ProblemError as error:
        template.check(replace(problem, m=_EVEN_M))  # of n or k, or of the types, it tells as it is
        layouts = "; its layout has A along m: name one that begins with k" * (problem.layout[0] == "m")
        raise ProblemError(f"a dispatcher serves every m, and {product} can't be computed for each{layouts}") from error


def _built(asked: DispatcherRequest, template: KernelTemplate, problem: GemmProblem) -> Dispatcher:
    if asked.sweep is not None:
        return _replayed(asked, template, problem)
    if asked.device in DEVICES:
        return _predicted(asked, template, problem)
    if not usable_gpus(template):
        raise DeviceError(
            f"no GPU here that {template.name} builds for: with `--device h200` a model chooses, and proves nothing"
        )
    live = replace(SWEEPING, compile=CompileOptions(standby=asked.standby))
    with ExitStack() as stack:
        engine = stack.enter_context(LocalEngine(template, artifacts(asked.store), [asked.device], options=live))
        kernels = portfolios_of(template, problem, engine.device)
        models, _ = models_of(asked.model, kernels)
        chosen = candidates(kernels, models, asked.options)
        others = [each for each in dict.fromkeys(chosen.templates) if each is not template]
        beside = [stack.enter_context(engine.beside(each)) for each in others]
        versions = {**engine.versions, "protocol": engine.protocol}
        described = engine.provenance.description
        sweep = Sweep(engine, chosen, beside, most_rows=asked.most_rows).wait()
        build = partial(measure_dispatcher, sweep, measured_by=described, versions=versions, watch=_watch)
        return measure_beside_library(sweep, asked.options, build)


def _watch(point: Point) -> None:
    fastest = min((ratio.value for ratio in point.ratios.values()), default=float("nan"))
    _LOG.info("m = %d: the best of %d kernels takes %.3f of the library's time", point.m, len(point.ratios), fastest)


def _predicted(asked: DispatcherRequest, template: KernelTemplate, problem: GemmProblem) -> Dispatcher:
    kernels = portfolios_of(template, problem, find_device(asked.device))
    models, origin = models_of(asked.model, kernels)
    known = kernels.take([number for number, each in enumerate(kernels.templates) if each.name in models])
    if template.name not in models:
        raise ModelError(f"no model of {template.name} on {asked.device} is shipped: name one with --model")
    options = replace(asked.options, candidates=max(asked.candidates, asked.kernels))
    return predict_dispatcher(candidates(known, models, options), models, options, origin)


def _replayed(asked: DispatcherRequest, template: KernelTemplate, problem: GemmProblem) -> Dispatcher:
    assert asked.sweep is not None
    source, device = read_sweep(asked.sweep, problem, template)
    replay = f"replayed from {asked.sweep.name}, measured on {device}"
    known = replace(asked.options, most_rows=min(asked.most_rows, max(source.sizes)))  # of more nothing is known
    found = measure_dispatcher(source, known, replay, {})
    return replace(found, no_library_best="the times that are replayed were recorded without it")


def models_of(model: Path | None, kernels: Kernels) -> tuple[Models, str]:
    """The models of the spaces of some kernels, and what they learned from.

    Parameters
    ----------
    model
        The file of the first one's space, or a folder with a model of each; None for the shipped ones.
    kernels
        The kernels.

    Raises
    ------
    ModelError
        If a model can't be read, or the folder has none of a space.
    """
    found, origins, device = {}, [], kernels.device.name
    for template in dict.fromkeys(kernels.templates):
        named = model if model is None or template is kernels.templates[0] or model.is_dir() else None
        path = model_for(template.name, device) if named is None else model_file(named, template.name, device)
        if path is not None:
            found[template.name], card = load_model(path)
            origins.append(learned_from(card, template.name, device))
    return found, f"learned from {' and '.join(origins)}"


def print_dispatcher(found: Dispatcher, console: Console) -> None:
    """Print the ranges, the kernels, and what is known of the regret."""
    product = str(found.problem).removeprefix("1x")
    title = f"{found.space} on {found.device}, {product} for 1 to {found.most_rows:,} rows ({found.measured_by})"
    grid = Grid(title=title, title_justify="left")
    for heading in ("m", "kernel", "m measured", f"of the time of {Gemm().library(found.problem)}", "proven"):
        grid.add_column(heading, justify="right")
    for each in found.stretches:
        inside = found.ratios(each.low, each.high)
        worst = max(inside, default=None)
        grid.add_row(
            f"{each.low:,} to {each.high:,}" if each.low < each.high else f"{each.low:,}",
            "library" if each.kernel is None else str(each.kernel + 1),
            str(len(inside)),
            "" if worst is None else f"at most {worst:.3f}",
            "yes" if found.is_proven(each) else "no",
        )
    console.print(grid)
    for number, kernel in enumerate(found.kernels, start=1):
        text = " ".join(f"{name}={value}" for name, value in kernel.items())
        space = found.spaces[number - 1]
        console.say(f"{number}: {text}" if space == found.space else f"{number}, of {space}: {text}")
    for line in _told(found):
        console.say(line)


def _told(found: Dispatcher) -> list[str]:
    lines = []
    if found.counts:
        costs = ", ".join(f"{each.kernels}: {each.mean:.2%} ({each.worst:.1%})" for each in found.counts)
        lines.append(f"mean (and worst) regret against all candidates, by number of kernels: {costs}")
    if speeds := {m: 1 / ratio for m, ratio in found.over_library_best.items()}:
        least = min(speeds, key=speeds.__getitem__)
        lines.append(
            f"over the library's best candidate, at {len(speeds)} of {len(found.points)} measured m: "
            f"{geometric_mean(speeds.values()):.3f} of its speed on average, {speeds[least]:.3f} at least, at {least:,}"
        )
    if found.no_library_best:
        lines.append(not_known(found.no_library_best))
    if found.regret is not None and found.bound is not None:
        lines.append(
            f"against these kernels and the library, over every m: {found.regret.mean:.2%} on average by the estimate, "
            f"{found.regret.worst:.2%} at worst; between {len(found.points)} measured m no more than "
            f"{found.bound.mean:.2%} on average and {found.bound.worst:.1%} at m = {found.bound.at:,} is possible if "
            "time does not fall as m grows"
        )
    return lines


def _log(found: Dispatcher, asked: DispatcherRequest, place: Path) -> None:
    """Log the dispatcher, its plot and its Python file to MLflow."""
    from tilescout.search.tracking.experiment import log_experiment

    params = {
        "product": asked.product,
        "space": found.space,
        "device": found.device,
        "measured_by": found.measured_by,
        "most_kernels": asked.kernels,
        "candidates": asked.candidates,
    }
    metrics: dict[str, float] = {
        "kernels": len(found.kernels),
        "ranges": len(found.stretches),
        "sizes": len(found.points),
    }
    if speeds := [1 / ratio for ratio in found.over_library_best.values()]:
        metrics |= {
            "mean_speedup_over_library_best": geometric_mean(speeds),
            "least_speedup_over_library_best": min(speeds),
            "known_library_best": float(len(speeds)),
        }
    for name, regret in (("regret", found.regret), ("bound", found.bound)):
        if regret is not None:
            metrics |= {f"{name}_mean": regret.mean, f"{name}_worst": regret.worst}
    with TemporaryDirectory() as folder:
        files = [place, Path(folder, "dispatcher.py")]
        files[1].write_text(python_text(found))
        if has_regret(found):
            files.append(Path(folder, "regret.png"))
            draw(found, files[2])
        where = asked.mlflow_uri if asked.mlflow_uri is not None else asked.store
        log_experiment(where, "dispatchers", params, metrics, files)
