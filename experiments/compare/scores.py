"""How good a search was: the best it had found after each trial and second, beside random search and the optimum.

The score is that of Willemsen et al., "A methodology for comparing optimization algorithms for auto-tuning" (Future
Generation Computer Systems 159, 2024): P_t = (S(t) - F(t)) / (S(t) - f*), with F(t) the best found after t, S(t) what
random search is expected to have found, and f* the optimum. 0 is random search, 1 is the optimum from the first trial
on. It is averaged over the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilescout.experiments.compare.baseline import best_at_expected_rank, expected_best
from tilescout.experiments.compare.truth import Floats, Truth

SECONDS_POINTS = 100
"""Points of GPU time at which a score over seconds is taken."""


def best_so_far(truth: Truth, indices: Sequence[int], trials: int) -> Floats:
    """The best time in µs after 1, 2, ..., `trials` trials, of shape [trials].

    Parameters
    ----------
    truth
        The recorded times.
    indices
        The configurations in the order in which they were tried. A search that tried fewer than `trials` has stopped:
        its best stays. One that tried none has found what was slowest.
    """
    best = np.full(trials, truth.times_us.max())
    tried = np.minimum.accumulate(truth.times_us[np.asarray(indices, dtype=np.int64)[:trials]])
    best[: len(tried)] = tried
    best[len(tried) :] = tried[-1] if len(tried) else best[-1]
    return best


def best_at(truth: Truth, indices: Sequence[int], seconds: Floats) -> Floats:
    """The best time in µs when a search has occupied the GPU for `seconds`, of the same shape.

    A configuration counts from the end of its measurement on; before the first has ended, the slowest is what is known.
    """
    tried = np.asarray(indices, dtype=np.int64)
    best = np.minimum.accumulate(truth.times_us[tried])
    ended = np.searchsorted(np.cumsum(truth.gpu_seconds[tried]), seconds, side="right")
    known = np.concatenate([[truth.times_us.max()], best])
    return np.asarray(known[ended], dtype=np.float64)


def score_curve(best: Floats, baseline: Floats, optimum: float) -> Floats:
    """P_t, of the shape of `best`; NaN where random search is certain to have the optimum too.

    Parameters
    ----------
    best
        F(t), of shape [..., points].
    baseline
        S(t), of shape [points].
    optimum
        f*.
    """
    room = baseline - optimum
    score: Floats = np.divide(baseline - best, room, out=np.full(best.shape, np.nan), where=room > 0)
    return score


@dataclass(frozen=True, eq=False)
class Baselines:
    """The times that random search is expected to have found on a problem.

    Attributes
    ----------
    over_trials
        Expected best time in µs after each trial, of shape [trials].
    at_rank
        The time at the expected rank, as published, of the same shape.
    seconds, over_seconds
        Points of GPU time up to what random search is expected to spend on all the trials, and the expected best time
        in µs at each, both of shape [points]. Random search is charged the mean cost of a configuration for each trial,
        and at any moment is on average half-way through one that does not count yet.
    """

    over_trials: Floats
    at_rank: Floats
    seconds: Floats
    over_seconds: Floats

    @classmethod
    def of(cls, truth: Truth, trials: int) -> "Baselines":
        """The baselines of a problem for a budget of `trials`."""
        expected = expected_best(truth.times_us, trials)
        spent = np.linspace(0, trials, SECONDS_POINTS + 1)[1:]  # GPU time, in mean costs
        ended = np.maximum(spent - 0.5, 0)
        return cls(
            over_trials=expected,
            at_rank=best_at_expected_rank(truth.times_us[truth.timed], trials),
            seconds=spent * truth.gpu_seconds.mean(),
            over_seconds=np.interp(ended, np.arange(trials + 1), np.concatenate([[truth.times_us.max()], expected])),
        )


@dataclass(frozen=True)
class RunScore:
    """How good one search was.

    Attributes
    ----------
    score, score_at_rank
        P averaged over the trials, against the expected time and against the time at the expected rank of random
        search.
    score_gpu_seconds
        P averaged over GPU time; NaN if the table has no costs.
    trials_within, gpu_seconds_within
        For each tolerance, the trials and GPU seconds up to the first configuration that is no further from the best;
        infinite if it was not found. GPU seconds are NaN if the table has no costs.
    """

    score: float
    score_at_rank: float
    score_gpu_seconds: float
    trials_within: tuple[float, ...]
    gpu_seconds_within: tuple[float, ...]

    @classmethod
    def of(
        cls, truth: Truth, baselines: Baselines, indices: Sequence[int], trials: int, tolerances: Sequence[float]
    ) -> "RunScore":
        """Score a search that tried the configurations `indices`, in this order."""
        best = best_so_far(truth, indices, trials)
        at_seconds = best_at(truth, indices, baselines.seconds)
        costs = np.cumsum(truth.gpu_seconds[np.asarray(indices, dtype=np.int64)[:trials]])
        firsts = [_first(truth, indices[:trials], tolerance) for tolerance in tolerances]
        return cls(
            score=_mean(score_curve(best, baselines.over_trials, truth.best_us)),
            score_at_rank=_mean(score_curve(best, baselines.at_rank, truth.best_us)),
            score_gpu_seconds=_mean(score_curve(at_seconds, baselines.over_seconds, truth.best_us))
            if truth.has_gpu_seconds
            else float("nan"),
            trials_within=tuple(float("inf") if first is None else first + 1.0 for first in firsts),
            gpu_seconds_within=tuple(
                float("nan") if not truth.has_gpu_seconds else float("inf") if first is None else float(costs[first])
                for first in firsts
            ),
        )


def _first(truth: Truth, indices: Sequence[int], tolerance: float) -> int | None:
    hits = np.flatnonzero(truth.within(tolerance)[np.asarray(indices, dtype=np.int64)])
    return int(hits[0]) if len(hits) else None


def _mean(curve: Floats) -> float:
    """The mean of what is known; NaN if nothing is."""
    known = curve[~np.isnan(curve)]
    return float(known.mean()) if len(known) else float("nan")
