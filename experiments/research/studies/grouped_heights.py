"""Tell from recorded races what tiles of several heights, or a perfect last wave, would bring grouped products.

    python -m tilescout.experiments.research grouped-heights floor-race.json.gz --out heights.json

It needs what ``grouped peers`` recorded: times of many kernels, each on some problems. From these a model is fitted
that tells the time of a kernel by three totals over all its tiles: products by the tensor cores, bytes out of the L2,
where blocks of a cluster share some, and bytes out of memory. The q-norm of the three, each at a rate of its own, is
the time: with a large q they overlap wholly, with 1 not at all. So it is told what a kernel would take whose tiles are
of other sizes. Two checks say how far that may be trusted: how far told times are from measured ones, and what trimmed
tiles, which save products and no loads, should have saved beside what they did.

In the mixtures full tiles of an expert are those of a recorded kernel, and the rest of an expert is one tile of the
least height that holds it, all in one launch without a gap: what a real one would lose at their border is not counted.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped_floor import PROCESSORS, floor_us
from tilescout.experiments.research.studies.grouped_standing import SPACES
from tilescout.spaces.errors import NoResultError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration

Totals = NDArray[np.float64]
_TOTALS = ("products", "bytes out of the L2", "bytes out of memory")

MIXTURES: Mapping[str, Mapping[int, int]] = {
    "64 or 128 rows": {64: 256, 128: 192},
    "16 to 128 rows": {16: 256, 32: 256, 64: 256, 128: 192},
    "32, 64, 96 or 128 rows": {32: 256, 64: 256, 96: 192, 128: 192},
}
"""Heights of the tiles for the rest of an expert, and the columns of each: as many as registers hold sums of."""

_NEAR = 1.3  # rows of the fit are within so much of their problem's fastest
_POWERS = np.linspace(1.0, 6.0, 101)


@dataclass(frozen=True)
class Timed:
    """A kernel that was timed on a problem."""

    problem: GroupedProblem
    configuration: Configuration
    us: float

    @property
    def totals(self) -> Totals:
        """Its totals, in the mean over draws."""
        return totals(self.problem, tiles_of(self.problem, self.configuration))

    @property
    def same_tile(self) -> tuple[GroupedProblem, tuple[tuple[str, Any], ...]]:
        """The problem, and all of the configuration but whether tiles are trimmed."""
        return self.problem, tuple((name, value) for name, value in self.configuration.items() if name != "trim")


@dataclass(frozen=True)
class Tiles:
    """Some tiles of every expert: their number along the tokens of each, their rows and columns, and what is shared.

    Attributes
    ----------
    along
        Tiles along the tokens: [draws, experts].
    rows, columns
        Of a tile.
    blocks
        Of a cluster: those along the tokens, which share loads of weights, and along the columns, which share tokens.
    multiplied
        Of the rows of all tiles, how many are multiplied; all, if none are told.
    """

    along: NDArray[np.int64]
    rows: int
    columns: int
    blocks: tuple[int, int] = (1, 1)
    multiplied: NDArray[np.float64] | None = field(default=None, repr=False)


def tiles_of(problem: GroupedProblem, configuration: Configuration) -> list[Tiles]:
    """The tiles of a kernel."""
    turn = -1 if configuration["swap_ab"] else 1
    rows, columns = (int(configuration[name]) for name in ("tile_m", "tile_n")[::turn])
    blocks = [int(configuration[name]) for name in ("cluster_m", "cluster_n")[::turn]]
    sizes = _sizes(problem)
    along = -(-sizes // (rows * blocks[0])) * blocks[0]
    multiplied = (along * rows).astype(np.float64)
    if configuration["trim"]:
        rest = sizes % rows
        multiplied -= ((rest > 0) & (rest <= rows // 2)) * rows / 2
    return [Tiles(along, rows, columns, (blocks[0], blocks[1]), multiplied)]


def mixed(problem: GroupedProblem, configuration: Configuration, heights: Mapping[int, int]) -> list[Tiles]:
    """The full tiles of a kernel without swapped operands, and tiles of other heights for the rest of each expert."""
    whole = tiles_of(problem, configuration)[0]
    sizes = _sizes(problem)
    found = [Tiles(sizes // whole.rows, whole.rows, whole.columns, (1, whole.blocks[1]))]
    for below, height in pairwise((0, *sorted(heights))):
        rest = sizes % whole.rows
        found.append(Tiles(((rest > below) & (rest <= height)).astype(np.int64), height, heights[height]))
    return found


def totals(problem: GroupedProblem, tiles: Sequence[Tiles]) -> Totals:
    """The totals of tiles, in the mean over draws; weights and tokens come out of memory once."""
    computed = moved = 0.0
    for each in tiles:
        across = math.ceil(problem.n / (each.columns * each.blocks[1])) * each.blocks[1]
        along = float(each.along.sum(axis=1).mean())
        rows = along * each.rows if each.multiplied is None else float(each.multiplied.sum(axis=1).mean())
        computed += rows * across * each.columns * problem.k
        shared = each.rows / each.blocks[1] + each.columns / each.blocks[0]
        moved += along * across * shared * problem.k * problem.element.bytes
    return np.array([computed, moved, float(problem.bytes)])


def _sizes(problem: GroupedProblem) -> NDArray[np.int64]:
    return np.array([draw.groups for draw in problem.draws])


@dataclass(frozen=True)
class Model:
    """The time of totals: the q-norm of the time of each by itself.

    Attributes
    ----------
    power
        q.
    costs
        µs of each unit of the totals.
    """

    power: float
    costs: NDArray[np.float64]

    def us(self, those: Sequence[Totals]) -> NDArray[np.float64]:
        """The told times."""
        told: NDArray[np.float64] = ((np.array(those) * self.costs) ** self.power).sum(axis=1) ** (1 / self.power)
        return told

    @classmethod
    def fitted(cls, those: Sequence[Totals], us: Sequence[float]) -> "Model":
        """The one whose told times are nearest to measured ones."""
        parts, measured = np.array(those), np.array(us)
        scale = parts.mean(axis=0)

        def of(power: float) -> "Model":
            # A q-norm is linear in the q-th powers of the costs.
            weights, _ = nnls((parts / scale / measured[:, None]) ** power, np.ones(len(measured)))
            return cls(power, weights ** (1 / power) / scale)

        return min((of(float(power)) for power in _POWERS), key=lambda one: one.error(those, us))

    def error(self, those: Sequence[Totals], us: Sequence[float]) -> float:
        """The root of the mean squared logarithm of told over measured times."""
        return float(np.sqrt(np.mean(np.log(self.us(those) / np.array(us)) ** 2)))


def timed(record: Mapping[str, Any]) -> list[Timed]:
    """The kernels of our spaces that were timed, near the fastest of their problem."""
    found = list[Timed]()
    for text, one in record["problems"].items():
        problem = GroupedProblem.parse(text)
        rows = [row for space in SPACES for row in one["spaces"].get(space, ()) if "ratio" in row]
        limit = _NEAR * min((row["ratio"] for row in rows), default=0.0)
        found += [
            Timed(problem, Configuration.of(row["configuration"]), row["ratio"] * one["library_us"])
            for row in rows
            if row["ratio"] <= limit
        ]
    return found


def last_wave(problem: GroupedProblem, configuration: Configuration) -> float:
    """The time of a kernel's waves over that of as many tiles without a last wave that is not full."""
    (tiles,) = tiles_of(problem, configuration)
    across = math.ceil(problem.n / (tiles.columns * tiles.blocks[1]))
    clusters = PROCESSORS // math.prod(tiles.blocks)
    waves = tiles.along.sum(axis=1) // tiles.blocks[0] * across / clusters
    return float((np.ceil(waves) / waves).mean())


