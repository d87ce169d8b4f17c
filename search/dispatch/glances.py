"""Glances at many m: they find the cliffs, a kernel's or the library's, that lie between the m that were measured.

The library chooses among dozens of kernels by m, and not all of its choices are good: at 216 to 240 rows of 21504x3072
its time is half as long again as at 208 and at 248 (H200, cuBLASLt 13.1, 2026-11-23). Nothing but a look at such m
tells.
"""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilescout.search.dispatch.plan import as_they_count
from tilescout.search.dispatch.points import Point, Source
from tilescout.search.dispatch.steps import Grid
from tilescout.search.dispatch.times import EIGHTH, Times, steady_times
from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.measure.glance import SETTLED_FROM_US
from tilescout.spaces.constraints import Mask
from tilescout.spaces.errors import one_line

_LOG = logging.getLogger(__name__)

_CELLS = ((2048, 8), (8192, 64))  # rows of a cell up to so many rows: as fine as tiles are, the library's among them
_WIDEST = 128
_NEAR = 0.12  # a kernel that is expected to be so much behind the best at an m is not glanced at there
_GROWTH = 1.25  # what is expected is told anew once so much more is known
_FAILURES = 5  # of glances, after which there are no more
_TOGETHER = 240  # kernels that are glanced at, at one m after the other, without a pause: that takes up to a second
_FINE = 32  # rows of a cell for the kernels that are kept
_MOST_OFF = 0.25  # log: a glance is not further off


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


