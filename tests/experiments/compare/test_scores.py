"""Scores of searches whose worth is known: every order there is, the best and the worst."""

from itertools import permutations

import numpy as np
import pytest

from tilescout.experiments.compare.scores import Baselines, RunScore, best_at, best_so_far, score_curve
from tilescout.experiments.compare.truth import Truth

INF = float("inf")


def truth_of(times: list[float], gpu_seconds: list[float] | None = None) -> Truth:
    """The truth of recorded times; None of them stands for a failure here, infinity does."""
    recorded = np.array(times)
    timed = np.isfinite(recorded)
    seconds = np.array(gpu_seconds or np.ones(len(times)))
    return Truth(np.where(timed, recorded, recorded[timed].max()), timed, seconds, np.ones(len(times)))


TRUTH = truth_of([40.0, 10.0, INF, 10.4, 20.0, INF])


def score(indices: list[int], trials: int = 5, truth: Truth = TRUTH) -> RunScore:
    return RunScore.of(truth, Baselines.of(truth, trials), indices, trials, (0.05, 0.01))


def test_over_every_order_random_search_scores_nothing() -> None:
    orders = list(permutations(range(len(TRUTH))))
    scores = [score(list(order)).score for order in orders]
    assert np.mean(scores) == pytest.approx(0, abs=1e-12)
    assert np.std(scores) > 0.1


def test_finding_the_optimum_at_once_scores_one() -> None:
    found = score([1])
    assert found.score == found.score_at_rank == 1
    assert found.trials_within == (1, 1)
    assert found.gpu_seconds_within == (1, 1)


def test_the_later_the_optimum_the_lower_the_score() -> None:
    scores = [score(order).score for order in ([1, 0, 2, 5, 4], [0, 1, 2, 5, 4], [0, 2, 5, 4, 1])]
    assert sorted(scores, reverse=True) == scores
    assert scores[-1] < 0


def test_failures_cost_trials_and_gpu_time_and_find_nothing() -> None:
    truth = truth_of([40.0, 10.0, INF, 10.4], [1.0, 2.0, 8.0, 4.0])
    found = RunScore.of(truth, Baselines.of(truth, 4), [2, 3, 1], 4, (0.05, 0.01, 0.0))
    assert found.trials_within == (2, 3, 3)
    assert found.gpu_seconds_within == (12, 14, 14)
    np.testing.assert_array_equal(best_so_far(truth, [2, 3, 1], 4), [40, 10.4, 10, 10])
    np.testing.assert_array_equal(best_at(truth, [2, 3, 1], np.array([0.0, 8.0, 11.9, 12.0, 100.0])),
                                  [40, 40, 40, 10.4, 10])  # fmt: skip


def test_what_is_not_found_within_the_budget_took_for_ever() -> None:
    assert score([0, 4, 2, 5, 3, 1], trials=5).trials_within == (5, INF)
    assert score([0, 4, 2, 5, 3, 1], trials=4).trials_within == (INF, INF)


def test_a_search_that_stops_keeps_its_best() -> None:
    np.testing.assert_array_equal(best_so_far(TRUTH, [0, 4], 4), [40, 20, 20, 20])
    np.testing.assert_array_equal(best_so_far(TRUTH, [], 3), [40, 40, 40])


def test_where_random_search_has_everything_nothing_can_be_told() -> None:
    baseline = Baselines.of(TRUTH, 8).over_trials
    curve = score_curve(best_so_far(TRUTH, [1], 8), baseline, TRUTH.best_us)
    np.testing.assert_array_equal(np.isnan(curve), [False] * 3 + [bool(b == 10) for b in baseline[3:]])
    assert np.isnan(curve[5:]).all()


def test_over_gpu_time_random_search_scores_about_nothing() -> None:
    rng = np.random.default_rng(0)
    truth = truth_of(list(rng.lognormal(size=400)), list(rng.uniform(0.5, 1.5, 400)))
    baselines = Baselines.of(truth, 60)
    scores = [RunScore.of(truth, baselines, rng.permutation(400).tolist(), 60, ()) for _ in range(400)]
    assert abs(np.mean([found.score_gpu_seconds for found in scores])) < 0.05
    assert abs(np.mean([found.score for found in scores])) < 0.05


def test_without_recorded_costs_there_is_no_score_over_gpu_time() -> None:
    truth = truth_of([3.0, 1.0, 2.0], [0.0, 0.0, 0.0])
    assert np.isnan(RunScore.of(truth, Baselines.of(truth, 2), [0, 1], 2, ()).score_gpu_seconds)
