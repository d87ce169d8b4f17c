"""The interface of every cost model: it takes measurements of problems and gives predictions with an uncertainty."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.features import Features
from tilescout.costmodel.threads import one_thread
from tilescout.spaces.errors import ModelError
from tilescout.spaces.texts import number_of


@dataclass(frozen=True)
class Sample:
    """Measurements of configurations on one problem.

    Attributes
    ----------
    problem
        The problem, as text. A validation leaves out all samples of a problem together.
    features
        The features of the configurations that ran.
    log_time
        Natural logarithm of the time in µs, of shape [configurations]; a lower bound of it where it is censored.
    censored
        Mask: the measurement was given up early, and the time is at least about `log_time`.
    family
        The problem's family, as `tilescout.spaces.problems.Problem.family` names it.
    among_others
        Whether the kernels were timed among others, as in a model, not each in a chain of its own.
    """

    problem: str
    features: Features
    log_time: Floats
    censored: NDArray[np.bool_]
    family: str = "other"
    among_others: bool = False

    def __len__(self) -> int:
        return len(self.log_time)

    def take(self, rows: NDArray[np.int64]) -> "Sample":
        """Some of the measurements."""
        return replace(
            self, features=self.features.take(rows), log_time=self.log_time[rows], censored=self.censored[rows]
        )

    def exact(self) -> "Sample":
        """The measurements that are not censored."""
        return self.take(np.flatnonzero(~self.censored))


_LARGEST_LOG = 53 * math.log(2)  # of a time in µs: records of searches hold no larger number
_FIRST = 8192  # configurations that are put in order: of 238,467 that takes 4 ms, and of all 26 ms (2026-11-30)
_ENDS = 1.96  # standard deviations from a mean to the ends of its 95 % interval


@dataclass(frozen=True)
class Prediction:
    """Log times that a model expects of configurations of one problem.

    Attributes
    ----------
    mean
        Expected natural logarithm of the time in µs, of shape [configurations].
    spread
        Standard deviation of a configuration's own error, of the same shape: the uncertainty of a ranking.
    shift
        Standard deviation of the error that all configurations of the problem share. It does not change their order.

    Raises
    ------
    ModelError
        If a time or an end of its interval is none, as of a damaged model: a study that noted it could not be read
        again.
    """

    mean: Floats
    spread: Floats
    shift: float

    def __post_init__(self) -> None:
        spread = self.shift >= 0 and bool((self.spread >= 0).all())
        if not spread or not (np.abs(self.mean) + _ENDS * self.std <= _LARGEST_LOG).all():
            raise ModelError("the model expects times that can't be: it is damaged, or was made for something else")

    @property
    def std(self) -> Floats:
        """Standard deviation of the whole error of each, of shape [configurations]."""
        return np.asarray(np.hypot(self.spread, self.shift))

    def hopeful(self, count: int) -> NDArray[np.int64]:
        """So many configurations, those of the least mean less spread, the least first; all, if there are no more."""
        return (self._first if count <= len(self._first) else self._ordered)[:count]

    @cached_property
    def _first(self) -> NDArray[np.int64]:
        least = self.mean - self.spread
        if len(least) <= _FIRST:
            return self._ordered
        rows = np.flatnonzero(least <= np.partition(least, _FIRST - 1)[_FIRST - 1])
        return rows[np.argsort(least[rows], kind="stable")]

    @cached_property
    def _ordered(self) -> NDArray[np.int64]:
        return np.argsort(self.mean - self.spread, kind="stable")

    def interval_us(self, z: float = _ENDS) -> tuple[Floats, Floats]:
        """Lower and upper end of each time's interval in µs; `z` standard deviations each way (95 % by default)."""
        return np.exp(self.mean - z * self.std), np.exp(self.mean + z * self.std)


@dataclass(frozen=True)
class Expected:
    """The time that a cost model expects of one configuration before it is tried.

    Attributes
    ----------
    time_us
        The predicted time in µs.
    low_us, high_us
        Ends of its 95 % interval in µs.
    """

    time_us: float
    low_us: float
    high_us: float

    @classmethod
    def of(cls, prediction: Prediction, index: int) -> Self:
        """The prediction for the configuration at a position."""
        one = Prediction(prediction.mean[[index]], prediction.spread[[index]], prediction.shift)
        low, high = one.interval_us()
        return cls(math.exp(one.mean[0]), float(low[0]), float(high[0]))


