"""Time a Llama-style block with our kernels against five other ways to compile it.

    tilescout export --out bundle/                                        # where the searches were
    python -m tilescout.experiments.research inductor-model --bundle bundle/ --rows 4096 --rows 64 --out model.json

The ways to compile are:

- TorchInductor's default, without and with CUDA graphs;
- ``max_autotune`` over ATen and Triton, and with the NVGEMM backend too where torch has it;
- our kernels from a bundle, without and with CUDA graphs.

Each starts from an empty compilation cache. The compiled blocks then take turns, in random order within a round. They
are called as a program calls them; those without CUDA graphs of their own are also replayed from one, which leaves out
the time of launching. The figures are ratios to TorchInductor's default in the same round. Every result is compared
with the same block in fp32.
"""

import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from tilescout.experiments.commands.options import collected
from tilescout.experiments.research.llama_block import BlockSizes, make_block
from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.search.export.bundle import read_bundle
from tilescout.search.export.graph_nodes import Report
from tilescout.search.export.inductor import GraphPass, use
from tilescout.search.measure.interval import mean_interval
from tilescout.spaces.errors import DeviceError, one_line
from tilescout.spaces.problems import DTYPES

if TYPE_CHECKING:
    import torch

Call = Callable[[], "torch.Tensor"]

OURS, OURS_GRAPHS, DEFAULT = "ours", "ours, CUDA graphs", "default"
_AUTOTUNE = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
_NVGEMM = {**_AUTOTUNE, "max_autotune_gemm_backends": "ATEN,TRITON,NVGEMM"}
_GRAPHS = {"triton.cudagraphs": True}
WAYS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {},
    "max-autotune": _AUTOTUNE,
    "max-autotune, NVGEMM": _NVGEMM,
    OURS: {},
    OURS_GRAPHS: _GRAPHS,
    "default, CUDA graphs": _GRAPHS,
}


@dataclass
class Way:
    """One way of compiling, and what it came to.

    Attributes
    ----------
    compile_seconds
        From nothing to the first result, with an empty cache; with ours, the bundle's loading is part of it.
    replaced, products
        Matrix products that run our kernels, and all that were met; None where our pass was not there to count.
    error
        Relative Frobenius error against fp32: the largest of the results that were looked at.
    call_us, graph_us
        Median times of a run: called from Python, and replayed from a CUDA graph; None where that was not timed.
    call_ratio, graph_ratio
        Those over the default way's in the same rounds: the mean and its 95 % interval.
    problems
        Those products: by what became of them, how often each problem was met.
    missing
        Why it could not be compiled; empty if it was.
    """

    compile_seconds: float = 0.0
    replaced: int | None = None
    products: int | None = None
    error: float | None = None
    call_us: float | None = None
    graph_us: float | None = None
    call_ratio: tuple[float, float, float] | None = None
    graph_ratio: tuple[float, float, float] | None = None
    problems: dict[str, Any] = field(default_factory=dict)
    missing: str = ""


@dataclass(frozen=True)
class Options:
    """The parameters of the command; its help text says what each means."""

    bundle: Path
    rows: tuple[int, ...]
    dtype: str
    ways: Sequence[str]
    rounds: int
    calls: int


def nvgemm_missing(device: str = "cuda") -> str:
    """Why TorchInductor's NVGEMM backend can't be used on a device; empty if it can."""
    import torch
    from torch._inductor import utils

    if device != "cuda":
        return f"it has no kernels for the {device}"
    available: Callable[[], bool] | None = getattr(utils, "ensure_nv_universal_gemm_available", None)
    if available is None:
        return f"torch {torch.__version__} has no NVGEMM backend"
    try:
        return "" if available() else "torch does not find the package of its kernels"
    except Exception as error:  # whatever a broken installation of that package raises
        return one_line(error, 80)


def compile_way(name: str, block: "torch.nn.Module", x: "torch.Tensor", bundle: Path) -> tuple[Way, Call | None]:
    """Compile the block in one way, with an empty cache."""
    import torch
    from torch._inductor.utils import fresh_cache

    if name == "max-autotune, NVGEMM" and (why := nvgemm_missing(x.device.type)):
        return Way(missing=why), None
    with fresh_cache():
        started = time.perf_counter()
        ours: AbstractContextManager[GraphPass | None] = use(bundle) if name in (OURS, OURS_GRAPHS) else nullcontext()
        with ours as tuned:
            compiled = torch.compile(block, options=dict(WAYS[name]), dynamic=False)
            compiled(x)
            if x.is_cuda:
                torch.cuda.synchronize()
        way = Way(compile_seconds=time.perf_counter() - started)
    if tuned is not None:
        way.replaced, way.products, way.problems = _counts(tuned.report)
    return way, lambda: compiled(x)


def _counts(report: Report) -> tuple[int, int, dict[str, Any]]:
    # Not dataclasses.asdict: it makes another Counter of a Counter's items.
    kinds = {"replaced": report.replaced, "left": report.left, "unknown": report.unknown}
    total = sum(counts.total() for counts in kinds.values())
    return report.replaced.total(), total, {name: dict(counts) for name, counts in kinds.items()}


def time_in_turns(runs: Mapping[str, Call], rounds: int, calls: int, seed: int) -> dict[str, list[float]]:
    """Times of one call in µs, [rounds] a run; the runs take turns, in random order within a round."""
    import torch

    order, generator = list(runs), random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(calls):
                runs[name]()
            end.record()
            end.synchronize()
            times[name].append(float(start.elapsed_time(end)) * 1e3 / calls)
    return times


