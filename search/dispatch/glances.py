"""Glances at many m: they find the cliffs, a kernel's or the library's, that lie between the m that were measured.

The library chooses among dozens of kernels by m, and not all of its choices are good: at 216 to 240 rows of 21504x3072
its time is half as long again as at 208 and at 248 (H200, cuBLASLt 13.1, 2026-11-23). Nothing but a look at such m
tells.
"""

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.search.dispatch.plan import as_they_count
from tilescout.search.dispatch.points import Known, Point, Source
from tilescout.search.dispatch.steps import Grid
from tilescout.search.dispatch.times import EIGHTH, Times, steady_times
from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.measure.glance import SETTLED_FROM_US
from tilescout.spaces.constraints import Mask
from tilescout.spaces.errors import one_line
from tilescout.spaces.tiling import Integers

_LOG = logging.getLogger(__name__)

_CELLS = ((2048, 8), (8192, 64))  # rows of a cell up to so many rows: as fine as tiles are, the library's among them
_WIDEST = 128
_NEAR = 0.12  # a kernel that is expected to be so much behind the best at an m is not glanced at, and corrects none
_MOST_OFF = 0.25  # log: a glance is not further off
_ALIKE = 7  # races that tell together what a glance is off
_GROWTH = 1.25  # what is expected is told anew once so much more is known
_FAILURES = 5  # of glances, after which there are no more
_TOGETHER = 240  # kernels that are glanced at, at one m after the other, without a pause: that takes up to a second
_EACH = 64  # rows up to which every m is glanced at
_FINE = 32  # rows of a cell for the kernels that are kept


