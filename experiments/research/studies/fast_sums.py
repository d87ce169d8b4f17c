"""How much faster and how much less accurate 8-bit products are with fast accumulation.

    python -m tilescout.experiments.research fast-sums --out fast-sums.json

With `use_fast_accum=True`, `torch._scaled_mm` leaves sums of e4m3 products in the fewer bits that the tensor cores keep
of them; without it they are promoted to fp32 every so many products. On every problem the function in both ways and the
best of the eight candidates that cuBLASLt's heuristic lists for each race in interleaved rounds: "fast sums", "best of
list", "fast sums, best of list", all over the accurate function. The errors are of results in fp32, so that nothing is
rounded but the sums: the norm of the difference from an fp32 product of the same operands over the norm of that. The
operands are random and normal, rounded to e4m3.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.compare.inference import geometric_mean_interval
from tilescout.experiments.research.backend_entrants import Entrant, engines_of, fastest
from tilescout.experiments.research.backend_rows import FAST, OF_LIST
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import Run, device_option, study
from tilescout.experiments.research.studies.backends import raced
from tilescout.search.engines.engine import Engine
from tilescout.search.measure.library_best import CANDIDATES
from tilescout.search.measure.protocol import VERSION
from tilescout.search.measure.worker import Worker
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.suite import find_suite

if TYPE_CHECKING:
    import torch

FAST_LIST = f"{FAST}, {OF_LIST}"
SPACES = {"cublaslt": OF_LIST, "cublaslt_fast": FAST_LIST}
"""The spaces of the library's kernels, with the rows of the best of their lists."""


def best_listed(engine: Engine, problem: GemmProblem) -> Entrant:
    """The best of the heuristic's candidates by its own pairs."""
    names = [knob.name for knob in engine.template.knobs]
    rows = engine.listing(0, engine.template, problem, CANDIDATES).result().rows
    return fastest(engine, problem, [Configuration(tuple(zip(names, row, strict=True))) for row in rows])


def errors_of(problem: GemmProblem, device: "torch.device | str", seed: int) -> dict[str, float]:
    """The errors of the library's function, accurate and fast, with results in fp32."""
    import torch

    workload, wide = Gemm(), replace(problem, out="fp32")
    inputs = workload.inputs(wide, torch.Generator(device).manual_seed(seed))
    exact = workload.reference(wide, inputs)
    found = {}
    for name, fast in (("accurate", False), ("fast", True)):
        output = workload.output(wide, inputs[0].device)
        workload.run_library(replace(wide, fast=fast), inputs, output)
        found[name] = float((output - exact).norm() / exact.norm())
    return found


def summarised(problems: Mapping[str, Mapping[str, Any]], seed: int) -> dict[str, Any]:
    """Of each row's speeds the geometric mean with its interval over such problems, the least and the largest.

    Also the medians of the errors.
    """
    means = {}
    for who in (FAST, *SPACES.values()):
        rows = [one["rows"].get(who, {}) for one in problems.values()]
        if speeds := [row["speed"]["value"] for row in rows if "speed" in row]:
            means[who] = [*geometric_mean_interval(speeds, seed), min(speeds), max(speeds)]
    errors = {name: [one["errors"][name] for one in problems.values()] for name in ("accurate", "fast")}
    return {"means": means, "median errors": {name: float(np.median(each)) for name, each in errors.items() if each}}


@study("a Hopper or Blackwell GPU", out_required=True)
@click.option("--problem", "problems", multiple=True, help="In e4m3; repeatable.  [default: the suite `recorded`]")
@seconds_option(60.0)
@device_option
@seed_option
@store_option
def main(run: Run, problems: tuple[str, ...], seconds: float, device: str, seed: int, store: Path) -> None:
    """Race 8-bit products with fast accumulation beside accurate ones, and tell the errors of both."""
    console = Console(width=160)
    asked = [GemmProblem.parse(text) for text in problems] or [
        problem.with_signature("e4m3-bf16") for problem in find_suite("recorded").parsed(GemmProblem.parse)
    ]
    found: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {"protocol": VERSION, "problems": found}
    with ExitStack() as stack:
        engines, worker = engines_of([*SPACES], store, device, stack), Worker(device)
        report |= {"device": worker.machine.name, "versions": worker.machine.versions()}
        clock = Clock(seconds)
        for problem in asked:
            if clock.left < 0:
                console.print(f"{seconds:g} s are over: not begun with {problem}", highlight=False)
                break
            try:
                found[str(problem)] = _one(worker, engines, problem, store, seed)
            except (TilescoutError, RuntimeError) as error:
                console.print(f"{problem}: {one_line(error)}", highlight=False, soft_wrap=True)
            run.keep(report)
    report |= summarised(found, seed)
    run.keep(report)
    print_rows(console, report)


def _one(
    worker: Worker, engines: Mapping[str, Engine | str], problem: GemmProblem, store: Path, seed: int
) -> dict[str, Any]:
    """The race of a problem, and the errors of both ways."""
    entrants: dict[str, Entrant | str] = {
        SPACES[space]: engine if isinstance(engine, str) else best_listed(engine, problem)
        for space, engine in engines.items()
    }
    errors = errors_of(problem, worker.machine.device, seed)
    worker.machine.release()
    return raced(worker, problem, entrants, store, seed, {}) | {"errors": errors}


def print_rows(console: Console, report: Mapping[str, Any]) -> None:
    """Print the speeds over the accurate function, the errors of both ways, and the means."""
    grid = Grid(title="speed over torch._scaled_mm(use_fast_accum=False); errors of results in fp32")
    names = (FAST, *SPACES.values())
    for heading in ("problem", "µs", *names, "error, accurate", "fast"):
        grid.add_column(heading)
    for text, one in report["problems"].items():
        speeds = [one["rows"].get(who, {}).get("speed") for who in names]
        cells = ["-" if each is None else f"{each['value']:.3f}" for each in speeds]
        grid.add_row(text, f"{one['library_us']:.1f}", *cells, *(f"{each:.1e}" for each in one["errors"].values()))
    console.print(grid)
    for who, (mean, low, high, least, most) in report["means"].items():
        console.print(f"{who}: {mean:.3f} [{low:.3f}, {high:.3f}], {least:.3f} to {most:.3f}", highlight=False)
