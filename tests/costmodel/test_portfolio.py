"""Choosing a few kernels for many problems: greedy, exchanged and bounded, against all choices."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.costmodel.portfolio import CAP, choose_portfolio, regret_of


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_choice_is_between_the_best_of_all_choices_and_what_greedy_promises(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    logs = generator.exponential(0.4, (8, 6))
    logs[generator.random(logs.shape) < 0.2] = np.nan
    weights = generator.dirichlet(np.ones(6))

    found = choose_portfolio(logs, weights, count, rounds=10)

    best = min(regret_of(logs, weights, rows) for rows in combinations(range(8), count))
    assert found.bound <= best + 1e-9
    assert best - 1e-9 <= found.exchanged_regret <= found.regret[-1] + 1e-9
    assert CAP - found.regret[-1] >= (1 - 1 / np.e) * (CAP - best) - 1e-9
    assert len(set(found.picked)) == len(set(found.exchanged)) == count


def test_each_kernel_lowers_the_regret_until_all_problems_are_served() -> None:
    logs = np.where(np.eye(5, dtype=np.bool_), 0.0, np.nan)
    found = choose_portfolio(logs, np.full(5, 0.2), 9)
    assert sorted(found.picked) == [0, 1, 2, 3, 4]
    assert np.allclose(found.regret, [0.8 * CAP, 0.6 * CAP, 0.4 * CAP, 0.2 * CAP, 0])


def test_an_exchange_mends_what_greed_began_with() -> None:
    # The first kernel is good at both ends alone; the two that follow it are perfect at theirs.
    logs = np.array([[0.4, 0.4, 0.4, 0.4], [0.0, 0.0, 1.0, 0.5], [1.0, 0.5, 0.0, 0.0]])
    found = choose_portfolio(logs, np.full(4, 0.25), 2, rounds=5)
    assert 0 in found.picked or found.exchanged_regret == 0
    assert found.exchanged == (1, 2)
    assert found.exchanged_regret == 0


def test_kernels_that_are_given_are_chosen_first_and_never_exchanged() -> None:
    logs = np.random.default_rng(5).uniform(0, 0.5, (12, 20))
    weights = np.full(20, 0.05)
    free = choose_portfolio(logs, weights, 4, rounds=10)
    worst = int(logs.mean(axis=1).argmax())
    found = choose_portfolio(logs, weights, 4, rounds=10, given=[worst])
    assert found.picked[0] == worst
    assert worst in found.exchanged
    assert len(set(found.picked)) == 4
    assert free.exchanged_regret <= found.exchanged_regret <= regret_of(logs, weights, [worst])
    assert found.bound <= found.exchanged_regret
    for rows in ([1, 1], [0, 1, 2, 3, 4]):
        with pytest.raises(ValueError, match=f"of 4 kernels to choose {len(rows)} are given"):
            choose_portfolio(logs, weights, 4, given=rows)
