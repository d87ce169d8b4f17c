"""Random search in closed form, against every draw that there is."""

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.experiments.compare.baseline import (
    best_at_expected_rank,
    expected_best,
    expected_trials,
    hit_probability,
    quantile_trials,
)

VALUES = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=8)


@given(values=VALUES)
def test_the_expected_best_is_the_mean_over_every_draw(values: list[float]) -> None:
    expected = expected_best(np.array(values), len(values) + 2)
    for n in range(1, len(values) + 1):
        assert expected[n - 1] == pytest.approx(np.mean([min(draw) for draw in combinations(values, n)]))
    assert (expected[len(values) :] == min(values)).all()


@pytest.mark.parametrize("total", [1, 2, 10, 38_016])
def test_of_equally_spaced_values_the_expected_best_has_a_closed_form(total: int) -> None:
    draws = np.arange(1, 201)
    values = np.random.default_rng(0).permutation(total).astype(np.float64) + 1
    closed = np.where(draws < total, (total + 1) / (draws + 1), 1.0)
    np.testing.assert_allclose(expected_best(values, 200), closed, rtol=1e-9)


def test_the_published_baseline_is_the_value_at_the_expected_rank() -> None:
    values = np.arange(1.0, 100.0)[::-1]  # the value of rank r is r; 100 / (n + 1) is the expected rank
    np.testing.assert_array_equal(best_at_expected_rank(values, 4), [50, 33, 25, 20])
    assert best_at_expected_rank(values, 300)[-1] == 1


@pytest.mark.parametrize(("good", "total"), [(1, 1), (1, 6), (2, 6), (5, 6), (6, 6)])
def test_the_first_hit_is_the_mean_and_the_quantile_over_every_order(good: int, total: int) -> None:
    first = np.array([1 + min(order.index(i) for i in range(good)) for order in permutations(range(total))])
    assert expected_trials(good, total) == pytest.approx(first.mean())
    chances = hit_probability(good, total, total)
    np.testing.assert_allclose(chances, [(first <= n).mean() for n in range(1, total + 1)])
    for quantile in (0.1, 0.5, 0.9, 1.0):
        n = quantile_trials(good, total, quantile)
        assert (first <= n).mean() >= quantile - 1e-9
        assert n == 1 or (first <= n - 1).mean() < quantile
