"""The kernels that serve the m that were measured: whether each was timed there, and where it must have been."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilescout.search.dispatch.points import Point
from tilescout.search.dispatch.times import Times
from tilescout.spaces.tiling import Integers


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
