"""Intervals and tests, against cases whose answer is known."""

import numpy as np
import pytest

from tilescout.experiments.compare.inference import bootstrap, holm, paired_tests


def test_holm_corrects_step_by_step() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.6, 0.7])), [1.0, 1.0])
    assert len(holm(np.array([]))) == 0


def test_holm_rejects_too_much_in_one_of_twenty_families_at_most() -> None:
    rng = np.random.default_rng(0)
    families = np.array([holm(rng.uniform(size=10)).min() < 0.05 for _ in range(4000)])
    assert 0.04 < families.mean() < 0.06


def test_the_bootstrap_interval_of_a_mean_is_the_one_of_theory() -> None:
    rng = np.random.default_rng(1)
    groups = [rng.normal(5, 2, (200, 1)) for _ in range(4)]
    point, low, high = bootstrap(groups, lambda means: means.mean(axis=0), rng)
    half = 1.96 * 2 / np.sqrt(800)
    assert point == pytest.approx(np.concatenate(groups).mean())
    assert point - low == pytest.approx(half, rel=0.15)
    assert high - point == pytest.approx(half, rel=0.15)


def test_the_bootstrap_leaves_the_problems_as_they_are() -> None:
    groups = [np.full((5, 3), value) for value in (1.0, 9.0)]  # far apart, but without any chance
    point, low, high = bootstrap(groups, lambda means: means.mean(axis=0), np.random.default_rng(0))
    np.testing.assert_array_equal(np.stack([point, low, high]), np.full((3, 3), 5.0))


def scores(problems: int, seeds: int, shift: float) -> dict[str, dict[int, float]]:
    rng = np.random.default_rng(0)  # the same noise for every strategy
    return {f"p{p}": {s: shift + rng.normal() for s in range(seeds)} for p in range(problems)}


def test_with_enough_problems_a_pair_is_a_problem() -> None:
    better, worse = scores(8, 3, 0.1), scores(8, 3, 0.0)
    (test,) = paired_tests({"better": better, "worse": worse})
    assert (test.unit, test.pairs, test.wins) == ("problem", 8, 1.0)
    assert test.difference == pytest.approx(0.1)
    assert test.p == pytest.approx(2 / 2**8)
    assert test.p_corrected == test.p


def test_with_few_problems_a_pair_is_a_run() -> None:
    (test,) = paired_tests({"a": scores(2, 10, 0.0), "b": scores(2, 10, 0.3)})
    assert (test.unit, test.pairs, test.wins) == ("run", 20, 0.0)
    assert test.p < 1e-4


def test_only_what_both_have_run_is_compared() -> None:
    first, second = scores(2, 10, 0.0), scores(2, 7, 0.3)
    (test,) = paired_tests({"a": first, "b": second})
    assert test.pairs == 14


def test_every_two_are_tested_and_the_more_the_stricter() -> None:
    three = {name: scores(8, 2, shift) for name, shift in (("a", 0.0), ("b", 0.1), ("c", 0.2))}
    tests = paired_tests(three)
    assert [(test.first, test.second) for test in tests] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(test.p_corrected == pytest.approx(3 * test.p) for test in tests)


def test_equal_strategies_are_not_told_apart() -> None:
    (test,) = paired_tests({"a": scores(8, 2, 0.0), "b": scores(8, 2, 0.0)})
    assert (test.p, test.wins, test.difference) == (1.0, 0.5, 0.0)
