"""The expected results of random search, computed from a table in closed form instead of simulated.

Random search draws configurations uniformly without replacement. If K of M configurations are good, n draws miss every
good one with probability C(M - K, n) / C(M, n). Everything below follows from that.
"""

import numpy as np

from tilescout.experiments.compare.truth import Floats


def expected_best(values: Floats, trials: int) -> Floats:
    """The expected smallest of n draws, for n = 1, 2, ..., `trials`.

    With x_1 <= x_2 <= ... the sorted values, the smallest draw exceeds x_i if none of the first i was drawn, so its
    expectation is x_1 + sum over i of (x_{i+1} - x_i) * C(M - i, n) / C(M, n).

    Parameters
    ----------
    values
        What can be drawn, of shape [configurations].
    trials
        Most draws. From as many draws as there are values on, the smallest value is certain.

    Returns
    -------
    array
        Of shape [trials].
    """
    ordered = np.sort(values)
    total = len(ordered)
    gaps = np.diff(ordered)
    left = total - np.arange(1.0, total)  # values behind each gap
    missed = np.ones(total - 1)  # the probability that so far none before the gap was drawn
    expected = np.full(trials, ordered[0])
    for n in range(min(trials, total - 1)):
        missed *= np.maximum(left - n, 0) / (total - n)
        expected[n] += gaps @ missed
    return expected


def best_at_expected_rank(values: Floats, trials: int) -> Floats:
    """The value at the expected rank of the smallest of n draws, (M + 1) / (n + 1), for n = 1, 2, ..., `trials`.

    The baseline as Willemsen et al. compute it. Where few values are far slower than the rest, as with kernels, it lies
    below the expected value.
    """
    ordered = np.sort(values)
    ranks = np.rint((len(ordered) + 1) / (np.arange(trials) + 2)).astype(np.int64)
    best: Floats = ordered[np.maximum(ranks, 1) - 1]
    return best


def expected_trials(good: int, total: int) -> float:
    """The expected number of draws up to the first of `good` among `total`: (total + 1) / (good + 1)."""
    return (total + 1) / (good + 1)


def quantile_trials(good: int, total: int, quantile: float) -> int:
    """The fewest draws that hit one of `good` among `total` with at least this probability."""
    return int(np.searchsorted(hit_probability(good, total, total), quantile - 1e-12) + 1)


def hit_probability(good: int, total: int, trials: int) -> Floats:
    """The probability that n draws hit one of `good` among `total`, for n = 1, 2, ..., `trials`."""
    drawn = np.arange(trials)
    still_missing = np.maximum(total - good - drawn, 0) / np.maximum(total - drawn, 1)
    return np.asarray(1 - np.cumprod(still_missing), dtype=np.float64)
