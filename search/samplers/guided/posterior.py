"""The posterior: what is expected of configurations after some were measured.

`tilescout.costmodel.posterior` has the Gaussian process. With a prior it models the prior's error, without one the
values themselves.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import Prediction
from tilescout.costmodel.posterior import Covariance, Kernel, Observed, condition, fit_kernel, limited
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.samplers.guided.prior import Places
from tilescout.spaces.space import Indices


class Posterior(Protocol):
    """Normal distributions of the values of configurations."""

    def at(self, candidates: Indices) -> tuple[Floats, Floats]:
        """Mean and standard deviation of each candidate, both of shape [candidates]."""


@dataclass(frozen=True, eq=False)
class Corrected:
    """A prior, corrected by measurements of this problem and of others.

    Attributes
    ----------
    points
        Where the configurations lie among those of all problems; see
        `tilescout.search.samplers.guided.prior.Prior.points`.
    history
        The trials of this problem; their values are log times.
    prior
        Expected log times of all configurations.
    elsewhere
        The prior's errors on other problems, if any are known.
    covariance
        What the prior's errors on the configurations have in common, by their points.
    options
        The options of the search.
    """

    points: Places
    history: History
    prior: Prediction
    elsewhere: Observed | None
    covariance: Covariance
    options: GuidedOptions

    def at(self, candidates: Indices) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the log times of candidates."""
        prior, history = self.prior, self.history
        if self.elsewhere is None and not history.finished + len(history.running):
            return prior.mean[candidates], prior.std[candidates]
        kernel = self.covariance
        observed = self._observed()
        if self.elsewhere is not None:
            observed = observed.and_(self.elsewhere)
        running = history.running
        observed = _believed(
            observed, kernel, prior.shift, self.points[running], prior.spread[running], self.options.noise
        )
        mean, std = condition(kernel, prior.shift, observed, self.points[candidates], prior.spread[candidates])
        return prior.mean[candidates] + mean, std

    def _observed(self) -> Observed:
        """The prior's errors on this problem: a failed configuration counts as slower than expected."""
        prior, history, options = self.prior, self.history, self.options
        indices = np.concatenate([history.settled, history.failed])
        errors = np.concatenate(
            [history.values - prior.mean[history.settled], options.failure * prior.spread[history.failed]]
        )
        noise = options.noise_of(np.concatenate([history.pruned, np.ones(len(history.failed), dtype=np.bool_)]))
        return Observed.here(self.points[indices], errors, prior.spread[indices], noise)


@dataclass(frozen=True, eq=False)
class Uninformed:
    """Measurements alone, without a prior.

    Attributes
    ----------
    points
        Where the configurations lie, of shape [configurations, coordinates]; see
        `tilescout.costmodel.coordinates`. With `beside` also where their problem lies, see
        `tilescout.search.samplers.others.points_of`.
    history
        The trials; without `beside` at least one of them is settled.
    kernel
        How alike configurations are; see `kernel_of`.
    options
        The options of the search.
    beside
        What was measured of other problems; see `tilescout.search.samplers.guided.prior.Prior.beside`.
    """

    points: Floats
    history: History
    kernel: Kernel
    options: GuidedOptions
    beside: Observed | None = None

    def at(self, candidates: Indices) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the values of candidates."""
        history, kernel, options = self.history, self.kernel, self.options
        # Where all failed so far, a failure is as slow as the slowest of other problems, whose mean is 0.
        known = history.values if len(history.values) or self.beside is None else self.beside.errors
        values = limited(np.concatenate([history.values, np.full(len(history.failed), known.max(initial=-np.inf))]))
        centre = float(values.mean()) if len(history.values) else 0.0
        indices = np.concatenate([history.settled, history.failed])
        noise = options.noise_of(np.concatenate([history.pruned, np.zeros(len(history.failed), dtype=np.bool_)]))
        observed = Observed.here(self.points[indices], values - centre, np.ones(len(indices)), noise)
        if self.beside is not None:
            observed = observed.and_(self.beside)
        scale = float(observed.errors.std()) or 1.0
        observed = replace(
            observed, errors=observed.errors / scale, noise=np.maximum(observed.noise / scale, kernel.noise)
        )
        running = history.running
        observed = _believed(observed, kernel, 1.0, self.points[running], np.ones(len(running)), options.noise)
        mean, std = condition(kernel, 1.0, observed, self.points[candidates], np.ones(len(candidates)))
        return centre + scale * mean, scale * std


def kernel_of(points: Floats, values: Floats, beside: Observed | None = None) -> Kernel:
    """The kernel that is fitted to the values of settled trials, and to those of other problems.

    Parameters
    ----------
    points
        Of the trials, of shape [trials, coordinates].
    values
        Of shape [trials].
    beside
        What was measured of other problems, if anything.
    """
    kept = limited(values)
    kept = kept - kept.mean() if len(kept) else kept
    if beside is not None:
        points, kept = np.concatenate([points, beside.points]), np.concatenate([kept, beside.errors])
    return fit_kernel(points, kept / (float(kept.std()) or 1.0), np.random.default_rng(len(kept)))


def fitted_to(count: int, options: GuidedOptions) -> int:
    """The number of first trials that the kernel is fitted to when there are `count`.

    After 10, 15, 20, 30, 40, 60, 80 ... trials; without the early ones searches of other kernels scored 0.73, not 0.75.
    """
    early = [options.startup * number // 2 for number in (2, 3, 4, 6)]
    due = [number for number in (*early, count // options.refit * options.refit) if number <= count]
    return max(due, default=count)


def _believed(
    observed: Observed, kernel: Covariance, shift: float, points: Floats, spread: Floats, noise: float
) -> Observed:
    """The observations, with trials in flight at `points` as what is expected of them (a kriging believer)."""
    if not len(points):
        return observed
    believed = np.zeros(len(points))
    if len(observed.errors):
        believed, _ = condition(kernel, shift, observed, points, spread)
    return observed.and_(Observed.here(points, believed, spread, np.full(len(points), noise)))