def _in_graph(run: Call) -> Call:
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> "torch.Tensor":
        graph.replay()
        return result

    return replay


def measure(rows: int, options: Options) -> dict[str, Way]:
    """Compile the block in every way for so many rows, check the results and time them."""
    import torch

    sizes, dtype = BlockSizes(), getattr(torch, DTYPES[options.dtype].torch_name)
    block = make_block(sizes, dtype, "cuda")
    generator = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(1, rows, sizes.hidden, generator=generator, device="cuda").to(dtype)
    with torch.no_grad():
        exact = make_block(sizes, torch.float32, "cuda")
        exact.load_state_dict({name: value.float() for name, value in block.state_dict().items()})
        expected = exact(x.float())
        del exact

        def error(result: torch.Tensor) -> float:
            return float((result.float() - expected).norm() / expected.norm())

        ways = {"eager": Way(error=error(block(x)))}
        runs: dict[str, Call] = {"eager": lambda: block(x)}
        for name in options.ways:
            try:
                ways[name], run = compile_way(name, block, x, options.bundle)
            except Exception as failure:  # one way's failure is its result: the others are still worth measuring
                traceback.print_exc()
                ways[name], run = Way(missing=one_line(failure, 80)), None
            if run is not None:
                # With CUDA graphs of its own, a way's second call captures and the third replays.
                runs[name], ways[name].error = run, max(error(run()) for _ in range(3))
        called = time_in_turns(runs, options.rounds, options.calls, seed=rows)
        graphs = {name: _in_graph(run) for name, run in runs.items() if "CUDA graphs" not in name}
        replayed = time_in_turns(graphs, options.rounds, options.calls, seed=rows)
        for name, run in graphs.items():
            ways[name].error = max(ways[name].error or 0.0, error(run()))
    for name in called:
        ways[name].call_us, ways[name].call_ratio = median(called[name]), ratio_to(called.get(DEFAULT), called[name])
    for name in replayed:
        ways[name].graph_us = median(replayed[name])
        ways[name].graph_ratio = ratio_to(replayed.get(DEFAULT), replayed[name])
    return ways


def ratio_to(reference: Sequence[float] | None, times: Sequence[float]) -> tuple[float, float, float] | None:
    """The mean of times over those of the reference in the same rounds, and its 95 % interval."""
    if reference is None:
        return None
    return mean_interval([time / base for time, base in zip(times, reference, strict=True)])


def show(rows: int, ways: Mapping[str, Way], console: Console) -> None:
    """One table for one number of rows."""
    table = Table(title=f"{rows} rows", title_justify="left")
    headings = ("µs called", "over default", "µs in a graph", "over default", "compile s", "ours / products", "error")
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, way in ways.items():
        if way.missing:
            table.add_row(f"{name}: {way.missing}", *[""] * len(headings))
            continue
        table.add_row(
            name,
            *(_shown("{:.1f}", way.call_us), _shown_ratio(way.call_ratio)),
            *(_shown("{:.1f}", way.graph_us), _shown_ratio(way.graph_ratio)),
            _shown("{:.1f}", way.compile_seconds or None),
            "" if way.replaced is None else f"{way.replaced} / {way.products}",
            _shown("{:.2e}", way.error),
        )
    console.print(table)


def _shown(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def _shown_ratio(ratio: tuple[float, float, float] | None) -> str:
    return "" if ratio is None else "{:.4f} ({:.4f}-{:.4f})".format(*ratio)


@study(GPU)
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="What `tilescout export` wrote.")
@click.option("--rows", multiple=True, default=[4096], show_default=True, help="Rows of the input; repeatable.")
@click.option(
    "--dtype",
    type=click.Choice([name for name, dtype in DTYPES.items() if dtype.bytes == 2]),
    default="bf16",
    show_default=True,
    help="Of weights and input.",
)
@click.option(
    "--way",
    "ways",
    type=click.Choice(list(WAYS)),
    multiple=True,
    default=list(WAYS),
    help="A way to compile; repeatable. [default: all]",
)
@click.option("--rounds", default=40, show_default=True, help="How often each way takes its turn.")
@click.option("--calls", default=10, show_default=True, help="Calls that are timed as one.")
@collected(Options)
def main(run: Run, options: Options) -> None:
    """Compile, check and time the block, for every number of rows."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("no CUDA GPU here: this measures on one")
    torch._dynamo.config.recompile_limit = 64  # a block is compiled in six ways for each number of rows
    warm = torch.compile(lambda x: x + 1)  # what the first compilation in a process starts is no way's cost
    warm(torch.ones(8, device="cuda"))
    console, results = Console(width=140), {}
    for count in options.rows:
        results[count] = measure(count, options)
        show(count, results[count], console)
        run.keep(recorded(options, results))


def recorded(options: Options, results: Mapping[int, Mapping[str, Way]]) -> dict[str, Any]:
    """Results by rows and way, and what they are results of, as JSON."""
    import torch

    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "bundle": read_bundle(options.bundle).digest,
        "block": asdict(BlockSizes()),
        "dtype": options.dtype,
        "rounds": options.rounds,
        "calls": options.calls,
        "rows": {rows: {name: asdict(way) for name, way in ways.items()} for rows, ways in results.items()},
    }