def fine_sizes(most_rows: int) -> list[int]:
    """The m to glance at with the kernels that are kept alone, in the order in which they are.

    First come the m behind the middle of each cell of 32 rows, then all that divide by 8 up to 2,048, where the library
    takes more than 5 % longer or less than at both neighbours at a tenth of them, then those beyond, where it does so
    at one of forty, by turns with the middles of cells of 16 rows.
    """
    few = min(_CELLS[0][0], most_rows)
    middles, halves = (
        [min(start + cell // 2 + 1, most_rows) for start in range(0, most_rows, cell)] for cell in (_FINE, _FINE // 2)
    )
    eighths = [m for m in range(EIGHTH, most_rows + 1, EIGHTH) if m > few]
    parts = [middles, list(range(EIGHTH, few + 1, EIGHTH)), sorted({*halves, *eighths} - {*middles})]
    return list(dict.fromkeys(m for part in parts for m in _in_order(part, most_rows)))


def _in_order(found: Sequence[int], most_rows: int) -> list[int]:
    """Some m, ordered so that any first part of them is spread as the sizes are that count."""
    places = as_they_count(np.array(found, dtype=np.int64), most_rows)
    left, ordered = np.ones(len(found), dtype=np.bool_), list[int]()
    for at in range(len(found)):
        nearest = int(np.where(left, np.abs(places - _van_der_corput(at)), np.inf).argmin())
        left[nearest] = False
        ordered.append(found[nearest])
    return ordered


def short_first(sizes: Sequence[int], times: Times) -> list[int]:
    """The same, those first at which the library takes too short to be settled before: a glance there costs little."""
    short = times.mean[-1, np.searchsorted(times.sizes, sizes)] < math.log(SETTLED_FROM_US)
    return [sizes[at] for at in np.argsort(~short, kind="stable")]


def spread(ordered: list[int]) -> list[int]:
    """The same in the order of the van der Corput sequence, so that any first part is spread over all."""
    return [ordered[place] for place in sorted(range(len(ordered)), key=_van_der_corput)]


def _van_der_corput(at: int) -> float:
    """A number of the sequence, from 0 to 1: any first part of them is spread evenly."""
    return int(f"{at:016b}"[::-1], 2) / 2**16


def corrected(glances: Mapping[int, Point], points: Mapping[int, Point]) -> dict[int, Point]:
    """Glances whose ratios are as those in a sandwich.

    Launches that nothing stands between take another time over the library's than those in a sandwich. So the ratios of
    glances are multiplied by what those that were measured are off there, in the median of the kernels near the
    fastest: slow ones are off by up to 14 % where that one is by 1 % (200 rows of 21504x3072, H200,
    2026-11-24). Between such m that factor is interpolated by the inverse of the library's time, for it is some time
    that a sandwich adds.
    """
    both = [m for m in glances.keys() & points.keys() if glances[m].ratios.keys() & points[m].ratios.keys()]
    if not both:
        return dict(glances)
    both.sort(key=lambda m: 1 / glances[m].library_us)
    off = [float(np.median(_apart(glances[m], points[m]))) for m in both]
    short = [1 / glances[m].library_us for m in both]
    found = {}
    for m, glance in glances.items():
        factor = float(np.exp(np.interp(1 / glance.library_us, short, off)))
        found[m] = replace(glance, ratios={number: each.times(factor) for number, each in glance.ratios.items()})
    return found


def merged(glances: Mapping[int, Point], points: Mapping[int, Point]) -> dict[int, Point]:
    """All that is known of each m: what was measured, and else what a glance told, as `corrected`."""
    return beside(corrected(glances, points), points)


def beside(glances: Mapping[int, Point], points: Mapping[int, Point]) -> dict[int, Point]:
    """All that is known of each m: what was measured, and else what a glance told."""
    found = dict(points)
    for m, glance in glances.items():
        if m not in points:
            found[m] = glance
            continue
        known = points[m]
        left = glance.ratios.keys() - {*known.ratios, *known.slower, *known.failed}
        found[m] = replace(known, ratios={**{number: glance.ratios[number] for number in left}, **known.ratios})
    return found


class Looked:
    """Glances at kernels, at one m after the other, and what is expected of all by them and by what was measured.

    Parameters
    ----------
    source, grid
        Where they come from, and what is known of all candidates at the m that there are glances at, and at others.
    points
        What was measured.
    """

    def __init__(self, source: Source, grid: Grid, points: Mapping[int, Point]) -> None:
        self._source, self._grid, self._points = source, grid, points
        self.found: dict[int, Point] = {}
        self._failures = 0

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return len(self._grid.legal)

    def times(self) -> Times:
        """The times of all candidates at the m of the grid."""
        return steady_times(self._grid, merged(self.found, self._points))

    def glance(self, numbers: Sequence[int], sizes: Sequence[int], until: float, near_by: float = _NEAR) -> None:
        """Glance at those of some kernels that may be near the best and are not known yet, at some m, until some time.

        They may be near if they are expected to be behind by a share of `near_by` at most, or if nothing is known of
        them at any m. What was recorded has no glances.
        """
        if self._source.sizes is not None:
            return
        told = 0
        near: Mask = np.empty((0, 0), dtype=np.bool_)
        waiting: dict[int, list[int]] = {}
        for m in dict.fromkeys([*spread(sorted(self._points)), *sizes]):
            if time.monotonic() > until or self._failures == _FAILURES:
                return
            if len(self.found) + len(waiting) >= told * _GROWTH or not told:
                self._see(waiting)
                near, waiting, told = self._near(near_by), {}, len(self.found) + 1
            here, known = near[:, np.searchsorted(self._grid.sizes, m)], self.found.get(m, Point(m, 1.0)).ratios
            if shown := [number for number in numbers if here[number] and number not in known]:
                waiting[m] = shown
            if sum(map(len, waiting.values())) >= _TOGETHER:
                self._see(waiting)
                waiting = {}
        self._see(waiting)

    def _near(self, near_by: float) -> Mask:
        """Which candidates may be near the best at each m of the grid, as far as is known."""
        expected = self.times().mean[:-1]
        unknown = np.asarray(~np.isfinite(expected).any(axis=1))
        return np.asarray((expected <= expected.min(axis=0) + np.log1p(near_by)) | unknown[:, None])

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


def _apart(glance: Point, point: Point) -> list[float]:
    """Log of the measured ratio over that of a glance, of the fastest kernel and each near it."""
    shared = glance.ratios.keys() & point.ratios.keys()
    near = min(point.ratios[number].value for number in shared) * (1 + _NEAR)
    shared = {number for number in shared if point.ratios[number].value <= near}
    logs = [float(np.log(point.ratios[number].value / glance.ratios[number].value)) for number in shared]
    return [float(np.clip(each, -_MOST_OFF, _MOST_OFF)) for each in logs]
