"""Draw problems that a cost model learns from: sizes spread evenly, of no model in particular.

    python -m tilescout.experiments.research draw-spread --out spaces/suites/spread.toml

Real models repeat a few sizes, so a model learned from them alone has seen few ratios of m to n to k. These sizes are a
Sobol sequence in the logarithms of m, n and k, which leaves no gap. n and k are multiples of 64 as most widths are, and
every fourth problem's are multiples of 16 bytes only. The products (n, k) of the published models of `draw-problems`,
of both lists, are passed over: they are to judge by. `--rows`, `--columns` and `--depth` ask for another range of
sizes, and `--multiple` for rounder widths, as the largest models have them:

    python -m tilescout.experiments.research draw-spread --rows 1024 16384 --columns 1024 16384 --out many-rows.toml
    python -m tilescout.experiments.research draw-spread --multiple 256 --out round.toml
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.draw_problems import keep_suite, pooled
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.suite import Entry
from tilescout.spaces.templates import complement_of, find_template

PROBLEMS = 48
DRAWN = 512  # sizes of the sequence, before those that are too large are passed over
ROWS = (1, 16384)
COLUMNS = (8, 131072)
DEPTH = (256, 32768)
MULTIPLES = (64, 128, 256, 512)
MULTIPLE = MULTIPLES[0]
MOST_FLOP = 2 * 8192**3
"""The largest product takes 1.5 ms on an H200: larger ones would take most of the time of a campaign."""
MOST_BYTES = 2**31
"""Of the operands and the result in bf16, for they are allocated several times over."""


def _log_scaled(share: NDArray[np.float64], low: int, high: int) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = np.exp(np.log(low) + share * np.log(high / low))
    return scaled


@dataclass(frozen=True)
class Ranges:
    """The least and the largest m, n and k that are drawn, and what n and k of three in four are multiples of."""

    rows: tuple[int, int] = ROWS
    columns: tuple[int, int] = COLUMNS
    depth: tuple[int, int] = DEPTH
    multiple: int = MULTIPLE

    def __str__(self) -> str:
        named = zip("mnk", (self.rows, self.columns, self.depth), strict=True)
        text = ", ".join(f"{size} from {least} to {most}" for size, (least, most) in named)
        return text if self.multiple == MULTIPLE else f"{text}, most n and k multiples of {self.multiple}"


def drawn(seed: int, types: str = "bf16", most: int = PROBLEMS, ranges: Ranges = Ranges()) -> Iterator[Entry]:
    """The problems of these types, in the order of the sequence."""
    from scipy.stats import qmc

    kept_out = pooled()
    points = qmc.Sobol(3, rng=np.random.default_rng(seed)).random_base2(DRAWN.bit_length() - 1)
    aligned = 16 // GemmProblem.parse(f"64x64x64:{types}").element.bytes
    granule = np.where(np.arange(len(points)) % 4 == 3, aligned, ranges.multiple)
    m = np.rint(_log_scaled(points[:, 0], *ranges.rows)).astype(int)
    n, k = (
        np.maximum(np.rint(_log_scaled(points[:, column], *limits) / granule), 1).astype(int) * granule
        for column, limits in ((1, ranges.columns), (2, ranges.depth))
    )
    small = (2 * m * n * k <= MOST_FLOP) & (2 * (m * n + m * k + n * k) <= MOST_BYTES)
    found = 0
    for row in np.flatnonzero(small):
        if (int(n[row]), int(k[row])) not in kept_out and found < most:
            found += 1
            yield Entry(f"{m[row]}x{n[row]}x{k[row]}:{types}", "spread")


def _complemented(entries: Iterator[Entry], space: str | None) -> Iterator[Entry]:
    """Those that are searched in the complement of a space, too, on an H200; all without a space."""
    for entry in entries:
        problem = GemmProblem.parse(entry.problem)
        if space is None or complement_of(find_template(space), problem, find_device("h200")) is not None:
            yield entry


def _rising(context: click.Context, option: click.Parameter, limits: tuple[int, int]) -> tuple[int, int]:
    if limits[0] > limits[1]:
        raise click.BadParameter(f"the least, {limits[0]}, is above the most, {limits[1]}: give them in rising order")
    return limits


def _range_option(name: str, limits: tuple[int, int], size: str) -> Callable[..., Any]:
    least_and_most = (click.IntRange(min=1), click.IntRange(min=1))
    return click.option(
        name,
        type=least_and_most,
        metavar="LEAST MOST",
        default=limits,
        show_default=True,
        callback=_rising,
        help=f"The range of {size}.",
    )


@study("nothing but a sequence of numbers", out_required=True)
@click.option("--types", default="bf16", show_default=True, help="Of the products, as in `e4m3-bf16`.")
@click.option("--problems", type=click.IntRange(min=1), default=PROBLEMS, show_default=True, help="How many.")
@_range_option("--rows", ROWS, "m")
@_range_option("--columns", COLUMNS, "n")
@_range_option("--depth", DEPTH, "k")
@click.option(
    "--multiple",
    type=click.Choice(MULTIPLES),
    default=MULTIPLE,
    show_default=True,
    help="Of n and k, but for every fourth problem.",
)
@click.option("--beside", metavar="SPACE", help="Only those on which kernels of this one's complement may be faster.")
@seed_option
def main(
    run: Run,
    types: str,
    problems: int,
    rows: tuple[int, int],
    columns: tuple[int, int],
    depth: tuple[int, int],
    multiple: int,
    beside: str | None,
    seed: int,
) -> None:
    """Write the suite of evenly spread problems."""
    ranges = Ranges(rows, columns, depth, multiple)
    entries = list(islice(_complemented(drawn(seed, types, DRAWN, ranges), beside), problems))
    for entry in entries:
        click.echo(entry.problem)
    source = f"a Sobol sequence of seed {seed} in the logarithms of m, n and k; sizes of published models are left out"
    if ranges != Ranges():
        source += f"; {ranges}"
    keep_suite(run, "Sizes spread evenly, for a model to learn from", source, entries)