def glanced_sizes(most_rows: int) -> list[int]:
    """The m to glance at, one in each cell; any first part of them is spread as the sizes are that count.

    A tile begins where a cell does, and m that divide by 8 may have other kernels of the library than their neighbours:
    it is the m behind the middle of the cell. Three of five cells are up to 2,048 rows: of a product so large that the
    time is over before all are glanced at, as few glances as those sizes count fall there.
    """
    found, start = list[int](), 0
    while start < most_rows:
        cell = next((rows for end, rows in _CELLS if start < end), _WIDEST)
        found.append(min(start + cell // 2 + 1, most_rows))
        start += cell
    return _in_order(found, most_rows)


def fine_sizes(most_rows: int, library: Integers | None = None) -> list[int]:
    """The m to glance at with the kernels that are kept alone, in the order in which they are.

    First come the m behind the middle of each cell of 32 rows, then all up to 64, where launches are short and the
    fastest kernel changes within some rows, then one m in each cell of every other kernel that the library runs in it.
    Then come all that divide by 8 up to 2,048, where the library takes more than 5 % longer or less than at both
    neighbours at a tenth of them, then those beyond, where it does so at one of forty, by turns with the middles of
    cells of 16 rows.

    Parameters
    ----------
    most_rows
        The largest m.
    library
        The number of the kernel that the library names at 1, 2, … rows; None if that is not known.
    """
    few = min(_CELLS[0][0], most_rows)
    middles, halves = (
        [min(start + cell // 2 + 1, most_rows) for start in range(0, most_rows, cell)] for cell in (_FINE, _FINE // 2)
    )
    eighths = [m for m in range(EIGHTH, most_rows + 1, EIGHTH) if m > few]
    first = list(range(1, min(_EACH, most_rows) + 1))
    others = _unseen([*middles, *first], library) if library is not None else []
    parts = [middles, first, others, list(range(EIGHTH, few + 1, EIGHTH)), sorted({*halves, *eighths} - {*middles})]
    return list(dict.fromkeys(m for part in parts for m in _in_order(part, most_rows)))


def _unseen(seen: Sequence[int], library: Integers) -> list[int]:
    """One m in each cell of 32 rows of every kernel that the library runs there and at none of some m."""
    groups = np.arange(len(library)) // _FINE * (library.max() + 1) + library
    order = np.argsort(groups, kind="stable")
    held, first, count = np.unique(groups[order], return_index=True, return_counts=True)
    middles = order[first + count // 2] + 1
    return [int(m) for m in middles[~np.isin(held, groups[np.array(seen) - 1])]]


def _in_order(found: Sequence[int], most_rows: int) -> list[int]:
    """Some different m, ordered so that any first part of them is spread as the sizes are that count.

    Next is always the one that is left nearest to the next number of the sequence.
    """
    sizes, count, ordered = sorted(found), len(found), list[int]()
    sequence = [_van_der_corput(at) for at in range(count)]
    where = as_they_count(np.array(sizes, dtype=np.int64), most_rows)
    places = [-math.inf, *where.tolist(), math.inf]  # the first of the sizes is number 1 from here on
    below, above = list(range(count + 2)), list(range(count + 2))  # itself, or where to look on if it is taken
    for wanted, at in zip(sequence, np.searchsorted(where, sequence).tolist(), strict=True):
        low, high = _free(below, at), _free(above, at + 1)
        nearest = low if wanted - places[low] <= places[high] - wanted else high
        ordered.append(sizes[nearest - 1])
        below[nearest], above[nearest] = nearest - 1, nearest + 1
    return ordered


def _free(leads_to: list[int], at: int) -> int:
    """The first that leads to itself, on the way from one; the way is shortened for whoever comes next."""
    while leads_to[at] != at:
        leads_to[at] = leads_to[leads_to[at]]
        at = leads_to[at]
    return at


def short_first(sizes: Sequence[int], times: Times) -> list[int]:
    """The same, those first at which the library takes too short to be settled before: a glance there costs little."""
    short = times.mean[-1, np.searchsorted(times.sizes, sizes)] < math.log(SETTLED_FROM_US)
    return [sizes[at] for at in np.argsort(~short, kind="stable")]


def spread(ordered: list[int]) -> list[int]:
    """The same in the order of the van der Corput sequence, so that any first part is spread over all."""
    return [ordered[place] for place in sorted(range(len(ordered)), key=_van_der_corput)]


def _van_der_corput(at: int) -> float:
    """A number of the sequence, from 0 to 1: any first part of them is spread evenly."""
    return int(f"{at:b}"[::-1], 2) / (1 << at.bit_length())


def corrected(glances: Known, points: Known) -> Known:
    """Glances whose ratios are as those in a sandwich, by what was measured at some of their m.

    Launches that nothing stands between take another time over the library's than those in a sandwich. So the ratios of
    glances are multiplied by what those that were measured are off there, in the median of the kernels near the
    fastest, the library among them: slow ones are off by up to 14 % where that one is by 1 % (200 rows of 21504x3072,
    H200, 2026-11-24). It is some time that a sandwich adds, so that launches are alike whose library takes as long:
    that factor is the median of those nearby by the inverse of the library's time, and interpolated between them.
    """
    return replace(glances, ratios=glances.ratios + _off(glances, points))


def corrected_points(glances: Sequence[Point], points: Sequence[Point], kernels: int) -> tuple[Point, ...]:
    """Glances in rising order of m, as `corrected`."""
    held, measured = ({each.m: each for each in some} for some in (glances, points))
    factors = np.exp(_off(Known.of(held, kernels, told="glanced"), Known.of(measured, kernels))).tolist()
    return tuple(
        replace(held[m], ratios={number: each.times(factor) for number, each in held[m].ratios.items()})
        for m, factor in zip(sorted(held), factors, strict=True)
    )


def gathered(points: Mapping[int, Point], glances: Known, kernels: int, promised: bool = False) -> Known:
    """All that is known: what raced, then glances, `corrected` before, then what was timed one by one.

    Parameters
    ----------
    points, glances
        What was measured, by m, and glances.
    kernels, promised
        As of `Known.of`.
    """
    raced = Known.of(points, kernels, promised)
    return raced.beside(glances).beside(Known.of(points, kernels, told="timed"))


def _off(glances: Known, points: Known) -> Floats:
    """Log of what the ratios of glances are off, of shape [sizes of the glances]."""
    _, seen, measured = np.intersect1d(glances.sizes, points.sizes, assume_unique=True, return_indices=True)
    both = glances.paired[:, seen] & points.paired[:, measured]
    told = np.where(both, points.ratios[:, measured], np.inf)
    near = told <= np.minimum(told.min(axis=0), 0.0) + np.log1p(_NEAR)
    tells = near.any(axis=0)
    if not tells.any():
        return np.zeros(len(glances.sizes))
    apart = np.clip(points.ratios[:, measured] - glances.ratios[:, seen], -_MOST_OFF, _MOST_OFF)
    off = np.nanmedian(np.where(near, apart, np.nan)[:, tells], axis=0)
    short = np.exp(-glances.library)
    held = short[seen[tells]]
    order = np.argsort(held, kind="stable")
    held, off = held[order], off[order]
    reach = np.minimum(np.minimum(np.arange(len(off)), np.arange(len(off))[::-1]), _ALIKE // 2)
    level = [np.median(off[at - far : at + far + 1]) for at, far in enumerate(reach.tolist())]
    return np.asarray(np.interp(short, held, level))


class Looked:
    """Glances at kernels, at one m after the other, and what is expected of all by them and by what was measured.

    Parameters
    ----------
    source, grid
        Where they come from, and what is known of all candidates.
    sizes
        The m that there are to be glances at, and others at which times are expected: all m would take a hundred times
        as long.
    points
        What was measured; times are expected there, too.
    """

    def __init__(self, source: Source, grid: Grid, sizes: Collection[int], points: Mapping[int, Point]) -> None:
        self._source, self._grid, self._sizes, self._points = source, grid, {*sizes}, points
        self.found: dict[int, Point] = {}
        self._failures = 0

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return len(self._grid.legal)

    def times(self) -> Times:
        """The times of all candidates, at some m."""
        sizes = np.array(sorted({*self._sizes, *self._points, *self.found}))
        return steady_times(self._grid.at(sizes), self.gathered())

    def gathered(self, promised: bool = False) -> Known:
        """All that is known of all candidates; see `gathered`."""
        glances = corrected(self.known, Known.of(self._points, self.count))
        return gathered(self._points, glances, self.count, promised)

    @property
    def known(self) -> Known:
        """The glances, as they came."""
        return Known.of(self.found, self.count, told="glanced")

    def glance(self, numbers: Sequence[int], sizes: Sequence[int], until: float, near_by: float = _NEAR) -> None:
        """Glance at those of some kernels that may be near the best and are not known yet, at some m, until some time.

        They may be near if they are expected to be behind by a share of `near_by` at most, or if nothing is known of
        them at any m. What was recorded has no glances.
        """
        if self._source.sizes is not None:
            return
        told = 0
        near: dict[int, Mask] = {}
        waiting: dict[int, list[int]] = {}
        for m in dict.fromkeys([*spread(sorted(self._points)), *sizes]):
            if time.monotonic() > until or self._failures == _FAILURES:
                return
            if len(self.found) + len(waiting) >= told * _GROWTH or not told:
                self._see(waiting)
                near, waiting, told = self._near(near_by), {}, len(self.found) + 1
            known = self.found.get(m, Point(m, 1.0)).ratios
            if shown := [number for number in numbers if near[m][number] and number not in known]:
                waiting[m] = shown
            if sum(map(len, waiting.values())) >= _TOGETHER:
                self._see(waiting)
                waiting = {}
        self._see(waiting)

    def _near(self, near_by: float) -> dict[int, Mask]:
        """Which candidates may be near the best at each m, as far as is known."""
        times = self.times()
        expected = times.mean[:-1]
        near: Mask = expected <= expected.min(axis=0) + np.log1p(near_by)
        near[~np.isfinite(expected).any(axis=1)] = True
        return {m: near[:, at] for at, m in enumerate(times.sizes.tolist())}

    def _see(self, asked: Mapping[int, Sequence[int]]) -> None:
        """Glance at some kernels at some m."""
        if not asked:
            return
        try:
            for glance in self._source.glances(asked):
                self.add(glance)
        except CannotMeasureError as error:
            _LOG.warning("no glances at %d sizes: %s", len(asked), one_line(error))
            self._failures += 1

    def add(self, glance: Point) -> None:
        """Know of a glance, besides what is known of its m."""
        before = self.found.get(glance.m, glance)
        self.found[glance.m] = replace(before, ratios={**before.ratios, **glance.ratios})