def trimming(those: Sequence[Timed], model: Model) -> dict[str, dict[str, float]]:
    """For each uneven problem, the time of trimmed over whole tiles, as told and as measured: geometric means."""
    pairs = defaultdict[Any, dict[int, Timed]](dict)
    for each in those:
        pairs[each.same_tile][int(each.configuration["trim"])] = each
    ratios = defaultdict[str, list[tuple[float, float]]](list)
    for both in pairs.values():
        if len(both) == 2 and both[0].problem.routing.kind != "balanced":
            told = model.us([both[1].totals, both[0].totals])
            ratios[str(both[0].problem)].append((float(told[0] / told[1]), both[1].us / both[0].us))
    return {
        text: {
            "told": geometric_mean(one for one, _ in held),
            "measured": geometric_mean(one for _, one in held),
        }
        for text, held in ratios.items()
    }


def gains(those: Sequence[Timed], model: Model) -> dict[str, dict[str, float]]:
    """For each uneven problem, told times over that of the kernel of today that is told the fastest."""
    by_problem = defaultdict[str, list[Timed]](list)
    for each in those:
        if each.problem.routing.kind != "balanced":
            by_problem[str(each.problem)].append(each)
    found = dict[str, dict[str, float]]()
    for text, held in by_problem.items():
        problem, fastest = held[0].problem, min(held, key=lambda one: one.us)
        today = float(model.us([each.totals for each in held]).min())
        bases = {each.same_tile[1]: each.configuration for each in held if not each.configuration["swap_ab"]}
        found[text] = {"over": fastest.us / floor_us(problem), "last wave": last_wave(problem, fastest.configuration)}
        for name, heights in MIXTURES.items():
            made = [totals(problem, mixed(problem, each, heights)) for each in bases.values() if each["tile_m"] == 128]
            if made:
                found[text][name] = float(model.us(made).min()) / today
    return found


def mean_of(by_problem: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Geometric means over problems."""
    names = dict.fromkeys(name for each in by_problem.values() for name in each)
    return {name: geometric_mean(each[name] for each in by_problem.values() if name in each) for name in names}


@study("what `grouped peers` recorded")
@click.argument("path", type=click.Path(path_type=Path))
def main(run: Run, path: Path) -> None:
    """Fit the model to a record of `grouped peers`, PATH, and tell what other tiles would take."""
    those = timed(Record.read(path).result)
    if len(those) <= len(_TOTALS):
        raise NoResultError(f"{path} has {len(those)} kernels of ours that were timed: too few for a model")
    parts, us = [each.totals for each in those], [each.us for each in those]
    model = Model.fitted(parts, us)
    trims, found = trimming(those, model), gains(those, model)
    rates = {name: float(1 / cost) if cost else math.inf for name, cost in zip(_TOTALS, model.costs, strict=True)}
    result = {"kernels": len(those), "power": model.power, "a_us": rates, "error": model.error(parts, us)}
    summary = {"trimmed": mean_of(trims), "problems": mean_of(found)}
    run.keep({**result, "trimmed": trims, "problems": found, "summary": summary})
    print(f"{len(those)} times told within {result['error']:.1%} (root of the mean square), power {model.power:.2f}")
    for text, each in found.items():
        shown = ", ".join(f"{name} {value:.3f}" for name, value in each.items())
        trim = trims.get(text)
        beside = f"; trimmed told {trim['told']:.3f}, measured {trim['measured']:.3f}" if trim else ""
        print(f"{text:<46} {shown}{beside}")
    for name, means in summary.items():
        print(f"{name}, geometric means: " + ", ".join(f"{each} {value:.3f}" for each, value in means.items()))
