"""Measure how long a call of our operator keeps the host, against torch.mm.

    python -m tilescout.experiments.research launch-overhead --bundle bundle/ --out overhead.json

Calls the smallest product that a bundle gives to our kernels, in bursts that the GPU's queue can hold, and then replays
the same calls from CUDA graphs. With ``out=`` a call is made as generated code makes it, ours as
`tilescout.search.export.generated_calls` binds it; the other calls allocate their results. Beside them it times what a
call of ours consists of: the kernel's entry point alone, on tensors of torch and on views that were kept, and the four
questions that a call on matrices asks. A host's core may change between two speeds while this runs: of each way to call
the fastest tenth of the bursts is recorded, too.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.search.build.loading import LoadedKernel
from tilescout.search.export.generated_calls import bind
from tilescout.search.export.inductor import load
from tilescout.search.export.loaded_kernels import find_family, name_of
from tilescout.spaces.errors import BundleError, DeviceError
from tilescout.spaces.problems import DTYPES

if TYPE_CHECKING:
    import torch

FASTEST = 0.1
"""The quantile of the bursts that tells of a core at its higher speed."""


def host_us(call: Callable[[], Any], burst: int, bursts: int) -> tuple[float, float]:
    """Median time in µs for which a call keeps the host, over bursts, and its quantile of `FASTEST`.

    Between bursts the GPU catches up.
    """
    import torch

    times = []
    for _ in range(bursts):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(burst):
            call()
        times.append((time.perf_counter() - started) / burst * 1e6)
    return median(times), float(np.quantile(times, FASTEST))


def parts_of(name: str, a: "torch.Tensor", b: "torch.Tensor", out: "torch.Tensor") -> dict[str, Callable[[], Any]]:
    """The parts of a call of ours on a batch of one, each to be called alone; none of them for a library's kernel."""
    import tvm_ffi

    kernel = find_family(name).find(a.device, a.shape[1])
    if not isinstance(kernel, LoadedKernel) or kernel.scratch_bytes:
        return {}
    entry, clusters, flat, flat_out = kernel.entry, kernel.max_clusters, a[0], out[0]
    first, whole, last = (tvm_ffi.from_dlpack(each) for each in (a, b, out))
    return {
        "entry point": lambda: entry(a, b, out, clusters),
        "entry point, a view of B": lambda: entry(a, whole, out, clusters),
        "entry point, views of A and D": lambda: entry(first, b, last, clusters),
        "entry point, views": lambda: entry(first, whole, last, clusters),
        "questions": lambda: (flat.data_ptr(), b.data_ptr(), flat_out.data_ptr(), flat.numel()),
    }


def graph_us(call: Callable[[], Any], calls: int, replays: int) -> float:
    """Median time in µs of a call, of `calls` of them in one CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / calls)
    return median(times)


@study(GPU)
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="What `tilescout export` wrote.")
@click.option("--burst", default=100, show_default=True, help="Calls of a burst; the queue of a GPU holds about 1000.")
@click.option("--bursts", default=200, show_default=True, help="Bursts of each way to call.")
def main(run: Run, bundle: Path, burst: int, bursts: int) -> None:
    """Time each way to call, and print the times."""
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("no CUDA GPU here: this measures on one")
    loaded = load(bundle)
    ranges = [
        replace(dispatch.problem, m=each.low)
        for dispatch in loaded.dispatches
        for each in dispatch.ranges
        if each.kernel
    ]
    decided = [*(decision.problem for decision in loaded.ours), *ranges]
    plain = [problem for problem in decided if problem.batch == 1 and problem.signature in DTYPES]
    if not plain:
        raise BundleError(f"bundle {loaded.path} gives no plain product to our kernels")
    problem = min(plain, key=lambda problem: problem.flops)
    dtype, name = getattr(torch, problem.element.torch_name), name_of(loaded, problem)
    a = torch.randn(1, problem.m, problem.k, device="cuda", dtype=dtype)
    b = torch.randn(1, problem.n, problem.k, device="cuda", dtype=dtype)
    flat, turned = a[0], b[0].t()
    out = torch.empty(1, problem.m, problem.n, device="cuda", dtype=dtype)
    bound, flat_out = bind(name, problem.m, torch.cuda.current_device()), out[0]
    late, late_flat = (bind(name, None, torch.cuda.current_device(), matrices) for matrices in (False, True))
    calls: dict[str, Callable[[], Any]] = {
        "torch.mm, out=": lambda: torch.mm(flat, turned, out=flat_out),
        "ours, out=": lambda: bound(a, b, out=out),
        "ours, out=, m looked up": lambda: late(a, b, out=out),
        "ours, out=, m looked up, matrices": lambda: late_flat(flat, b, out=flat_out),
        "torch.mm": lambda: torch.mm(flat, turned),
        "tilescout::gemm_compiled": lambda: torch.ops.tilescout.gemm_compiled.default(a, b, None, None, name),
        "tilescout::gemm": lambda: torch.ops.tilescout.gemm.default(a, b, None, None, name),
    }
    record: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "problem": str(problem)}
    table = Table(title=f"{problem} on {record['gpu']}, torch {torch.__version__}", title_justify="left")
    for heading in ("", "host µs a call", "of the fastest tenth", "µs a call in a graph"):
        table.add_column(heading, justify="left" if not heading else "right")
    with torch.no_grad():
        for call in calls.values():
            host_us(call, burst, 3)
        for title, call in calls.items():
            times = *host_us(call, burst, bursts), graph_us(call, burst, bursts)
            record[title] = dict(zip(("host_us", "fastest_us", "graph_us"), times, strict=True))
            table.add_row(title, *(f"{value:.2f}" for value in times))
        for title, call in parts_of(name, a, b, out).items():
            host_us(call, burst, 3)
            middle, fastest = host_us(call, burst, bursts)
            record[title] = {"host_us": middle, "fastest_us": fastest}
            table.add_row(title, f"{middle:.2f}", f"{fastest:.2f}", "")
    Console(width=100).print(table)
    run.keep(record)
