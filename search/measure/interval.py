"""The mean of a handful of repeated values, and its confidence interval."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
TRIMMED = 0.2  # share of the values that is cut off at either end
WIDEST = math.log(1e6)
"""Half of an interval of a log ratio at most: two heats on a busy host gave one of 46, which no record could hold."""
_PRIOR_FREEDOM = 10  # the noise that was known before counts as much as so many values


def mean_interval(
    values: Sequence[float], noise: float = 0.0, repeat: float = 0.0, shared: float = 1.0
) -> tuple[float, float, float]:
    """The middle of some positive values and its 95 % confidence interval (low, high).

    The middle is the trimmed geometric mean: without the largest and the smallest fifth, so that disturbed launches
    don't count. The interval is a t-interval from the winsorised variance (J. W. Tukey and D. H. McLaughlin, Less
    vulnerable confidence and significance procedures for location, Sankhya A 25, 1963). Two values say little of their
    variance. So it is averaged with the noise that was known before, as in the moderated t-test (G. K. Smyth, Linear
    models and empirical Bayes methods, Statistical Applications in Genetics and Molecular Biology 3, 2004).

    Parameters
    ----------
    values
        At least one.
    noise
        Standard deviation of a value that is expected before any is seen, relative; 0 where nothing is known.
    repeat
        Standard deviation between measurements, relative: what no number of values within one can show.
    shared
        How many times larger the variance of their mean is than if the values were independent.
    """
    logs = np.sort(np.log(values))
    count, cut = len(logs), int(TRIMMED * len(logs))
    kept = logs[cut : count - cut]
    middle = float(kept.mean())
    prior = _PRIOR_FREEDOM if noise else 0
    freedom = prior + len(kept) - 1
    if not freedom:
        return math.exp(middle), math.exp(middle), math.exp(middle)
    winsorised = np.clip(logs, kept[0], kept[-1])
    # Trimming leaves fewer values, and winsorising makes them look quieter than they are: both are made up for.
    own = float(((winsorised - winsorised.mean()) ** 2).sum()) * (count / len(kept)) ** 2
    variance = (prior * noise**2 + own) / (prior + count - 1)
    error = math.sqrt(shared * variance / count + repeat**2)
    half = min(t_quantile(0.5 + CONFIDENCE / 2, freedom) * error, WIDEST)
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def usual_range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Three standard deviations to either side of the median; what is outside was disturbed.

    The deviation is that of a normal distribution with the same median distance from the median.
    """
    middle = float(np.median(values))
    away = 3 * 1.4826 * float(np.median(abs(values - middle)))
    return middle - away, middle + away


def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's distribution.

    Of 1 degree of freedom it has a closed form. Of more it is by the expansion about the normal one, M. Abramowitz and
    I. A. Stegun, Handbook of Mathematical Functions, 26.7.5: within 1 % from 3 on, up to a probability of 0.995. Of 2
    it is 0.7 % too small at 0.975, as published intervals have it. The measuring process has no scipy.
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, start=1)))
