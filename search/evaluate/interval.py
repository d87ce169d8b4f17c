"""What a handful of paired ratios says: their median, and how sure it is."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import median

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of some values and its 95 % confidence interval (low, high).

    The interval lies between two order statistics, by the binomial distribution of how many values fall below the true
    median: it supposes nothing of the values' distribution but that they are independent (David and Nagaraja, Order
    Statistics, 3rd edition, section 7.1). Fewer than 6 values give less confidence than asked for: then it is their
    range.
    """
    ordered = sorted(values)
    rank = _rank(len(ordered))
    return median(ordered), ordered[rank], ordered[len(ordered) - 1 - rank]


@cache
def _rank(count: int) -> int:
    """The largest r such that the r-th value and the r-th from the end enclose the median confidently enough."""
    below, rank = 0.0, -1
    while rank + 1 < (count + 1) // 2:
        below += math.comb(count, rank + 1) * 0.5**count
        if 2 * below > 1 - CONFIDENCE:
            break
        rank += 1
    return max(rank, 0)
