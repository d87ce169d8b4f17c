"""Build dispatchers of half of the m of recorded sweeps, and judge them at the other half.

    python -m tilescout.experiments.research dispatch-halves \
        experiments/results/dispatch-2026-11-22/sweep-development.json.gz

Nothing is measured. The half that is given is drawn at random, with the smallest and the largest recorded m; the
dispatcher takes of it the m that it asks for. The regret at an m that was left out is the time of what serves it over
that of the fastest kernel that was timed there, or of `torch.mm` if that is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.search.dispatch.building import DispatchOptions, measure_dispatcher
from tilescout.search.dispatch.dispatcher import Dispatcher
from tilescout.search.dispatch.points import Point
from tilescout.search.dispatch.recorded import Recorded, read_sweep
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

SPACE = "gemm_sm90"
HALVES = 5


@dataclass(frozen=True)
class Halves:
    """Dispatchers of halves of the recorded m of a product.

    Attributes
    ----------
    judged
        The m that were left out, over all halves.
    regret, library
        At each of these: the regret of what the dispatcher serves, and of the library alone.
    points, kernels, ranges
        Of each dispatcher.
    """

    judged: tuple[int, ...]
    regret: tuple[float, ...]
    library: tuple[float, ...]
    points: tuple[int, ...]
    kernels: tuple[int, ...]
    ranges: tuple[int, ...]

    def figures(self) -> dict[str, float]:
        """The figures of all of them."""
        regret, library = np.array(self.regret), np.array(self.library)
        return {
            "judged": len(self.judged),
            "mean": float(regret.mean()),
            "q95": float(np.quantile(regret, 0.95)),
            "worst": float(regret.max()),
            "over_5": float((regret > 0.05).mean()),
            "library_mean": float(library.mean()),
            "library_over_5": float((library > 0.05).mean()),
            "points": float(np.mean(self.points)),
            "kernels": float(np.mean(self.kernels)),
            "ranges": float(np.mean(self.ranges)),
        }


def halved(whole: Recorded, halves: int, seed: int) -> Halves:
    """Build dispatchers of random halves, and judge each at the m that it was not given."""
    sizes = sorted(whole.points)
    options = replace(DispatchOptions(), most_rows=sizes[-1])
    kernels = list(whole.kernels.configurations)
    judged, regrets, alone, made = [], [], [], []
    for number in range(halves):
        drawn = np.random.default_rng(seed + number).permutation(sizes)[: len(sizes) // 2].tolist()
        kept = {*drawn, sizes[0], sizes[-1]}
        half = Recorded(whole.kernels, {m: whole.points[m] for m in sorted(kept)})
        made.append(measure_dispatcher(half, options, "replayed", {}))
        for m in sorted(set(sizes) - kept):
            judged.append(m)
            regrets.append(regret(whole.points[m], _served(made[-1], m, kernels)))
            alone.append(regret(whole.points[m], None))
    return Halves(
        tuple(judged),
        tuple(regrets),
        tuple(alone),
        tuple(len(each.points) for each in made),
        tuple(len(each.kernels) for each in made),
        tuple(len(each.stretches) for each in made),
    )


def regret(point: Point, number: int | None) -> float:
    """The share by which a kernel, or the library, is slower than the best that was timed at a point."""
    known = {**point.slower, **{at: each.value for at, each in point.ratios.items()}}
    return (1.0 if number is None else known[number]) / min([1.0, *known.values()]) - 1


def _served(dispatcher: Dispatcher, m: int, kernels: list[Configuration]) -> int | None:
    kernel = dispatcher.find(m)
    return None if kernel is None else kernels.index(dispatcher.kernels[kernel])


def all_halves(path: Path, products: Sequence[str], halves: int, seed: int) -> dict[str, Halves]:
    """The halves of each product of a file of sweeps; of all without names.

    Raises
    ------
    StoreError
        If the file is none, or has no such product.
    """
    template = find_template(SPACE)
    listed = products or [each["problem"].removeprefix("1x") for each in Record.read(path).result["products"].values()]
    return {
        text: halved(read_sweep(path, GemmProblem.parse(f"1x{text}"), template)[0], halves, seed) for text in listed
    }


@study("a record of the study `dispatch-sweep`")
@click.argument("sweep", type=click.Path(path_type=Path))
@click.option("--product", "products", multiple=True, metavar="NxK[:...]", help="Only this product; repeatable.")
@click.option("--halves", type=click.IntRange(min=1), default=HALVES, show_default=True, help="Random halves of each.")
@seed_option
def main(run: Run, sweep: Path, products: tuple[str, ...], halves: int, seed: int) -> None:
    """Print the regrets at the m that were left out."""
    found = {text: one.figures() for text, one in all_halves(sweep, products, halves, seed).items()}
    grid = Grid(title="regret at recorded m that the dispatcher was not given", title_justify="left")
    for heading in ("product", "m measured", "kernels", "ranges", "m judged", "mean", "95 %", "worst", "over 5 %"):
        grid.add_column(heading, justify="right")
    for heading in ("torch.mm alone, mean", "over 5 %"):
        grid.add_column(heading, justify="right")
    for text, one in found.items():
        counts = (f"{one[name]:.0f}" for name in ("points", "kernels", "ranges", "judged"))
        shares = ("mean", "q95", "worst", "over_5", "library_mean", "library_over_5")
        grid.add_row(text, *counts, *(f"{one[name]:.2%}" for name in shares))
    Console(width=140).print(grid)
    result: dict[str, Any] = found
    run.keep(result)
