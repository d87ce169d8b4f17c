"""Time ``torch.mm`` where 8 divides m and at both neighbours, and ask what cuBLASLt's heuristic names there.

    python -m tilescout.experiments.research library-eighths --out eighths.json

At random m that divide by 8, half of them up to 2,048 rows, the three sizes are timed by turns, in chains over copies
of B that the L2 has lost. An m is off if its time differs by more than 5 % from the mean of its neighbours'. Whether it
is told by what the heuristic names first, which needs no launch, is counted beside that.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.search.dispatch.kernels import MOST_ROWS
from tilescout.search.dispatch.times import EIGHTH
from tilescout.search.measure.machine import Block, Machine, make_machine
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.templates import find_template

PRODUCTS = ("3584x3584", "1280x5120", "3456x1152", "6912x1152")
FEW_ROWS = 2048
OFF = 0.05
_BLOCK_US, _ROUNDS, _SETTLING_US = 100.0, 5, 20_000.0
_MOST_COPIES = 8


def drawn(count: int, seed: int) -> list[int]:
    """Random m that divide by 8 and have two neighbours, half of them up to `FEW_ROWS`, in rising order."""
    generator = np.random.default_rng(seed)
    few = np.arange(EIGHTH, FEW_ROWS + 1, EIGHTH)
    more = np.arange(FEW_ROWS + EIGHTH, MOST_ROWS, EIGHTH)
    chosen = [generator.choice(few, count // 2, replace=False), generator.choice(more, -(-count // 2), replace=False)]
    return sorted(np.concatenate(chosen).tolist())


def times_us(machine: Machine, sizes: Sequence[int], n: int, k: int) -> list[float]:
    """The time of ``torch.mm`` in µs at each of some m, by turns."""
    import torch

    dtype, device = torch.bfloat16, machine.device
    copies = min(_MOST_COPIES, 1 + 2 * machine.l2_bytes // (2 * n * k))
    weights = [torch.randn(n, k, dtype=dtype, device=device).t() for _ in range(copies)]
    turns = itertools.count()

    def block(m: int, count: int) -> Block:
        a, out = torch.randn(m, k, dtype=dtype, device=device), torch.empty(m, n, dtype=dtype, device=device)

        def run() -> None:
            for _ in range(count):
                torch.mm(a, weights[next(turns) % len(weights)], out=out)

        return Block(run)

    once_us = median(machine.times_us([block(sizes[0], 1)] * 4))
    count = max(1, math.ceil(_BLOCK_US / once_us))
    blocks = [block(m, count) for m in sizes]
    settling = [blocks[0]] * max(1, math.ceil(_SETTLING_US / (count * once_us)) if count == 1 else 1)
    found = np.array(machine.times_us([*settling, *(blocks * _ROUNDS)], skip=len(settling))) / count
    return [float(each) for each in np.median(found.reshape(_ROUNDS, len(sizes)), axis=0)]


def measured(machine: Machine, products: Sequence[GemmProblem], sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Each group of three m of each product: their times, and what the heuristic names first at each."""
    loader = load_loader(find_template("cublaslt").loader)
    for product, m in itertools.product(products, sizes):
        group = [m - 1, m, m + 1]
        named = [loader.listing(str(replace(product, m=each)), 1).rows[0] for each in group]
        library_us = [round(each, 2) for each in times_us(machine, group, product.n, product.k)]
        yield {
            "n": product.n, "k": product.k, "m": group, "library_us": library_us, "first": [list(row) for row in named]
        }  # fmt: skip


def figures(groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How many m are off from their neighbours, of all, of few and of more rows, and by what the heuristic names."""
    times = np.array([group["library_us"] for group in groups])
    rows = np.array([group["m"][1] for group in groups])
    other = np.array([not group["first"][0] == group["first"][1] == group["first"][2] for group in groups])
    off = np.abs(times[:, 1] / times[:, [0, 2]].mean(axis=1) - 1) > OFF
    apart = np.abs(times[:, 2] / times[:, 0] - 1) > OFF
    few = rows <= FEW_ROWS
    told: dict[str, float] = {"sizes": len(groups)}
    for name, those in (("few", few), ("more", ~few), ("same", ~other), ("other", other)):
        told |= {f"{name}_sizes": int(those.sum()), f"{name}_off": int(off[those].sum())}
        told[f"{name}_neighbours_apart"] = int(apart[those].sum())
    return told | {"off": int(off.sum()), "share_off": float(off.mean())}


def print_figures(console: Console, groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Print and return the figures."""
    told = figures(groups)
    grid = Grid(title=f"torch.mm where {EIGHTH} divides m: more than {OFF:.0%} from the mean of both neighbours")
    for heading in ("m", "sizes", "off", "neighbours apart by as much"):
        grid.add_column(heading, justify="right" if heading != "m" else "left")
    titles = {
        "few": f"up to {FEW_ROWS:,}",
        "more": "beyond",
        "same": "the heuristic names the same at all three",
        "other": "it does not",
    }
    for name, title in titles.items():
        grid.add_row(title, *(str(told[f"{name}_{part}"]) for part in ("sizes", "off", "neighbours_apart")))
    console.print(grid)
    return told


@study(GPU_OR_RECORD, again=True)
@click.option(
    "--product", "products", multiple=True, default=PRODUCTS, show_default=True, help="A product, as NxK. Repeatable."
)
@click.option("--sizes", type=click.IntRange(min=2), default=40, show_default=True, help="m of each product.")
@device_option
@seed_option
def main(run: Run, products: Sequence[str], sizes: int, device: str, seed: int) -> None:
    """Measure, or print the figures of a record again."""
    console = Console(width=110)
    if run.record is not None:
        print_figures(console, run.record.result["groups"])
        return
    machine, groups = make_machine(device), list[dict[str, Any]]()
    report: dict[str, Any] = {"gpu": machine.name, "versions": machine.versions(), "groups": groups}
    asked = [GemmProblem.parse(f"1x{each}:bf16") for each in products]
    for group in measured(machine, asked, drawn(sizes, seed)):
        groups.append(group)
        run.keep(report)
    report["figures"] = print_figures(console, groups)
    run.keep(report)
