"""Intervals and tests, against cases whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest

from tilescout.experiments.compare.inference import (
    fewest_problems,
    geometric_mean_interval,
    holm,
    over_problems,
    over_seeds,
    paired_tests,
    share_interval,
)
from tilescout.experiments.compare.report import verdict
from tilescout.experiments.compare.result import Comparison, Standing


def test_holm_corrects_step_by_step() -> None:
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.6, 0.7])), [1.0, 1.0])
    assert len(holm(np.array([]))) == 0


def test_holm_rejects_too_much_in_one_of_twenty_families_at_most() -> None:
    rng = np.random.default_rng(0)
    families = np.array([holm(rng.uniform(size=10)).min() < 0.05 for _ in range(4000)])
    assert 0.04 < families.mean() < 0.06


def test_the_interval_over_seeds_is_the_one_of_theory() -> None:
    rng = np.random.default_rng(1)
    groups = [rng.normal(5, 2, (200, 1)) for _ in range(4)]
    low, high = over_seeds(groups, rng)
    half = 1.96 * 2 / np.sqrt(800)
    mean = np.concatenate(groups).mean()
    assert mean - low == pytest.approx(half, rel=0.15)
    assert high - mean == pytest.approx(half, rel=0.15)


def test_over_seeds_the_problems_stay_as_they_are() -> None:
    groups = [np.full((5, 3), value) for value in (1.0, 9.0)]  # far apart, but without any chance
    np.testing.assert_array_equal(np.stack(over_seeds(groups, np.random.default_rng(0))), np.full((2, 3), 5.0))


def test_an_interval_over_problems_is_wider_the_more_they_differ_and_holds_the_mean() -> None:
    alike, different = geometric_mean_interval([1.0, 1.01] * 20, 0), geometric_mean_interval([0.5, 2.0] * 20, 0)
    assert alike[1] < alike[0] < alike[2]
    assert different[2] - different[1] > 10 * (alike[2] - alike[1])
    assert geometric_mean_interval([1.2] * 8, 0) == pytest.approx((1.2, 1.2, 1.2))


@pytest.mark.parametrize("count", [8, 24])
def test_an_interval_over_few_problems_still_covers(count: int) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.normal(0.7, 0.1, (count, 600))  # 600 comparisons at a time
    low, high = over_problems(drawn, rng)
    assert np.mean((low <= 0.7) & (high >= 0.7)) > 0.925  # plain percentiles: 0.90 for 8


def test_problems_of_one_shape_count_as_one() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, 10)
    low, high = over_problems(values, rng)
    twice_low, twice_high = over_problems(np.repeat(values, 2), rng, labels=[f"p{at // 2}" for at in range(20)])
    assert twice_high - twice_low == pytest.approx(high - low, rel=0.05)


def test_one_problem_or_one_seed_tells_nothing_of_others() -> None:
    rng = np.random.default_rng(0)
    assert np.isnan(over_problems(np.array([0.9]), rng)).all()
    assert np.isnan(over_problems(np.array([0.9, 0.8]), rng, ["a", "a"])).all()
    assert np.isnan(over_seeds([np.array([0.9]), np.array([0.8])], rng)).all()


def test_a_share_of_nothing_has_an_interval_too() -> None:
    assert share_interval(0, 40) == pytest.approx((0.0, 1 - 0.025 ** (1 / 40)))  # in closed form
    low, high = share_interval(4, 40)
    assert low < 0.1 < high < 0.25


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


def test_problems_of_one_shape_are_one_pair() -> None:
    better, worse = scores(9, 3, 0.1), scores(9, 3, 0.0)
    (test,) = paired_tests({"better": better, "worse": worse}, labels={f"p{p}": f"shape {p // 3}" for p in range(9)})
    assert (test.unit, test.pairs) == ("run", 27), "three shapes prove nothing of others"
    (test,) = paired_tests({"better": better, "worse": worse}, labels={"p7": "p6", "p8": "p6"})
    assert (test.unit, test.pairs) == ("problem", 7)
    assert test.p == pytest.approx(2 / 2**7)


def test_equals_that_differ_alike_on_problems_of_one_shape_are_not_told_apart() -> None:
    rng, found, labels = np.random.default_rng(0), 0, {f"p{p}": f"shape {p // 3}" for p in range(24)}
    for _ in range(100):
        apart = np.repeat(rng.normal(0, 0.1, 8), 3)
        own = {f"p{p}": {0: float(difference)} for p, difference in enumerate(apart)}
        (test,) = paired_tests({"a": own, "b": {problem: {0: 0.0} for problem in own}}, labels=labels)
        found += test.p < 0.05
    assert found <= 10


def test_with_few_problems_a_pair_is_a_run() -> None:
    (test,) = paired_tests({"a": scores(2, 10, 0.0), "b": scores(2, 10, 0.3)})
    assert (test.unit, test.pairs, test.wins) == ("run", 20, 0.0)
    assert test.p < 1e-4


def test_only_what_both_have_run_is_compared() -> None:
    first, second = scores(2, 10, 0.0), scores(2, 7, 0.3)
    (test,) = paired_tests({"a": first, "b": second})
    assert test.pairs == 14


def test_every_two_are_tested_and_the_more_the_stricter() -> None:
    three = {name: scores(7, 2, shift) for name, shift in (("a", 0.0), ("b", 0.1), ("c", 0.2))}
    tests = paired_tests(three)
    assert [(test.first, test.second) for test in tests] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(test.p_corrected == pytest.approx(3 * test.p) for test in tests)


@pytest.mark.slow
@pytest.mark.parametrize(("strategies", "fewest"), [(2, 6), (3, 7), (5, 9)])
def test_enough_problems_are_those_with_which_the_strictest_test_can_prove_something(
    strategies: int, fewest: int
) -> None:
    assert fewest_problems(strategies) == fewest
    for problems, proven, unit in ((fewest, True, "problem"), (fewest - 1, False, "run")):
        apart = {str(number): scores(problems, 1, 5.0 * number) for number in range(strategies)}
        tests = paired_tests(apart)
        assert {test.unit for test in tests} == {unit}
        assert (min(test.p_corrected for test in tests) < 0.05) == proven


def test_equal_strategies_are_not_told_apart() -> None:
    (test,) = paired_tests({"a": scores(8, 2, 0.0), "b": scores(8, 2, 0.0)})
    assert (test.p, test.wins, test.difference) == (1.0, 0.5, 0.0)


def test_one_search_is_beside_every_search_of_another_but_is_no_ten_beside_another_one() -> None:
    one = {"p0": {0: 0.9}, "p1": {0: 0.8}}
    many = scores(2, 10, 0.0)
    (test,) = paired_tests({"fixed": one, "drawn": many}, fixed=["fixed"])
    assert (test.unit, test.pairs) == ("run", 20)
    (test,) = paired_tests({"fixed": one, "another": one}, fixed=["fixed", "another"])
    assert (test.unit, test.pairs) == ("run", 2)


def test_the_verdict_calls_no_strategy_better_that_the_test_found_worse() -> None:
    """One problem makes the mean of the first higher; the second is better on all the others."""
    better = {f"p{p}": {0: 0.9 + p / 1000} for p in range(12)}
    mean = {problem: {0: 0.8} for problem in better}
    better["p0"] = {0: -9.0}
    (test,) = tests = paired_tests({"mean": mean, "better": better})
    assert (test.p_corrected < 0.05, test.difference < 0) == (True, True)
    nothing = np.full((3, 2), np.nan)
    standings = [
        Standing(name, 12, (), False, {"score": (score,) * 3}, {}, {}, nothing, 0.0, {}, {}, {})
        for name, score in (("mean", 0.8), ("better", 0.1))
    ]
    told = verdict(Comparison(2, 1, ("t.parquet",), {}, standings, tests, 12))
    assert "mean has the highest score, and is proven to be better than no other" in told
    assert "(Wilcoxon's test over 12 problems of different shape, Holm's correction)" in told
    once = replace(test, pairs=1, unit="run")
    assert "test over 1 run," in verdict(Comparison(2, 1, ("t.parquet",), {}, standings, [once], 12))