class Fitted(Protocol):
    """The frozen result of a fit: everything that a prediction needs, and nothing that changes."""

    @property
    def names(self) -> tuple[str, ...]:
        """The features that it was fitted to."""

    def predict(self, features: Features) -> Prediction:
        """Log times of configurations of one problem; `features` were checked before."""


class CostModel(ABC):
    """Predicts log times of configurations without running them.

    A model of one's own subclasses this and writes one method, `learn`. What every model has in common is here: the
    samples are checked, the result is kept in `fitted`, features are checked, and `score` compares models.
    `tilescout.costmodel.testing` checks that a model keeps what is promised here.

    Attributes
    ----------
    fitted
        The result of the last fit; None before.
    """

    fitted: Fitted | None = None

    @abstractmethod
    def learn(self, samples: Sequence[Sample]) -> Fitted:
        """Learn from measurements without changing the model: equal samples give equal results.

        Parameters
        ----------
        samples
            At least one, none of them empty, all of the same features; some measurement is not censored.
        """

    def fit(self, samples: Sequence[Sample]) -> Self:
        """Learn from measurements of some problems; return the model itself.

        Raises
        ------
        ModelError
            If there is nothing to learn from, or the samples have different features.
        """
        self.fitted = self.learn(learnable(samples))
        return self

    def predict(self, features: Features) -> Prediction:
        """Log times of configurations of one problem.

        Raises
        ------
        ModelError
            If the model was not fitted, or was fitted to other features.
        """
        if self.fitted is None:
            raise ModelError("the model was not fitted: call fit first, or load a fitted one")
        features = self.known(features)
        with one_thread():
            return self.fitted.predict(features)

    def foresee(self, features: Features) -> Prediction:
        """Log times for a search: as `predict` has them, but of what is clearly slow they may be rougher, to save time.

        Raises
        ------
        ModelError
            As of `predict`.
        """
        return self.predict(features)

    def known(self, features: Features) -> Features:
        """Those of some features that a fitted model learned from, in its order.

        A model that is older than some of the features goes on to predict as it did.

        Raises
        ------
        ModelError
            If one of them is missing.
        """
        if self.fitted is None or features.names == self.fitted.names:
            return features
        if missing := sorted(set(self.fitted.names) - set(features.names)):
            named = ", ".join(missing[:3]) + (" and more" if len(missing) > 3 else "")
            raise ModelError(
                f"the model was made for {number_of(len(self.fitted.names), 'feature')}, these have no {named}; train "
                "a model anew with `tilescout train`"
            )
        return features.only(self.fitted.names)

    def score(self, samples: Sequence[Sample]) -> float:
        """Coefficient of determination R² of the log times within their problems, over what is not censored.

        The mean error of each problem is left out of it: a model that ranks well scores well.

        Raises
        ------
        ModelError
            If it can't predict, or no problem has two different times to tell apart.
        """
        errors, spreads = [np.zeros(0)], [np.zeros(0)]
        for exact in filter(len, (sample.exact() for sample in samples)):
            error = exact.log_time - self.predict(exact.features).mean
            errors.append(error - error.mean())
            spreads.append(exact.log_time - exact.log_time.mean())
        total = float(np.square(np.concatenate(spreads)).sum())
        if not total > 0:
            raise ModelError("no problem has two different times: there is nothing to tell apart, and no score")
        return 1 - float(np.square(np.concatenate(errors)).sum()) / total


def learnable(samples: Sequence[Sample]) -> list[Sample]:
    """The samples that hold any measurement.

    Raises
    ------
    ModelError
        If none does, if all were given up, if they have different features, or if a time is no number or has no
        features.
    """
    samples = [sample for sample in samples if len(sample)]
    if not samples:
        raise ModelError("there are no measurements to learn from")
    if all(sample.censored.all() for sample in samples):
        raise ModelError("every measurement was given up early: there is no time to learn from")
    for sample in samples:
        if sample.features.names != samples[0].features.names:
            other = sorted(set(sample.features.names) ^ set(samples[0].features.names))
            told = f"only one has {', '.join(other[:3])}" if other else "they are in another order"
            raise ModelError(
                f"{sample.problem} and {samples[0].problem} have different features: {told}; a model learns from "
                "samples of the same"
            )
        if not len(sample.log_time) == len(sample.censored) == len(sample.features):
            raise ModelError(
                f"{sample.problem}: {len(sample.log_time)} times, {len(sample.censored)} marks of censored ones and "
                f"the features of {len(sample.features)} configurations do not belong together"
            )
        if not (np.abs(sample.log_time) <= _LARGEST_LOG).all():
            raise ModelError(f"{sample.problem}: a time is no number, or can't be: leave out what failed")
    return samples
