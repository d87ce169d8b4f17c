"""A Gaussian process over configurations: predicts those that were not measured from those that were.

C. Rasmussen, C. Williams: Gaussian processes for machine learning. MIT Press, 2006. The covariance is Matérn's with
smoothness 5/2 over distances in which every coordinate has its own length.

With a cost model as the prior mean, the process models the error of that model: a shift that all configurations of a
problem share, errors that are alike for similar ones (also on similar problems, where sizes are among the coordinates),
and an error that each configuration has alone. Without a prior it models the values themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.threads import one_thread

JITTER = 1e-8
"""Added to variances, in units of the signal's, so that covariance matrices keep a Cholesky factor."""

_SURE_OF = 1e-12  # standard deviation below which a value is as good as known: that of a model may be 0
_ERFC = np.frompyfunc(math.erfc, 1, 1)  # of Python, for NumPy has none
_FEW = 64
"""Measurements up to which NumPy solves: SciPy takes 0.4 s to be imported, and is the faster one of the two from some
hundred on. A search of one problem has fewer, and so its first proposal does not wait for that."""

SURE = 4.0
"""Measurements whose weight the expected spread has, when the spread is scaled by what was measured."""

SLOW = 0.9
"""Without a prior, values above this quantile count as that quantile: on recorded spaces of other kernels 0.5 scored
0.58, 0.75 and 0.9 scored 0.73 and no limit 0.71 (means of 8 seeds of 200 trials on 6 spaces)."""

FIT_ITERATIONS = 25
LARGEST_FIT = 100
"""Most values that a kernel is fitted to: fitting takes time by the cube of their number."""

USUAL_NOISE = 0.05
"""Of a kernel that is fitted, before anything is known: a value's own error over the spread of the values."""


class Covariance(Protocol):
    """How the errors of configurations vary together, in units of their expected standard deviations."""

    @property
    def shared(self) -> float:
        """Variance of what a configuration shares with any that lies at the same point."""

    @property
    def alone(self) -> float:
        """Variance of what it shares with none."""

    def between(self, points: Floats, others: Floats) -> Floats:
        """The covariance of points [a, coordinates] and others [b, coordinates], of shape [a, b]."""


@dataclass(frozen=True)
class Kernel:
    """How alike configurations are.

    Attributes
    ----------
    lengths
        Distance of every coordinate over which values change, of shape [coordinates].
    noise
        Standard deviation of a value's own error, over that of the values.
    """

    lengths: Floats
    noise: float
    shared = 1.0
    alone = 0.0

    @classmethod
    def even(cls, coordinates: int, length: float, noise: float) -> "Kernel":
        """The same length for every coordinate."""
        return cls(np.full(coordinates, length), noise)

    def between(self, points: Floats, others: Floats) -> Floats:
        """Correlations of points [a, coordinates] and others [b, coordinates], of shape [a, b]."""
        a, b = points / self.lengths, others / self.lengths
        squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1) - 2 * a @ b.T
        return matern(np.maximum(squares, 0))


@dataclass(frozen=True)
class KernelSum:
    """Several ways to be alike at once: what configurations share is the sum of what they share by each.

    Attributes
    ----------
    parts
        How alike they are by each; a part sees as many of the coordinates as it has lengths, in the order of the parts.
    alone
        Variance of the error that each configuration has alone. Without it the process is sure of whatever lies near a
        measurement.
    """

    parts: Sequence[Kernel]
    alone: float

    @property
    def shared(self) -> float:
        """Variance of what a configuration shares with any that lies at the same point."""
        return sum(part.shared for part in self.parts)

    def between(self, points: Floats, others: Floats) -> Floats:
        """The covariance of points [a, coordinates] and others [b, coordinates], of shape [a, b]."""
        ends = np.cumsum([len(part.lengths) for part in self.parts])[:-1]
        pieces = zip(np.split(points, ends, axis=1), np.split(others, ends, axis=1), self.parts, strict=True)
        return np.asarray(sum(part.between(some, of_others) for some, of_others, part in pieces))


