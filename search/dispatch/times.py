"""Times between measured m: bounds, for time does not fall as m grows, and an estimate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.search.dispatch.points import Known
from tilescout.search.dispatch.steps import Grid
from tilescout.spaces.tiling import Integers

# Of the glances of ten dispatchers, a part was left out and told by the others (the study `dispatch-left-out`, H200,
# 2026-11-24 and 26). Of the last four, half and twice each of these leave 6.4 to 7.2 % of the ratios more than 2 % off.
_WAVES = 2.0  # with fewer, the time of a kernel over its work changes from one m to the next
_REACH = 0.02  # log of m: so far a pace tells of others of the same kernel, as the width of a Gaussian
_NEIGHBOURS = 4  # of a pace tell of it at least, where m are sparse
_AROUND = 8  # of these, so many on each side at most
_SMOOTHED = 0.005  # log of m: so far glances are smoothed, as the width of a Gaussian
_RACED = 4.0  # glances that count as much as a race
_ROUNDS = 10  # of setting paces and clocks right by turns
_LEAST = 1e-3  # a weight below that is none
_MOST_OFF = 0.12  # log: a clock is not further off, unless the times of its m agree
# An H100 at its power cap took 1.5 times as long at one of 70 m that raced as at its neighbours, in all kernels alike.
# Of four dispatchers 6.0 % of the ratios are more than 2 % off with this rule and 6.7 % without, of two others 12.8 and
# 13.0 % (`experiments/results/dispatchers.md`).
_AGREED_OFF = 0.7  # log: nor is it further off then
_AGREEING = 3  # so many times of an m agree at least
_APART = 0.2  # and are so far apart at most, beside what they are off together
_NEARBY = 256  # see `_telling`
_SAME = 0.1  # log of m: so far a kernel of the library that was measured tells of others that it runs

EIGHTH = 8
"""The library may have another kernel at m that divide by this than at their neighbours; see `_telling`."""


@dataclass(frozen=True, eq=False)
class Times:
    """Times of kernels, and last of the library, at each m: logs of µs, of shape [kernels + 1, sizes].

    Attributes
    ----------
    sizes
        The m, in rising order.
    mean
        The estimate; infinite where a kernel is not legal or failed.
    low, high
        The time is not below `low` and not above `high`, if time does not fall as m grows, and falls no faster than the
        work where m shrinks; at a measured m both are what was measured. `high` is infinite beyond the largest m that a
        kernel was measured at.
    """

    sizes: Integers
    mean: Floats
    low: Floats
    high: Floats

    def take(self, rows: Sequence[int]) -> "Times":
        """Some of the kernels, and the library."""
        kept = [*rows, len(self.mean) - 1]
        return Times(self.sizes, self.mean[kept], self.low[kept], self.high[kept])

    def with_faster_library(self, share: float) -> "Times":
        """The same with a library whose estimates are lower by a share of themselves."""
        mean = self.mean.copy()
        mean[-1] -= np.log1p(share)
        return replace(self, mean=mean)

    @property
    def regret(self) -> Floats:
        """Log of each one's time over the least, by the estimate; infinite where it can't run."""
        least = self.mean.min(axis=0)
        return np.where(np.isfinite(self.mean), self.mean - np.where(np.isfinite(least), least, 0.0), np.inf)

    def bound(self, choice: Integers) -> Floats:
        """Log of the chosen one's time over the least, at most, of shape [sizes].

        Parameters
        ----------
        choice
            Which one serves each m, of shape [sizes].
        """
        others = self.low.copy()
        columns = np.arange(len(self.sizes))
        others[choice, columns] = np.inf
        least = others.min(axis=0)  # infinite where nothing else can run
        worst = self.high[choice, columns] - np.where(np.isfinite(least), least, 0.0)
        return np.where(np.isfinite(least), np.maximum(worst, 0.0), 0.0)


def times_of(grid: Grid, known: Known) -> Times:
    """The times at every m by what was measured at some.

    Between two measured m, the time of a kernel grows with its `Steps.work`; beyond the largest m that it was measured
    at it grows with the work too, and below the smallest it shrinks with it. The same is true of each kernel of the
    library, where it is known which one that runs; see `_library`.

    Parameters
    ----------
    grid
        What is known of the kernels.
    known
        What was measured, at one m at least. See `steadied`.
    """
    sizes, kernels = grid.sizes, len(grid.legal)
    places = np.searchsorted(sizes, known.sizes)
    mean = np.full((kernels + 1, len(sizes)), np.inf)
    low, high = mean.copy(), mean.copy()
    for row, logs in enumerate(known.logs):
        there = np.isfinite(logs)
        if not there.any():
            continue
        if row < kernels:
            work, allowed = grid.work[row], grid.legal[row]
            found = _between(known.sizes[there], logs[there], work[places[there]], sizes, work)
        else:
            allowed, found = np.ones(len(sizes), dtype=np.bool_), _library(grid, known)
        mean[row, allowed], high[row, allowed] = found[0][allowed], found[2][allowed]
        low[row, allowed] = np.minimum(np.maximum(found[1], grid.floor), found[0])[allowed]
    return Times(sizes, mean, low, high)


def _library(grid: Grid, known: Known) -> tuple[Floats, Floats, Floats]:
    """The estimate of the library's time, and the least and the largest, at every m.

    Where it is known which kernel the library runs, measurements of that one nearby tell. Of other m the time grows
    evenly, between those that do not divide by 8 if there are such nearby: a measured one that does tells of itself
    alone.
    """
    sizes, logs = grid.sizes, known.library
    places, grows = np.searchsorted(sizes, known.sizes), sizes.astype(np.float64)
    tells = _telling(known.sizes)
    found = _between(known.sizes[tells], logs[tells], grows[places[tells]], sizes, grows)
    for each in found:
        each[places[~tells]] = logs[~tells]
    if grid.library is None:
        return found
    measured, work = grid.library[places], grid.library_work
    for kernel in np.unique(measured):
        mine, there = measured == kernel, np.flatnonzero(grid.library == kernel)
        own = _between(known.sizes[mine], logs[mine], work[places[mine]], sizes[there], work[there])
        near = _distance(known.sizes[mine], sizes[there]) <= _SAME
        for each, told in zip(found, own, strict=True):
            each[there[near]] = told[near]
    return found


def _distance(measured: Integers, sizes: Integers) -> Floats:
    """How far each size is from the nearest measured one, log."""
    held, asked = np.log(measured), np.log(sizes)
    right = np.minimum(np.searchsorted(held, asked), len(held) - 1)
    left = np.maximum(right - 1, 0)
    return np.asarray(np.minimum(np.abs(held[right] - asked), np.abs(held[left] - asked)))


def steady_times(grid: Grid, known: Known) -> Times:
    """The times at every m, freed of what the clock was off."""
    return times_of(grid, steadied(grid, known))


def steadied(grid: Grid, known: Known) -> Known:
    """The same with times as if the clock had been the same at all m, and glances smoothed.

    The pace of a kernel, its time over its work, changes little from one m to the next, and so does that of a kernel of
    the library. Single glances are off by some percent. So a glance becomes the mean of those nearby, of the same
    kernel and freed of their clocks, and the library's time likewise. What raced weighs more, and stays what it is over
    the library's.
    """
    paces = _Paces.of(grid, known)
    off = paces.clocks()
    smooth = paces.smooth(off)
    kernels = len(grid.legal)
    library, ratios = known.library - off, known.ratios.copy()
    logs = smooth + paces.work
    of_library = paces.rows >= kernels
    library[paces.at[of_library]] = logs[of_library]
    rows, at, told = paces.rows[~of_library], paces.at[~of_library], logs[~of_library]
    glanced = ~known.raced[rows, at]
    rows, at = rows[glanced], at[glanced]
    ratios[rows, at] = told[glanced] - library[at]
    return replace(known, library=library, ratios=ratios)


@dataclass(frozen=True, eq=False)
class _Paces:
    """All that was timed, sorted by what it is of: kernels, then kernels of the library, if it is known which run.

    Attributes
    ----------
    rows, at
        The number of the kernel, and the place of the m; of shape [timed].
    pace, work
        Log of the time over the work, and of the work; of the same shape.
    sizes
        The m.
    trusted
        How much each counts beside a glance.
    """

    rows: Integers
    at: Integers
    pace: Floats
    work: Floats
    sizes: Integers
    trusted: Floats

    @classmethod
    def of(cls, grid: Grid, known: Known) -> "_Paces":
        """Those of what is known."""
        places = np.searchsorted(grid.sizes, known.sizes)
        rows, at = np.nonzero(known.paired)
        logs, work = known.logs[rows, at], np.log(grid.work[rows, places[at]])
        trusted = np.where(known.raced[rows, at], _RACED, 1.0)
        if grid.library is not None:
            rows = np.concatenate([rows, len(grid.legal) + grid.library[places]])
            at = np.concatenate([at, np.arange(len(places))])
            logs = np.concatenate([logs, known.library])
            work = np.concatenate([work, np.log(grid.library_work[places])])
            trusted = np.concatenate([trusted, np.where(known.raced.any(axis=0), _RACED, 1.0)])
        order = np.lexsort((at, rows))
        pace = (logs - work)[order]
        return cls(rows[order], at[order], pace, work[order], known.sizes, trusted[order])

    def clocks(self) -> Floats:
        """Log of how much the clock of the device was off at each m, of shape [sizes].

        Large products draw so much power that the clock depends on what ran before: times of one m are all too long or
        all too short together, by up to some percent, though their ratios are right. A clock is what all paces at its m
        are off what they are expected to be, in the mean; and a pace is expected to be that of its neighbours, freed of
        their clocks. Both are set right by turns. A clock moves all of them alike, a step of its work one kernel alone:
        so only paces that agree tell of one that is far off.
        """
        inside, weights = self._neighbours[0], self._weights(_REACH, _NEIGHBOURS)
        weights[:, _AROUND] = 0.0  # itself
        total = weights.sum(axis=1)
        shares = weights / np.where(total > 0, total, 1.0)[:, None]
        trust = np.minimum(total, 1.0)
        trusted = np.bincount(self.at, trust, len(self.sizes))
        several = np.bincount(self.at, trust > 0, len(self.sizes)) >= _AGREEING

        def mean_at(values: Floats) -> Floats:
            return np.bincount(self.at, trust * values, len(self.sizes)) / np.where(trusted > 0, trusted, 1.0)

        off = np.zeros(len(self.sizes))
        for _ in range(_ROUNDS):
            further = self.pace - (shares * (self.pace - off[self.at])[inside]).sum(axis=1)
            told = mean_at(further)
            apart = np.sqrt(mean_at((further - told[self.at]) ** 2))
            most = np.where(several & (apart <= _APART * np.abs(told)), _AGREED_OFF, _MOST_OFF)
            off = np.clip(told, -most, most)
        return np.asarray(off)

    def smooth(self, off: Floats) -> Floats:
        """The paces, freed of clocks, each as the mean of those of its kernel nearby; of shape [timed]."""
        inside = self._neighbours[0]
        weights = self._weights(_SMOOTHED) * self.trusted[inside]
        return np.asarray((weights * (self.pace - off[self.at])[inside]).sum(axis=1) / weights.sum(axis=1))

    @cached_property
    def _neighbours(self) -> tuple[Integers, Floats]:
        """The neighbours of each, itself in the middle, and how far they are, log of m; of shape [timed, neighbours].

        Those of another kernel are infinitely far.
        """
        around = np.arange(len(self.at))[:, None] + np.arange(-_AROUND, _AROUND + 1)
        inside = np.clip(around, 0, max(len(self.at) - 1, 0))
        place = np.log(self.sizes[self.at])
        there = (around == inside) & (self.rows[inside] == self.rows[:, None])
        return inside, np.where(there, np.abs(place[inside] - place[:, None]), np.inf)

    def _weights(self, reach: float, least: int = 0) -> Floats:
        """How much the neighbours of each count, of shape [timed, neighbours].

        Parameters
        ----------
        reach
            How far they count, log of m.
        least
            So many neighbours are within reach where m are sparse, as in sweeps, and a time has some waves.
        """
        _, far = self._neighbours
        nearest = np.sort(far, axis=1)[:, least]  # the first is the distance to itself
        sparse = np.isfinite(nearest) & (self.work >= np.log(_WAVES))
        width = np.maximum(reach, np.where(sparse, nearest, reach))
        weights = np.exp(-0.5 * (far / width[:, None]) ** 2)
        weights[weights < _LEAST] = 0.0
        return np.asarray(weights)


def _telling(measured: Integers) -> NDArray[np.bool_]:
    """Which measured m tell of the library at others: those that divide by 8 do only where no others are near.

    The library may have another kernel there than at both neighbours: at 10 of 160 such m of four products it took more
    than 5 % longer or less (H200, 2026-11-23).
    """
    plain = measured % EIGHTH != 0
    held = measured[plain]
    if len(held) < 2:
        return np.ones(len(measured), dtype=np.bool_)
    right = np.clip(np.searchsorted(held, measured), 1, len(held) - 1)
    inside = (measured > held[0]) & (measured < held[-1])
    return np.asarray(plain | ~inside | (held[right] - held[right - 1] > _NEARBY))


def _between(
    measured: Integers, logs: Floats, at: Floats, sizes: Integers, grows: Floats
) -> tuple[Floats, Floats, Floats]:
    """The estimate, and the least and the largest time, of one kernel at every size."""
    right = np.searchsorted(measured, sizes)
    left = np.maximum(np.where(measured[np.minimum(right, len(measured) - 1)] == sizes, right, right - 1), -1)
    over, below = right == len(measured), left < 0
    right, left = np.minimum(right, len(measured) - 1), np.maximum(left, 0)
    first, second = np.exp(logs[left]), np.exp(logs[right])
    width = np.asarray(at[right] - at[left], dtype=np.float64)
    by_size = (sizes - measured[left]) / np.maximum(measured[right] - measured[left], 1)
    share = np.where(width > 0, (grows - at[left]) / np.where(width > 0, width, 1.0), by_size)
    mean = np.log(first + (second - first) * np.clip(share, 0.0, 1.0))
    beyond = logs[-1] + np.log(np.maximum(grows / at[-1], 1.0))
    less = logs[0] + np.log(np.minimum(grows / at[0], 1.0))
    low = np.where(below, less, np.minimum(logs[left], logs[right]))
    high = np.where(over, np.inf, np.maximum(logs[left], logs[right]))
    low = np.where(over, logs[-1], low)
    return np.where(over, beyond, np.where(below, less, mean)), low, high
