"""The library as a kernel's reference: what to divide the kernel's times by."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tilescout.search.evaluate.interval import mean_interval
from tilescout.search.evaluate.protocol import Estimate, ProtocolOptions

_COUPLED = 0.5  # a coefficient between 0 (a kernel's times do not follow the library's) and 1 (they do)
_FORGET = 0.9  # weight of what earlier measurements said of it, at each further one
_AWAY = 0.0075  # the library is this far from its recent mean, relative: something drifts, whatever the pairs say
_RECENT = 16  # measurements over which that mean goes
_LEAST = 6  # pairs from which something is learnt
# Two pairs one after another share the library's block between them: if all blocks are equally noisy, the variance of
# the mean of n ratios is 2/n of a block's, and that of a ratio 3/2.
_SHARED = 4 / 3


class Reference:
    """What is known of the library's times on a problem, measurement by measurement.

    At its power cap a GPU's clock moves by percents within milliseconds, and the ratio of neighbours is free of it.
    Below the cap the clock stands still, neighbours have nothing in common, and dividing by the library's time only
    adds its noise. So the logarithm of the kernel's time is regressed on that of the library's beside it, within the
    measurements so far: near 1, the ratio of neighbours is taken; near 0, the kernel's time over the library's mean of
    the last measurements. (The library's time is a control variate whose coefficient was found to be either 0 or 1:
    B. L. Nelson, Control variate remedies, Operations Research 38, 1990.)

    A clock that moves more slowly than that shows in no measurement through the library's own noise, but the device
    says that it is throttled: then too the ratio of neighbours is taken. (On an H200 that dense timing at 64x8192x8192
    has taken to its power cap the coefficient is 0.2 to 0.7 within measurements, and 1.1 to 1.4 between them.)

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
        self._recent_us, self._measurements = block_us, 0
        self._covariance = self._variance = 0.0
        times = np.asarray(alone)
        self._noise = _deviation(2 * times[1:-1] / (times[:-2] + times[2:]))

    @property
    def coupled(self) -> bool:
        """Whether kernels and library slow down together; taken for granted until known better."""
        return self._covariance >= _COUPLED * self._variance

    def estimate(
        self, kernel_us: NDArray[np.float64], beside_us: NDArray[np.float64], throttled: bool = False
    ) -> Estimate:
        """The ratio that some pairs tell.

        Parameters
        ----------
        kernel_us, beside_us
            Times of the kernel's blocks, and of the library's beside them, in µs.
        throttled
            Whether the device's clock was held below its maximum.
        """
        away = abs(math.log(float(beside_us.mean()) / self._recent_us)) > _AWAY
        paired = self.coupled or away or throttled
        values = kernel_us / (beside_us if paired else self._recent_us)
        shared = _SHARED if paired else 1.0
        found: list[float] = values.tolist()
        return Estimate(*mean_interval(found, self._noise, self._options.repeat, shared), found)

    def learn(self, kernel_us: NDArray[np.float64], beside_us: NDArray[np.float64]) -> None:
        """Take in the pairs of a finished measurement."""
        if len(kernel_us) < _LEAST:
            return
        kernel, beside = _centred(kernel_us), _centred(beside_us)
        self._covariance = _FORGET * self._covariance + float((kernel * beside).sum())
        self._variance = _FORGET * self._variance + float((beside**2).sum())
        # The steady time, of a library that runs by itself, is not its time beside kernels: it counts for nothing here.
        self._measurements += 1
        self._recent_us += (float(np.median(beside_us)) - self._recent_us) / min(self._measurements, _RECENT)
        self._noise += (_deviation(kernel_us / beside_us) - self._noise) / _RECENT


def _centred(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms about their median, a disturbed launch no farther off than three standard deviations."""
    logs = np.log(times)
    logs -= np.median(logs)
    limit = 3 * 1.4826 * float(np.median(abs(logs)))
    return np.asarray(np.clip(logs, -limit, limit))


def _deviation(ratios: NDArray[np.float64]) -> float:
    """The standard deviation, relative, as the quartiles of a normal distribution tell it."""
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return float((high - low) / middle / 1.349)