def matern(squares: Floats) -> Floats:
    """Matérn's correlation, smoothness 5/2, of squared distances."""
    scaled = np.sqrt(5 * squares)
    correlation = scaled / 3
    correlation += 1
    correlation *= scaled
    correlation += 1
    np.negative(scaled, out=scaled)
    correlation *= np.exp(scaled, out=scaled)  # in place: half the time would go into allocating memory
    return correlation


@dataclass(frozen=True)
class Observed:
    """Measurements to condition on.

    Attributes
    ----------
    points
        Of shape [measurements, coordinates].
    errors
        Measured less expected values, of shape [measurements].
    spread
        Expected standard deviation of each one's own error, of the same shape.
    noise
        Standard deviation of each measurement, of the same shape.
    problem
        Which problem each was measured on, of the same shape; 0 is the one that is asked about. Measurements of other
        problems tell of similar configurations, but not of the error that all configurations of this problem share.
    """

    points: Floats
    errors: Floats
    spread: Floats
    noise: Floats
    problem: NDArray[np.int64]

    @classmethod
    def here(cls, points: Floats, errors: Floats, spread: Floats, noise: Floats) -> "Observed":
        """Measurements of the problem that is asked about."""
        return cls(points, errors, spread, noise, np.zeros(len(errors), dtype=np.int64))

    def and_(self, others: "Observed") -> "Observed":
        """These measurements and others."""
        pairs = [(getattr(self, field.name), getattr(others, field.name)) for field in fields(self)]
        return Observed(*(np.concatenate(pair) for pair in pairs))


