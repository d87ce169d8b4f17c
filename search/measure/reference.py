"""The library as a kernel's reference: what to divide the kernel's times by."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.interval import mean_interval, usual_range
from tilescout.search.measure.protocol import Estimate, ProtocolOptions

# The coefficient of kernels on the library within measurements from which their times are said to move together. The
# library's own noise hides most of it: on an H200 it was 0.07 to 0.09 where nothing was common (16x4096x4096), 0.24 to
# 0.44 where half to two thirds of what moved the library moved kernels too, 0.7 to 1 at the power cap.
_TOGETHER = 0.2
_FORGET = 0.95  # weight of what earlier measurements said of it, at each further one
_AWAY = 0.0075  # the library is this far from its level, relative: something drifts, whatever the pairs say
_RECENT = 16  # measurements over which running means go
_LEAST = 6  # pairs from which something is learnt
_KNOWN = 4  # measurements after which what was learnt is used


class Reference:
    """An estimator of the library's time on a problem, updated by every measurement.

    A kernel's time is divided by the time of the library's kernel, which runs right before and after it (a paired
    measurement). At its power cap a GPU's clock moves by percents within milliseconds. It moves both times alike, so
    their ratio is free of it. Below the cap the clock stands still. Then the two have no common cause of variation, and
    the division only adds the library's noise.

    So the library's time is a shrinkage estimate. Within a measurement, the time beside each block of the kernel is
    shrunk towards the measurement's mean. The factor is the regression coefficient of the kernel's times on the
    library's, since the library is a control variate (B. L. Nelson, Control variate remedies, Operations Research 38,
    1990). Between measurements, that mean is shrunk towards the running mean of the last measurements, the level. The
    factor is the share of its variance that the noise of the library's blocks does not explain (W. James and C. Stein,
    Estimation with quadratic loss, Fourth Berkeley Symposium, 1961). Both factors are near 1 at the power cap: then
    nothing is shrunk.

    The library's level also drifts where the kernels' times do not. So the factor between measurements is 0, unless
    kernel and library vary together within measurements, or the device reports that its clock is throttled. (A clock
    that moves from one measurement to the next does not show within them.)

    Parameters
    ----------
    block_us
        The library's steady time of a block, in µs.
    alone
        Times of blocks of the library one after another, for its noise.
    options
        The protocol's numbers.
    """

    def __init__(self, block_us: float, alone: Sequence[float], options: ProtocolOptions) -> None:
        self._options = options
        self._level, self._measurements = math.log(block_us), 0
        self._covariance = self._variance = 0.0
        times = np.asarray(alone)
        self._noise = _deviation(2 * times[1:-1] / (times[:-2] + times[2:]))  # of a ratio
        self._block_noise = _deviation(times[1:] / times[:-1]) / math.sqrt(2)  # of the library's block
        self._unexplained = 0.0  # mean square of departures from the level, less what noise makes of it

    @property
    def within(self) -> float:
        """The shrinkage factor within a measurement; 1, which shrinks nothing, until something is known."""
        return min(max(self._covariance / self._variance, 0.0), 1.0) if self._variance else 1.0

    def between(self, pairs: int, throttled: bool = False) -> float:
        """The shrinkage factor between measurements, for one of so many pairs; 1 until enough is known."""
        if self._measurements < _KNOWN:
            return 1.0
        if not (self.within >= _TOGETHER or throttled) or self._moves == 0:
            return 0.0
        return self._moves / (self._moves + self._block_noise**2 / pairs)

    @property
    def _moves(self) -> float:
        """The variance of the library's level between measurements."""
        return max(0.0, self._unexplained)

    def estimate(
        self, kernel_us: NDArray[np.float64], beside_us: NDArray[np.float64], throttled: bool = False
    ) -> Estimate:
        """The ratio to the library by some pairs, with its interval.

        Parameters
        ----------
        kernel_us, beside_us
            Times of the kernel's blocks, and of the library's beside them, in µs.
        throttled
            Whether the device's clock was held below its maximum.
        """
        beside = np.log(beside_us)
        middle = _middle(beside_us)
        departure = middle - self._level
        between = 1.0 if abs(departure) > _AWAY else self.between(len(kernel_us), throttled)
        within = self.within
        library = self._level + between * departure + within * (beside - middle)
        found: list[float] = (kernel_us / np.exp(library)).tolist()
        # Neighbours share a block of the library. If all blocks are equally noisy, the variance of a value is
        # 1 + within² / 2 times a block's, and that of the mean of n values 1 + between² times a block's over n.
        shared = (1 + between**2) / (1 + within**2 / 2)
        # If the clock that both have in common moves, the kernel's time has the part of the drift that was shrunk away.
        left = (1 - between) * math.sqrt(self._moves) if within >= _TOGETHER else 0.0
        repeat = math.hypot(self._options.repeat, left)
        return Estimate(*mean_interval(found, self._noise, repeat, shared), found)

    def learn(self, kernel_us: NDArray[np.float64], beside_us: NDArray[np.float64]) -> None:
        """Take in the pairs of a finished measurement."""
        count = len(kernel_us)
        if count < _LEAST:
            return
        kernel, beside = _undisturbed(kernel_us, beside_us)
        self._covariance = _FORGET * self._covariance + float((kernel * beside).sum())
        self._variance = _FORGET * self._variance + float((beside**2).sum())
        self._noise += (_deviation(kernel_us / beside_us) - self._noise) / _RECENT
        # Neighbours' means share a block: their differences have half the variance of a block's.
        block_noise = math.sqrt(2) * _deviation(beside_us[1:] / beside_us[:-1])
        self._block_noise += (block_noise - self._block_noise) / _RECENT
        # The library's steady time, taken while it runs alone, differs from its time beside kernels: not used here.
        self._measurements += 1
        departure = _middle(beside_us) - self._level
        if self._measurements > 1:
            share = 1 / min(self._measurements - 1, _RECENT)
            explained = self._block_noise**2 / count * (1 + share)
            self._unexplained += (departure**2 - explained - self._unexplained) * share
        self._level += departure / min(self._measurements, _RECENT)


def _middle(times: NDArray[np.float64]) -> float:
    """The logarithm of the trimmed mean."""
    return math.log(mean_interval(times.tolist())[0])


def _undisturbed(
    kernel_us: NDArray[np.float64], beside_us: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centred logarithms of the pairs whose ratio is a usual one."""
    kernel, beside = np.log(kernel_us), np.log(beside_us)
    low, high = usual_range(kernel - beside)
    kept = (low <= kernel - beside) & (kernel - beside <= high)
    return kernel[kept] - kernel[kept].mean(), beside[kept] - beside[kept].mean()


def _deviation(ratios: NDArray[np.float64]) -> float:
    """The standard deviation, relative, as the quartiles of a normal distribution tell it."""
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float((high - low) / middle / 1.349)
