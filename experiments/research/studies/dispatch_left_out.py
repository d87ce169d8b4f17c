"""Tell from recorded dispatchers how well glances are told by others, with what the library names and without.

    python -m tilescout.experiments.research dispatch-left-out \
        experiments/results/dispatch-2026-11-26/judged-254.json.gz

Nothing is measured. A part of the glances that built a dispatcher is left out at random, and what they told is compared
with what is expected by the others and by the races: how far a kernel's time over the library's is off, and the regret
of the kernel that is expected to be the fastest, or of the library where none leads by a hundredth. Glances are rough
themselves, so that all figures are rather too large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.arrays import Floats
from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.dispatch_figures import MEASURED
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.search.dispatch.building import DispatchOptions
from tilescout.search.dispatch.bundling import kernels_of
from tilescout.search.dispatch.dispatcher import Dispatcher
from tilescout.search.dispatch.glances import gathered
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.dispatch.points import Known, Point
from tilescout.search.dispatch.steps import Grid as Sizes
from tilescout.search.dispatch.times import Times, steady_times
from tilescout.spaces.errors import StoreError

SHARE = 0.3
"""Of the glances, those that are left out."""

LEAD = DispatchOptions.caution
"""A kernel that is expected to lead by less does not serve, as a share."""

WITH, WITHOUT = "named", "unnamed"


@dataclass(frozen=True)
class LeftOut:
    """Glances that were left out, and what was expected of them.

    Attributes
    ----------
    off
        Log of the expected ratio over the one that a glance told, of every kernel at every m.
    regret
        Of what is expected to be the fastest at each m, as a share.
    """

    off: Floats
    regret: Floats

    def figures(self) -> dict[str, float]:
        """How many there are, how often they are off, and the regrets."""
        return {
            "sizes": len(self.regret),
            "root_mean_square": float(np.sqrt((self.off**2).mean())),
            "off_2": float((np.abs(self.off) > 0.02).mean()),
            "off_5": float((np.abs(self.off) > 0.05).mean()),
            "mean": float(self.regret.mean()),
            "over_2": float((self.regret > 0.02).mean()),
            "over_5": float((self.regret > 0.05).mean()),
        }


def left_out(made: Dispatcher, kernels: Kernels, grid: Sizes, seed: int) -> LeftOut:
    """Leave out some of the glances of a dispatcher, and tell how far what is expected of them is off."""
    points, glances = ({each.m: each for each in held} for held in (made.points, made.glances))
    alone = sorted(glances.keys() - points.keys())
    drawn = np.random.default_rng(seed).choice(alone, round(SHARE * len(alone)), replace=False).tolist()
    hidden = _told({m: glances.pop(m) for m in drawn}, len(kernels))
    known = gathered(points, _told(glances, len(kernels)), len(kernels))
    return compared(steady_times(grid, known), hidden)


def _told(glances: Mapping[int, Point], kernels: int) -> Known:
    return Known.of(glances, kernels, told="glanced")


def compared(times: Times, hidden: Known) -> LeftOut:
    """Compare what is expected at some m with glances there."""
    at = np.searchsorted(times.sizes, hidden.sizes)
    with np.errstate(invalid="ignore"):
        expected = times.mean[:-1, at] - times.mean[-1, at]
    both = np.isfinite(hidden.ratios) & np.isfinite(expected)
    asked, told = (np.where(both, each, np.inf) for each in (expected, hidden.ratios))
    columns = np.arange(len(at))
    kernel = asked.argmin(axis=0)
    serves = asked[kernel, columns] <= -np.log1p(LEAD)
    regret = np.where(serves, told[kernel, columns], 0.0) - np.minimum(told.min(axis=0), 0.0)
    return LeftOut((expected - hidden.ratios)[both], np.expm1(regret))


def all_left_out(records: Sequence[Path], seed: int) -> dict[str, dict[str, LeftOut]]:
    """The glances that were left out of each record of `dispatch-judge`, with what the library names and without.

    Raises
    ------
    StoreError
        If a dispatcher was built before it was known what the library names.
    """
    found = {}
    for path in records:
        for product, one in Record.read(path).result["products"].items():
            made = Dispatcher.from_dict(one["dispatchers"][MEASURED])
            if made.named is None:
                raise StoreError(f"{path}: the dispatcher of {product} does not hold what the library names")
            kernels = kernels_of(made)
            grid = Sizes.of(kernels, made.most_rows, made.named)
            ways = {WITH: grid, WITHOUT: grid.without_library()}
            name = f"{product} of {path.name.split('.')[0]}"
            found[name] = {way: left_out(made, kernels, known, seed) for way, known in ways.items()}
    return found


def all_figures(found: Mapping[str, Mapping[str, LeftOut]]) -> dict[str, Any]:
    """The figures of each record, and their means."""
    each = {name: {way: one.figures() for way, one in ways.items()} for name, ways in found.items()}
    means = {
        way: {key: float(np.mean([ways[way][key] for ways in each.values()])) for key in next(iter(each.values()))[way]}
        for way in (WITH, WITHOUT)
    }
    return {"records": each, "mean": means}


@study("records of the study `dispatch-judge`")
@click.argument("records", type=click.Path(path_type=Path), nargs=-1, required=True)
@seed_option
def main(run: Run, records: tuple[Path, ...], seed: int) -> None:
    """Print how far glances are off that were left out."""
    result = all_figures(all_left_out(records, seed))
    grid = Grid(title="glances that were left out, told by the others", title_justify="left")
    for heading in ("record", "the library's kernels", "m"):
        grid.add_column(heading)
    for heading in ("off, rms", "over 2 %", "over 5 %", "regret, mean", "over 2 %", "over 5 %"):
        grid.add_column(heading, justify="right")
    shares = ("root_mean_square", "off_2", "off_5", "mean", "over_2", "over_5")
    for name, ways in {**result["records"], "mean": result["mean"]}.items():
        for way, one in ways.items():
            grid.add_row(name, way, f"{one['sizes']:.0f}", *(f"{one[key]:.2%}" for key in shares))
    Console(width=140).print(grid)
    run.keep(result)