@one_thread()
def condition(
    kernel: Covariance, shift: float, observed: Observed, points: Floats, spread: Floats
) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the errors at `points`, after the measurements.

    The expected standard deviations are scaled by the size of the measured errors: a prior that errs by more than its
    spread becomes less sure.

    Parameters
    ----------
    kernel
        What the errors of configurations have in common.
    shift
        Standard deviation of the error that all share.
    observed
        The measurements; at least one.
    points, spread
        Of shape [candidates, coordinates] and [candidates].
    """
    own = kernel.between(observed.points, observed.points) * np.outer(observed.spread, observed.spread)
    own += shift**2 * (observed.problem[:, None] == observed.problem) + np.diag(
        observed.noise**2 + (kernel.alone + JITTER) * observed.spread**2
    )
    factor = np.asarray(np.linalg.cholesky(own), dtype=np.float64)
    across = kernel.between(observed.points, points) * np.outer(observed.spread, spread)
    across += shift**2 * (observed.problem == 0)[:, None]
    solved, errors = _solved(factor, across), _solved(factor, observed.errors)
    mean = solved.T @ errors
    variance = (kernel.shared + kernel.alone) * spread**2 + shift**2 - np.einsum("ij,ij->j", solved, solved)
    scale = (SURE + float(errors @ errors)) / (SURE + len(errors))
    return mean, np.sqrt(np.maximum(variance, JITTER * spread**2) * scale)


def _solved(factor: Floats, right: Floats) -> Floats:
    """The solution of a system whose matrix is lower triangular, of the shape of its right side."""
    if len(factor) <= _FEW:
        return np.asarray(np.linalg.solve(factor, right), dtype=np.float64)
    from scipy.linalg import solve_triangular

    with one_thread():  # entered before, but the import may just have brought a library
        return np.asarray(solve_triangular(factor, right, lower=True, check_finite=False))


def limited(values: Floats) -> Floats:
    """Values of which the slow ones count as equally slow: how slow they are says little of the fast ones."""
    return np.minimum(values, np.quantile(values, SLOW)) if len(values) else values


def fit_kernel(points: Floats, values: Floats, rng: np.random.Generator) -> Kernel:
    """The kernel under which standardised values are most likely, given what lengths are usual.

    Parameters
    ----------
    points
        Of shape [measurements, coordinates].
    values
        Of mean 0 and standard deviation 1, of shape [measurements].
    rng
        Draws which of many values are fitted to: the lower half of `LARGEST_FIT` always is.
    """
    import scipy.linalg  # noqa: F401  (before the limit, for it brings a library)
    from scipy.optimize import minimize

    if len(values) > LARGEST_FIT:
        order = np.argsort(values, kind="stable")
        others = rng.choice(order[LARGEST_FIT // 2 :], LARGEST_FIT - LARGEST_FIT // 2, replace=False)
        kept = np.concatenate([order[: LARGEST_FIT // 2], others])
        points, values = points[kept], values[kept]
    coordinates = points.shape[1]
    usual = np.append(np.full(coordinates, np.log(0.5 * np.sqrt(coordinates))), [0.0, np.log(USUAL_NOISE)])
    squares = np.moveaxis((points[:, None] - points[None]) ** 2, 2, 0).copy()  # [coordinates, a, b]
    bounds = [(-3.0, 4.0)] * coordinates + [(-3.0, 3.0), (-5.0, 0.0)]
    with one_thread():
        fitted = minimize(
            _unlikelihood,
            usual,
            args=(squares, values, usual),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": FIT_ITERATIONS},
        )
    signal = np.exp(fitted.x[-2])
    return Kernel(np.exp(fitted.x[:-2]), float(np.exp(fitted.x[-1]) / signal))


def _unlikelihood(logs: Floats, squares: Floats, values: Floats, usual: Floats) -> tuple[float, NDArray[np.float64]]:
    """The negative log posterior density of lengths, signal and noise given as logarithms, and its gradient."""
    from scipy.linalg import cho_solve

    lengths2, signal2, noise2 = np.exp(2 * logs[:-2]), np.exp(2 * logs[-2]), np.exp(2 * logs[-1])
    distances2 = np.tensordot(1 / lengths2, squares, 1)
    scaled = np.sqrt(5 * distances2)
    correlation = (1 + scaled + scaled * scaled / 3) * np.exp(-scaled)
    steepness = 5 / 3 * (1 + scaled) * np.exp(-scaled)  # -2 d correlation / d distance²
    count = len(values)
    covariance = signal2 * correlation + (noise2 + JITTER * signal2) * np.eye(count)
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(logs)
    inverse = cho_solve((factor, True), np.eye(count), check_finite=False)
    ones = inverse.sum(axis=1)
    centred = values - (ones @ values) / ones.sum()
    weights = inverse @ centred
    outer = inverse - np.outer(weights, weights)
    gradient = np.empty_like(logs)
    gradient[:-2] = 0.5 * np.tensordot(squares, outer * steepness * signal2, axes=([1, 2], [0, 1])) / lengths2
    gradient[-2] = (outer * correlation).sum() * signal2
    gradient[-1] = np.trace(outer) * noise2
    away = logs - usual
    value = 0.5 * centred @ weights + np.log(np.diag(factor)).sum() + 0.5 * away @ away
    return float(value), gradient + away


def expected_improvement(mean: Floats, std: Floats, best: float) -> Floats:
    """How far below `best` normal variables are expected to fall, counting those above as 0.

    J. Močkus: On Bayesian methods for seeking the extremum, 1975.
    """
    std = np.maximum(std, _SURE_OF)
    z = (best - mean) / std
    return np.asarray(std * (z * _normal(z) + np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)))


def chance_below(mean: Floats, std: Floats, value: float) -> Floats:
    """The probability that each normal variable is below `value`."""
    return _normal((value - mean) / np.maximum(std, _SURE_OF))


def _normal(z: Floats) -> Floats:
    """The distribution function of the standard normal; that of SciPy would have to be imported, see `_FEW`."""
    return 0.5 * np.asarray(_ERFC(-z / math.sqrt(2)), dtype=np.float64)
