"""Means over the heats of a race, with intervals that count what the rounds of one heat cannot show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.interval import WIDEST

_FREEDOM = 2  # heats that the variance known beforehand is worth
_CORRELATIONS = np.linspace(0.0, 0.95, 96)


@dataclass(frozen=True)
class HeatNoise:
    """The variation of a race's logarithms of ratios that is known before the race.

    Attributes
    ----------
    heat
        Standard deviation between heats of one process, beyond that of their rounds.
    repeat
        Standard deviation between processes and hosts: no heat of one process shows it.
    """

    heat: float
    repeat: float


@dataclass(frozen=True)
class HeatMean:
    """A mean over heats, on the scale of logarithms.

    Attributes
    ----------
    mean
        The mean of the heats' means.
    error
        Its standard error within this process.
    freedom
        Degrees of freedom of that.
    repeat
        Standard deviation of the mean between processes and hosts.
    """

    mean: float
    error: float
    freedom: int
    repeat: float

    @property
    def known_freedom(self) -> float:
        """Degrees of freedom of the error where the variance that is known beforehand is taken for the truth.

        Only the heats' own variance then varies (F. E. Satterthwaite: An approximate distribution of estimates of
        variance components, Biometrics Bulletin 2, 1946); infinite with one heat.
        """
        heats = self.freedom - _FREEDOM + 1
        return self.freedom**2 / (heats - 1) if heats > 1 else math.inf

    @property
    def here(self) -> float:
        """Half of the 95 % interval of what this process would measure with ever more heats."""
        from scipy.special import stdtrit  # the quantile of t; `scipy.stats.t.ppf` takes 16 times as long

        return min(float(stdtrit(self.freedom, 0.975)) * self.error, WIDEST)

    @property
    def half(self) -> float:
        """Half of the 95 % interval of what other processes and hosts measure."""
        return math.hypot(self.here, 1.96 * self.repeat)


def correlation(logs: NDArray[np.float64]) -> float:
    """The correlation of a round with the next one, over all configurations together; at least 0.

    Parameters
    ----------
    logs
        Logarithms of ratios, of shape [heats, rounds, configurations]; NaN where one did not run.
    """
    rounds = logs.shape[1]
    if rounds < 3:
        return 0.0
    centred = logs - logs.mean(axis=1, keepdims=True)
    total = float(np.nansum(centred**2))
    if total == 0:
        return 0.0
    found = float(np.nansum(centred[:, 1:] * centred[:, :-1])) / total
    return float(np.interp(found, _seen_in(rounds), _CORRELATIONS))


@cache
def _seen_in(rounds: int) -> NDArray[np.float64]:
    """The correlation that is seen in heats of so many rounds, for each of `_CORRELATIONS`.

    It is lower, since the mean of the same few rounds is subtracted (M. G. Kendall: Note on bias in the estimation of
    autocorrelation, Biometrika 41, 1954). Here it is the ratio of the two expectations, of a first-order
    autoregression.
    """
    apart = abs(np.subtract.outer(np.arange(rounds), np.arange(rounds)))
    centring = np.eye(rounds) - 1 / rounds
    covariances = centring @ (_CORRELATIONS[:, None, None] ** apart) @ centring
    found = np.trace(covariances, offset=1, axis1=1, axis2=2) / np.trace(covariances, axis1=1, axis2=2)
    return np.asarray(found)


def mean_of_heats(logs: NDArray[np.float64], correlated: float, noise: HeatNoise) -> HeatMean:
    """The mean of one configuration over the heats in which it ran.

    Rounds of a heat follow one another within milliseconds and are correlated, and heats differ by more than their
    rounds explain. So the heats are what is counted (batch means): the variance is that of their means, averaged with
    the one that is expected, as in the moderated t of G. K. Smyth (Linear models and empirical Bayes methods,
    Statistical Applications in Genetics and Molecular Biology 3, 2004). Expected is the variance of the rounds, made
    larger by their correlation as that of a first-order autoregression, and that between heats.

    Parameters
    ----------
    logs
        Of shape [heats, rounds].
    correlated
        The correlation of a round with the next one.
    noise
        See `HeatNoise`.
    """
    means, rounds = logs.mean(axis=1), logs.shape[1]
    of_rounds = float(logs.var(axis=1, ddof=1).mean()) / rounds if rounds > 1 else 0.0
    expected = of_rounds * (1 + correlated) / (1 - correlated) + noise.heat**2
    freedom = _FREEDOM + len(means) - 1
    variance = (_FREEDOM * expected + float(((means - means.mean()) ** 2).sum())) / freedom
    return HeatMean(float(means.mean()), math.sqrt(variance / len(means)), freedom, noise.repeat)


def ran(logs: NDArray[np.float64], columns: Sequence[int]) -> NDArray[np.float64]:
    """Those heats in which all of some configurations ran, of shape [heats, rounds, columns]."""
    chosen = logs[:, :, list(columns)]
    found: NDArray[np.float64] = chosen[np.isfinite(chosen).all(axis=(1, 2))]
    return found
