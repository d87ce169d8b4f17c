"""The decisions of a dispatcher, each a pure function of what was measured: kernels, ranges, what to measure next."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.portfolio import CAP, choose_portfolio
from tilescout.search.dispatch.points import Point
from tilescout.search.dispatch.times import Times
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.texts import number_of
from tilescout.spaces.tiling import Integers

BY_LOG = 0.25
"""The share of the sizes that count that is even in the logarithm of m; the others are even in m."""

_EXCHANGES = 20
# The power of the regret whose mean is least: the worst sizes are to count, and single glances are not to decide. Of
# two products whose glances were left out by turns, 1.9 % of m were behind by more than 5 % of one at 3 and 4, 3.0 % at
# 2 and 4.1 % at 1, and 0.1 % of the other at any (3840x1280 and 5120x4096, 178 kernels, H200, 2026-11-23).
_POWER = 3
_THINNED = 1200  # sizes at which kernels are compared: a cliff of the library's may be some ten rows wide
_DOUBT = 0.25
_NEAR = 0.03  # a kernel that may come so close to the best is timed too, and one that did is raced
_LEAST_RACERS, _RACERS = 2, 4


@dataclass(frozen=True)
class Stretch:
    """Numbers of rows, from `low` to `high`, that one kernel serves; None stands for the library."""

    low: int
    high: int
    kernel: int | None


@dataclass(frozen=True)
class Regrets:
    """How much longer than the best something takes, as shares of its time: on average, at worst, and at which m."""

    mean: float
    worst: float
    at: int

    @classmethod
    def of(cls, logs: Floats, sizes: Integers) -> "Regrets":
        """The regrets of logs of times over the best, of shape [sizes]."""
        shares = np.expm1(logs)
        return cls(float(shares.mean()), float(shares.max()), int(sizes[shares.argmax()]))


@dataclass(frozen=True)
class Kept:
    """Kernels to keep, and the regret that is left if each m has the best of them or of the library."""

    kernels: tuple[int, ...]
    regret: Regrets


def choose_kernels(times: Times, count: int, enough: float) -> list[Kept]:
    """The kernels to keep, for each number of them from one to `count`, chosen greedily and by exchanges.

    Kernels are chosen so that the mean cube of the regret is least, which weighs the worst sizes most. A quarter of
    the sizes that count are even in the logarithm of m, the others even in m. The library is there at no cost.

    Parameters
    ----------
    times
        Times of all candidates, and of the library.
    count
        Most kernels.
    enough
        No more kernels are taken once the worst regret is at most this, as a share.
    """
    beside, sizes = _beside_library(times)
    found: list[Kept] = []
    for many in range(1, min(count, len(beside)) + 1):
        chosen = choose_portfolio(beside**_POWER, _even(beside), many, _EXCHANGES).exchanged
        left = np.minimum(beside[list(chosen)].min(axis=0), CAP)
        found.append(Kept(chosen, Regrets.of(left, sizes)))
        if found[-1].regret.worst <= enough:
            break
    return found


def shortlist(times: Times, count: int) -> tuple[int, ...]:
    """The kernels to look at more closely, at most `count`, chosen greedily as `choose_kernels` does."""
    beside, _ = _beside_library(times)
    return choose_portfolio(beside**_POWER, _even(beside), min(count, len(beside))).picked


def _beside_library(times: Times) -> tuple[Floats, Integers]:
    """The regret of each kernel where the library serves whenever it is faster, at some sizes, and these sizes."""
    places = thinned(times.sizes)
    regret = times.regret[:, places]
    return np.minimum(regret[:-1], regret[-1]), times.sizes[places]


def _even(beside: Floats) -> Floats:
    return np.full(beside.shape[1], 1 / beside.shape[1])


def as_they_count(sizes: Integers, most_rows: int) -> Floats:
    """Where some sizes are among those from 0 to `most_rows` as they count, from 0 to 1."""
    by_log = np.log(np.maximum(sizes, 1)) / np.log(max(most_rows, 2))
    return np.asarray(BY_LOG * by_log + (1 - BY_LOG) * sizes / most_rows)


def thinned(sizes: Integers) -> Integers:
    """Places of some sizes, a few of them even in the logarithm and the others even, in rising order."""
    by_log = round(BY_LOG * _THINNED)
    shares, even = ((np.arange(count) + 0.5) / count for count in (by_log, _THINNED - by_log))
    wanted = np.concatenate([np.exp(shares * np.log(sizes[-1])), even * sizes[-1]])
    return np.asarray(np.unique(np.minimum(np.searchsorted(sizes, wanted), len(sizes) - 1)))


def stretches(times: Times, tolerance: float, caution: float = 0.0) -> list[Stretch]:
    """The fewest ranges in which one kernel, or the library, is everywhere within a tolerance of the best.

    Each range is that of the kernel which stays within the tolerance for longest. Where nothing goes on for so long,
    the ranges are as short as they must be.

    Parameters
    ----------
    times
        Times of the kernels that are kept, and of the library.
    tolerance
        Of the time over the best, as a share.
    caution
        So much faster than the library a kernel must be to serve, as a share.

    Raises
    ------
    SpaceError
        If nothing has a time at some m.
    """
    count = len(times.sizes)
    ahead = times.with_faster_library(caution)
    regret = ahead.regret
    good = regret <= np.log1p(tolerance)
    good[:-1] &= ahead.mean[:-1] <= ahead.mean[-1]
    # Of each row, the first place at or behind each place where it is not good.
    places = np.where(good, count, np.arange(count))
    ends = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
    found: list[Stretch] = []
    start = 0
    while start < count:
        longest = ends[:, start].max()
        if longest == start:
            short = number_of(int(times.sizes[start]), "row")
            raise SpaceError(f"none of the kernels is legal for {short}: allow more kernels")
        # Of several that reach as far, the one that is fastest there.
        rows = np.flatnonzero(ends[:, start] == longest)
        row = int(rows[regret[rows, start:longest].mean(axis=1).argmin()])
        kernel = row if row < len(regret) - 1 else None
        found.append(Stretch(int(times.sizes[start]), int(times.sizes[longest - 1]), kernel))
        start = int(longest)
    return found


def choice_of(found: Sequence[Stretch], kernels: int, sizes: Integers) -> Integers:
    """Which row of `Times` serves each size, of shape [sizes]; that of the library is `kernels`."""
    rows = np.array([kernels if each.kernel is None else each.kernel for each in found])
    return np.asarray(rows[np.searchsorted([each.high for each in found], sizes)])


def doubt(times: Times, choice: Integers, caution: float = 0.0) -> Floats:
    """Log of the regret that a size may have, of shape [sizes].

    It is at most the bound by monotony. It is at most what the estimates tell if both the chosen one and the other are
    off by `_DOUBT` of what their neighbours leave open. Where the library serves, no regret is counted that it may have
    by the caution of `stretches`: no measurement could settle that.
    """
    columns = np.arange(len(times.sizes))
    rivals = _at_best(times)
    rivals[choice, columns] = np.inf
    with np.errstate(invalid="ignore"):
        above = np.minimum(times.high[choice, columns] - times.mean[choice, columns], 1.0)
    told = times.mean[choice, columns] + _DOUBT * above - rivals.min(axis=0)
    meant = np.where(choice == len(times.mean) - 1, np.log1p(caution), 0.0)
    return np.asarray(np.clip(np.minimum(told, times.bound(choice)) - meant, 0.0, None))


def worth_timing(times: Times, m: int) -> list[int]:
    """The kernels that may be the fastest at m, the one that is expected to be first; those after it may be pruned.

    There is one wherever one is legal: by the kernels' times it is known what the clock was off.
    """
    at = int(np.searchsorted(times.sizes, m))
    mean, best = times.mean[:, at], _at_best(times)[:, at]
    rows = np.flatnonzero(best[:-1] <= mean.min() + np.log1p(_NEAR))
    ordered = rows[np.argsort(mean[rows], kind="stable")]
    if len(ordered) == 0 and np.isfinite(mean[:-1]).any():
        ordered = np.array([mean[:-1].argmin()])
    return [int(row) for row in ordered]


def worth_racing(point: Point, numbers: Sequence[int]) -> list[int]:
    """Those of some kernels that are near the best at a measured m, the fastest first; at most `_RACERS`.

    The fastest two race even where the library leads by more: what a race tells of them is true of the others, and of
    glances nearby. Without it those stayed 3 to 5 % too long from 1,000 to 6,000 rows of 3072x12288, and the library
    served where kernels led by 3 to 7 % (H200, 2026-11-24).
    """
    near = min([1.0, *(each.value for each in point.ratios.values())]) * (1 + _NEAR)
    timed = sorted(filter(point.ratios.__contains__, numbers), key=lambda number: point.ratios[number].value)
    return [each for at, each in enumerate(timed) if at < _LEAST_RACERS or point.ratios[each].value <= near][:_RACERS]


def _at_best(times: Times) -> Floats:
    """The times if each is below its estimate by `_DOUBT` of what the neighbours leave open."""
    with np.errstate(invalid="ignore"):
        under = np.where(np.isfinite(times.mean), times.mean - times.low, 0.0)
    return times.mean - _DOUBT * under


def next_size(
    times: Times,
    choice: Integers,
    measured: Set[int],
    enough: float,
    allowed: Set[int] | None = None,
    caution: float = 0.0,
) -> int | None:
    """The m to measure next: in the gap between measured m whose doubt is the largest, where its times rise most.

    It is the m that leaves the smaller rise on both of its sides, and of several the one before the largest step.

    Parameters
    ----------
    times, choice
        Times of the kernels that are kept and of the library, at every m, and which of them serves each.
    measured
        The m that were measured, the first and the last of `times.sizes` among them.
    enough
        A doubt that is at most this, as a share, is none.
    allowed
        The m that can be measured; None for all.
    caution
        As of `stretches`.

    Returns
    -------
    int or None
        None if every doubt that can be settled is small enough.
    """
    doubts = doubt(times, choice, caution)
    known = np.isin(times.sizes, list(measured))
    free = ~known if allowed is None else ~known & np.isin(times.sizes, list(allowed))
    doubts[~free] = -np.inf
    worst = int(doubts.argmax())
    if doubts[worst] <= np.log1p(enough):
        return None
    left = int(np.flatnonzero(known[:worst])[-1])
    right = worst + int(np.flatnonzero(known[worst:])[0])
    inside = np.flatnonzero(free[left + 1 : right]) + left + 1
    best = times.mean.min(axis=0)
    served = times.mean[choice, np.arange(len(times.sizes))]
    rise = best + served
    open_left, open_right = rise[inside] - rise[left], rise[right] - rise[inside]
    balance = np.maximum(open_left, open_right)
    near = inside[balance <= balance.min() + 1e-9]
    jump = left + int(np.diff(rise[left : right + 1]).argmax())
    return int(times.sizes[near[np.abs(near - jump).argmin()]])


def unseen_size(found: Sequence[Stretch], measured: Set[int], allowed: Set[int] | None = None) -> int | None:
    """The m in the middle of the widest range in which none was measured; None if there is none.

    Wide is what holds many sizes as they count: at few rows launches are short, and glances at them are further off.
    Ranges end where tiles do, so that their middles divide by 8, as few m do, for which the library may have another
    kernel: it is the odd one beside the middle.

    Parameters
    ----------
    found
        The ranges.
    measured
        The m that were measured.
    allowed
        The m that can be measured; None for all.
    """
    known = np.array(sorted(measured))
    ends = as_they_count(np.array([[each.low - 1, each.high] for each in found]), found[-1].high)
    widest_first: list[int] = np.argsort(ends[:, 0] - ends[:, 1], kind="stable").tolist()
    for each in (found[place] for place in widest_first):
        at = int(np.searchsorted(known, each.low))
        if at < len(known) and known[at] <= each.high:
            continue
        middle = (each.low + each.high) // 2
        if allowed is None:
            return min(middle | 1, each.high)
        inside = [m for m in allowed if each.low <= m <= each.high]
        if inside:
            return min(inside, key=lambda m: abs(m - middle))
    return None


def timed(points: Mapping[int, Point], kept: Sequence[int], choice: Integers) -> list[tuple[int, int]]:
    """Measured m and the kernel that is to serve each and was timed there, that of the smallest lead first."""
    found = [(m, kept[row]) for m in points if (row := int(choice[m - 1])) < len(kept)]
    there = [(m, number) for m, number in found if number in points[m].ratios]
    return sorted(there, key=lambda each: -points[each[0]].ratios[each[1]].high)


def untimed(points: Mapping[int, Point], kept: Sequence[int], choice: Integers) -> list[tuple[int, int]]:
    """Measured m that are to be served by a kernel that was not timed there, and that kernel."""
    found = [(m, int(choice[m - 1])) for m in points]
    return [(m, kept[row]) for m, row in found if not is_timed(points[m], kept, row)]


def where_timed(times: Times, points: Mapping[int, Point], kept: Sequence[int]) -> Times:
    """Times in which a kernel serves no measured m at which others were timed, and it was not."""
    mean = times.mean.copy()
    for m, point in points.items():
        rows = [row for row in range(len(kept)) if not is_timed(point, kept, row)]
        if len(rows) < len(kept):
            mean[rows, m - 1] = np.inf
    return replace(times, mean=mean)


def is_timed(point: Point, kept: Sequence[int], row: int) -> bool:
    """Whether what serves a measured m was timed there; the library always is."""
    return row == len(kept) or kept[row] in point.ratios or kept[row] in point.slower
