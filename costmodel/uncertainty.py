"""The errors of a learned model on new problems, estimated by leaving out problems of its training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.spaces.errors import ModelError


class Ensemble(Protocol):
    """The fitted members of a model that is an ensemble."""

    @property
    def names(self) -> tuple[str, ...]:
        """The features that they were fitted to."""

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """The mean log time, and the variance between the members of the ensemble, each of shape [configurations]."""


@dataclass(frozen=True)
class Errors:
    """The errors of an ensemble on new problems.

    Attributes
    ----------
    floor
        Variance of a configuration's own error where all members agree.
    slope
        Growth of that variance with the variance between members.
    shift
        Standard deviation of the error that all configurations of a problem share; 0 where a single problem was learned
        from, which tells nothing of it.
    """

    floor: float
    slope: float
    shift: float

    def spread(self, between: Floats) -> Floats:
        """Standard deviation of each configuration's own error, from the variance between members."""
        return np.asarray(np.sqrt(self.floor + self.slope * between))


def estimate_errors(samples: Sequence[Sample], learn: Callable[[Sequence[Sample]], Ensemble], seed: int) -> Errors:
    """Estimate errors by cross-validation: learn without some problems and predict those, at most `FOLDS` times.

    If there is a single problem, fifths of its configurations are left out instead.

    Parameters
    ----------
    samples
        Measurements, a sample a problem.
    learn
        Learns an ensemble from some of them.
    seed
        Seed of the division into fifths.

    Raises
    ------
    ModelError
        If nothing is left over to learn from or to test on.
    """
    # Two tables may hold one problem: what was measured of it in one would tell all of the other.
    problems = list(dict.fromkeys(sample.problem for sample in samples))
    folds = [problems[start::FOLDS] for start in range(min(FOLDS, len(problems)))]
    parts = [[sample for sample in samples if sample.problem in fold] for fold in folds]
    if one_problem := len(problems) == 1:
        generator = np.random.default_rng(seed)
        divided = [np.array_split(generator.permutation(len(sample)), 5) for sample in samples]
        fifths = [zip(samples, rows, strict=True) for rows in zip(*divided, strict=True)]
        taken = ([sample.take(rows) for sample, rows in fifth if len(rows)] for fifth in fifths)
        parts = [part for part in taken if part]
    errors, between, shifts = [], [], []
    for out in parts:
        rest = [sample for part in parts if part is not out for sample in part]
        if all(sample.censored.all() for sample in rest):
            continue
        learned = learn(rest)
        for exact in (sample.exact() for sample in out):
            if len(exact):
                mean, variance = learned.predict(exact.features)
                error = exact.log_time - mean
                shifts.append(0.0 if one_problem else float(np.median(error)))
                errors.append(error - shifts[-1])
                between.append(variance)
    if not errors:
        raise ModelError("there are too few measurements to tell how wrong a model of them is: record more")
    floor, slope = _variance_line(np.concatenate(between), np.concatenate(errors))
    return Errors(floor, slope, float(np.sqrt(np.mean(np.square(shifts)))))


FOLDS = 4
"""Folds of the cross-validation: a fixed number, so that training time grows linearly with the size of a table."""


def _variance_line(between: Floats, errors: Floats) -> tuple[float, float]:
    """Floor and slope of the variance of `errors` against the variance between members, both at least a millionth.

    A robust fit: in ten bins of equal size the standard deviation is read off the 68 % quantile of the absolute
    errors, so that single wild errors do not widen every interval.
    """
    from scipy.optimize import nnls

    bins = [rows for rows in np.array_split(np.argsort(between), 10) if len(rows)]
    x = np.array([between[rows].mean() for rows in bins])
    y = np.array([np.quantile(np.abs(errors[rows]), 0.683) ** 2 for rows in bins])
    weights = 1 / np.maximum(y, 1e-8)  # relative errors of a variance count
    (floor, slope), _ = nnls(np.stack([np.ones_like(x), x], axis=1) * weights[:, None], y * weights)
    return max(float(floor), 1e-6), max(float(slope), 1e-6)
