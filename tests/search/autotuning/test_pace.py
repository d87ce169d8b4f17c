"""The number of candidates of each product: as many as there is time for, so that all are decided."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.autotuning import pace
from tilescout.search.autotuning.pace import EXPECTED, FEWEST, Pace

AHEAD = 3
MOST = 10


def decided(products: int, budget: float, start: float, fixed: float, each: float) -> tuple[list[int], float]:
    """The candidates of the products that are decided, where they take seconds that are known, and when it ends."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "time", clock)
        shared = Pace(products, MOST, budget)
        counts = [shared.enter() for _ in range(min(products, 1 + AHEAD))]
        clock.now = start
        for at in range(products):
            if clock.now >= budget:
                return counts[:at], clock.now
            if len(counts) < min(products, at + 1 + AHEAD):
                counts.append(shared.enter())
            clock.now += fixed + each * counts[at]
            shared.leave(counts[at])
        return counts, clock.now


def test_products_have_all_candidates_where_there_is_time() -> None:
    assert decided(6, 20.0, 3.0, 0.8, 0.12)[0] == [MOST] * 6
    assert decided(100, math.inf, 3.0, 8.0, 1.2)[0] == [MOST] * 100


def test_of_twelve_products_all_are_decided_where_nine_were() -> None:
    counts, _ = decided(12, 20.0, 2.0, 0.8, 0.12)  # the seconds of the record that `EXPECTED` is from
    assert len(counts) == 12
    assert min(counts) >= FEWEST


def test_products_that_take_less_than_expected_have_more_candidates_by_and_by() -> None:
    counts, end = decided(12, 20.0, 2.0, 0.2, 0.05)
    assert counts[0] < MOST
    assert counts[-1] == MOST
    assert end <= 20.0


def test_a_budget_that_is_far_too_small_leaves_products_the_fewest_candidates() -> None:
    assert set(decided(40, 5.0, 1.0, 0.5, 0.1)[0]) == {FEWEST}


@given(
    products=st.integers(1, 40), start=st.floats(0.0, 5.0), fixed=st.floats(0.0, 1.0), each=st.floats(0.01, EXPECTED)
)
def test_all_are_decided_where_the_fewest_candidates_of_each_leave_a_tenth_of_the_budget(
    products: int, start: float, fixed: float, each: float
) -> None:
    longest = fixed + MOST * each  # of a product that was entered before anything was known
    budget = (start + (1 + AHEAD) * longest + products * (fixed + FEWEST * each)) / 0.9
    counts, end = decided(products, budget, start, fixed, each)
    assert len(counts) == products
    assert end <= budget + longest
