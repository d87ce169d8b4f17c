"""Time kernels of a portfolio over many numbers of rows, for a few products.

    python -m tilescout.experiments.research dispatch-sweep --product 6144x4096 --out sweep.json.gz

Half of the sizes are drawn evenly in the logarithm of m, half evenly in m. At each, the kernels that the cost model
expects to serve all sizes best are timed as in a search, in turns with `torch.mm`. A kernel that is clearly slower than
the fastest is given up early. The file says how a kernel's time grows with m, and replays dispatchers without a GPU.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.options import Finite, collected, seed_option, store_option
from tilescout.experiments.research.clock import Clock
from tilescout.experiments.research.runner import Run, device_option, study
from tilescout.search.dispatch.kernels import MOST_ROWS, Kernels, portfolio_of, promising
from tilescout.search.dispatch.measuring import SWEEPING, Sweep
from tilescout.search.dispatch.points import Point
from tilescout.search.engines.local import LocalEngine
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import ModelError, ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

SPACE = "gemm_sm90"


def sizes(count: int, most_rows: int, seed: int) -> list[int]:
    """Numbers of rows, none twice, by turns even and even in the logarithm: any first part is such a mixture."""
    generator = np.random.default_rng(seed)
    found: dict[int, None] = {}
    while len(found) < count:
        draw = np.exp(generator.uniform(0, np.log(most_rows))) if len(found) % 2 else generator.uniform(0, most_rows)
        found.setdefault(int(np.ceil(draw)))
    return list(found)


def product_of(text: str, signature: str) -> GemmProblem:
    """The problem of a product that is written as NxK, with one row.

    Raises
    ------
    ProblemError
        If it is something else.
    """
    n, _, k = text.partition("x")
    if not (n.isdigit() and k.isdigit()):
        raise ProblemError(f"malformed product {text[:40]!r}: expected NxK, for example 6144x4096")
    return GemmProblem.parse(f"1x{n}x{k}:{signature}")


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    products: tuple[str, ...]
    signature: str
    candidates: int
    points: int
    seconds: float
    device: str
    seed: int
    store: Path


@study("a Hopper GPU", out_required=True)
@click.option("--product", "products", multiple=True, required=True, metavar="NxK", help="Repeatable.")
@click.option("--signature", default="bf16", show_default=True, help="Types, layout and epilogue of all products.")
@click.option("--candidates", type=click.IntRange(1, 200), default=32, show_default=True, help="Kernels to time.")
@click.option("--points", type=click.IntRange(min=1), default=100, show_default=True, help="Sizes of each product.")
@click.option("--seconds", type=Finite(min=0), default=150.0, show_default=True, help="Of each product, for its sizes.")
@device_option
@seed_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Sweep every product, and print how the kernels do."""
    template, console = find_template(SPACE), Console(width=160)
    found: dict[str, Any] = {}
    report: dict[str, Any] = {"products": found}
    with LocalEngine(template, artifacts(asked.store), [asked.device], options=SWEEPING) as engine:
        report |= {"device": engine.product, "protocol": engine.protocol, "versions": dict(engine.versions)}
        shipped = shipped_model(SPACE, engine.device.name)
        if shipped is None:
            raise ModelError(f"no model of {SPACE} on {engine.device.name} is shipped: nothing says what to time")
        models = {SPACE: load_model(shipped)[0]}
        for text in asked.products:
            problem = product_of(text, asked.signature)
            whole = portfolio_of(template, problem, engine.device)
            sweep = Sweep(engine, promising(whole, models, MOST_ROWS, asked.candidates))
            points: list[Point] = []
            clock = Clock(asked.seconds)
            for m in clock.in_time(sizes(asked.points, MOST_ROWS, asked.seed)):
                order = np.argsort(np.nan_to_num(sweep.kernels.predict(models, [m])[:, 0], nan=np.inf), kind="stable")
                points.append(sweep.at(m, order.tolist()))
                if len(points) % 10 == 0:
                    found[text] = swept(sweep.kernels, points)
                    run.keep(report)
            found[text] = swept(sweep.kernels, points)
            run.keep(report)
            print_sweep(console, text, points, clock.spent)


def swept(kernels: Kernels, points: list[Point]) -> dict[str, Any]:
    """A sweep as JSON has it."""
    return {
        "problem": str(kernels.problem),
        "kernels": [dict(each) for each in kernels.configurations],
        "points": [point.to_dict() for point in points],
    }


def print_sweep(console: Console, text: str, points: list[Point], seconds: float) -> None:
    """Print the speeds of the best kernel at each size, and what a size costs."""
    best = np.array([1 / min((ratio.value for ratio in point.ratios.values()), default=np.inf) for point in points])
    failed = sum(len(point.failed) for point in points)
    grid = Grid(title=f"{text}: {len(points)} sizes in {seconds:.0f} s, {failed} failures", title_justify="left")
    for heading in ("m", "torch.mm, µs", "best kernel, of its speed", "kernel", "timed", "given up", "s"):
        grid.add_column(heading, justify="right")
    for point, speed in sorted(zip(points, best, strict=True), key=lambda each: each[0].m):
        kernel = min(point.ratios, key=lambda at: point.ratios[at].value, default=-1)
        counts = (str(len(point.ratios)), str(len(point.slower)), f"{point.seconds:.2f}")
        grid.add_row(str(point.m), f"{point.library_us:.1f}", f"{speed:.3f}", str(kernel), *counts)
    console.print(grid)
    mean = float(np.exp(np.log(best[best > 0]).mean())) if (best > 0).any() else float("nan")
    console.print(f"best kernel over torch.mm: {mean:.4f} (geometric mean), {best.min():.3f} to {best.max():.3f}")
