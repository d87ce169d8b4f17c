"""Glances at many m: they find the cliffs, a kernel's or the library's, that lie between the m that were measured.

The library chooses among dozens of kernels by m, and not all of its choices are good: at 216 to 240 rows of 21504x3072
its time is half as long again as at 208 and at 248 (H200, cuBLASLt 13.1, 2026-11-23). Nothing but a look at such m
tells.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilescout.search.dispatch.points import Point

_CELLS = ((2048, 8),)  # rows of a cell up to so many rows: as fine as tiles are, the library's among them
_WIDEST = 64
_MOST_OFF = 0.1  # log: a glance is not further off


def glanced_sizes(most_rows: int) -> list[int]:
    """The m to glance at, one in each cell; any first part of them is spread over all sizes.

    A tile begins where a cell does, and m that divide by 8 may have other kernels of the library than their neighbours:
    it is the m behind the middle of the cell.
    """
    found, start = [], 0
    while start < most_rows:
        cell = next((rows for end, rows in _CELLS if start < end), _WIDEST)
        found.append(min(start + cell // 2 + 1, most_rows))
        start += cell
    return spread(found)


def spread(ordered: list[int]) -> list[int]:
    """The same in the order of the van der Corput sequence, so that any first part is spread over all."""
    return [ordered[place] for place in sorted(range(len(ordered)), key=lambda place: int(f"{place:016b}"[::-1], 2))]


def merged(glances: Mapping[int, Point], points: Mapping[int, Point]) -> dict[int, Point]:
    """All that is known of each m: what was measured, and else what a glance told.

    Launches that nothing stands between take another time over the library's than those in a sandwich. So the ratios of
    glances are multiplied by what those that were measured are off there, in the median of the kernels; between such m
    that factor is interpolated.
    """
    both = sorted(m for m in glances.keys() & points.keys() if glances[m].ratios.keys() & points[m].ratios.keys())
    off = [float(np.median(_apart(glances[m], points[m]))) for m in both]
    found = dict(points)
    for m, glance in glances.items():
        factor = float(np.exp(np.interp(np.log(m), np.log(both), off))) if both else 1.0
        told = {number: each.times(factor) for number, each in glance.ratios.items()}
        if m not in points:
            found[m] = replace(glance, ratios=told)
            continue
        known = points[m]
        left = told.keys() - {*known.ratios, *known.slower, *known.failed}
        found[m] = replace(known, ratios={**{number: told[number] for number in left}, **known.ratios})
    return found


def _apart(glance: Point, point: Point) -> list[float]:
    """Log of the measured ratio of each kernel over that of a glance."""
    shared = glance.ratios.keys() & point.ratios.keys()
    logs = [float(np.log(point.ratios[number].value / glance.ratios[number].value)) for number in shared]
    return [float(np.clip(each, -_MOST_OFF, _MOST_OFF)) for each in logs]
