"""The pure decisions: which kernels, which ranges, which m next."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilescout.search.dispatch.plan import (
    Stretch,
    choice_of,
    choose_kernels,
    doubt,
    next_size,
    stretches,
    unseen_size,
    worth_racing,
    worth_timing,
)
from tilescout.search.dispatch.points import Point, Ratio
from tilescout.search.dispatch.times import Times
from tilescout.spaces.errors import SpaceError


def times(logs: NDArray[np.float64], spread: float = 0.0) -> Times:
    """Times that are known everywhere, or to within a spread at all but the first and the last m."""
    open_ = np.full(logs.shape, spread)
    open_[:, [0, -1]] = 0.0
    return Times(np.arange(1, logs.shape[1] + 1), logs, logs - open_, logs + open_)


@st.composite
def staircases(draw: st.DrawFn) -> Times:
    """Times of two to five rows at up to 60 m, the last the library's, none falling; some kernels are not legal."""
    rows, sizes = draw(st.integers(2, 5)), draw(st.integers(3, 60))
    seed = draw(st.integers(0, 2**32 - 1))
    generator = np.random.default_rng(seed)
    rises = generator.exponential(0.1, (rows, sizes)) * (generator.random((rows, sizes)) < 0.2)
    logs = generator.normal(3, 0.3, (rows, 1)) + rises.cumsum(axis=1)
    for row in range(rows - 1):
        if generator.random() < 0.3:
            logs[row, : generator.integers(sizes)] = np.inf
    return times(logs, spread=float(generator.choice([0.0, 0.2])))


@settings(max_examples=60, deadline=None)
@given(staircases(), st.sampled_from([0.0, 0.005, 0.05]))
def test_ranges_serve_each_m_once_within_the_tolerance(held: Times, tolerance: float) -> None:
    found = stretches(held, tolerance)
    assert [each.low for each in found] == [1, *(each.high + 1 for each in found[:-1])]
    assert found[-1].high == held.sizes[-1]
    choice = choice_of(found, len(held.mean) - 1, held.sizes)
    regret = held.regret[choice, np.arange(len(held.sizes))]
    assert (regret <= np.log1p(tolerance) + 1e-12).all()


@settings(max_examples=30, deadline=None)
@given(staircases(), st.sampled_from([0.01, 0.05]))
def test_the_more_cautious_the_further_a_kernel_must_be_ahead_of_the_library(held: Times, caution: float) -> None:
    found = stretches(held, 0.005, caution)
    ours = [each for each in found if each.kernel is not None]
    for each in ours:
        ahead = held.mean[-1, each.low - 1 : each.high] - held.mean[each.kernel, each.low - 1 : each.high]
        assert (ahead >= np.log1p(caution) - 1e-12).all()


@settings(max_examples=40, deadline=None)
@given(staircases())
def test_no_fewer_ranges_would_do(held: Times) -> None:
    good = held.regret <= np.log1p(0.005)
    good[:-1] &= held.mean[:-1] <= held.mean[-1]  # no kernel serves where the library is faster
    least = [0] + [99] * len(held.sizes)  # of the first m, by trying all ends of the last range
    for end in range(1, len(held.sizes) + 1):
        for start in range(end):
            if good[:, start:end].all(axis=1).any():
                least[end] = min(least[end], least[start] + 1)
    assert len(stretches(held, 0.005)) == least[-1]


def test_an_m_that_nothing_serves_is_said() -> None:
    with pytest.raises(SpaceError, match="legal for 2 rows"):
        stretches(times(np.array([[1.0, np.inf, 1.0], [np.inf, np.inf, np.inf]])), 0.01)


@settings(max_examples=40, deadline=None)
@given(staircases(), st.integers(1, 4))
def test_more_kernels_leave_no_larger_regret_and_no_more_are_taken_than_needed(held: Times, count: int) -> None:
    found = choose_kernels(held, count, 0.01)
    assert [len(each.kernels) for each in found] == list(range(1, len(found) + 1))
    assert len(found) <= min(count, len(held.mean) - 1)
    assert all(each.regret.worst > 0.01 for each in found[:-1])
    assert all(len(set(each.kernels)) == len(each.kernels) for each in found)
    if found[-1].regret.worst > 0.01:
        assert len(found) == min(count, len(held.mean) - 1)
    best = min(found, key=lambda each: each.regret.mean)
    assert best.regret.mean >= -1e-12


@settings(max_examples=60, deadline=None)
@given(staircases(), st.sets(st.integers(2, 59), max_size=10))
def test_the_next_m_is_one_that_was_not_measured_and_is_in_doubt(held: Times, inner: set[int]) -> None:
    last = int(held.sizes[-1])
    measured = {1, last, *(m for m in inner if m < last)}
    choice = choice_of(stretches(held, 0.005), len(held.mean) - 1, held.sizes)
    doubts = doubt(held, choice)
    assert (doubts >= 0).all()
    assert (doubts <= held.bound(choice) + 1e-12).all()
    less = doubts - doubt(held, choice, 0.02)
    assert (less[choice < len(held.mean) - 1] == 0).all()
    assert (less <= np.log1p(0.02) + 1e-12).all()
    m = next_size(held, choice, measured, 0.01)
    left = [at for at in range(1, last + 1) if at not in measured]
    if m is None:
        assert not left or doubts[[at - 1 for at in left]].max() <= np.log1p(0.01)
        return
    assert m not in measured
    below, above = max(each for each in measured if each < m), min(each for each in measured if each > m)
    assert doubts[below : above - 1].max() == max(doubts[at - 1] for at in left)
    allowed = {at for at in left if at % 3 == 0}
    among = next_size(held, choice, measured, 0.01, allowed)
    assert among is None or among in allowed


def test_where_the_step_is_known_it_is_measured_at_its_end() -> None:
    steps = np.array([[1.0] * 30 + [1.5] * 34, [1.2] * 64, [9.0] * 64])
    held = times(steps, spread=0.6)
    choice = choice_of(stretches(held, 0.005), 2, held.sizes)
    assert next_size(held, choice, {1, 64}, 0.01) in (30, 31)


def test_what_can_not_be_the_fastest_is_not_timed() -> None:
    held = times(np.array([[1.0, 1.0, 1.0], [1.02, 1.02, 1.02], [2.0, 2.0, 2.0], [1.1, 1.1, 1.1]]))
    assert worth_timing(held, 2) == [0, 1]


def test_where_only_the_library_can_be_the_fastest_one_kernel_tells_what_the_clock_was_off() -> None:
    held = times(np.array([[2.0, 2.0, 2.0], [1.5, 1.5, 1.5], [np.inf] * 3, [1.0, 1.0, 1.0]]))
    assert worth_timing(held, 2) == [1]
    assert worth_timing(times(np.array([[np.inf], [1.0]])), 1) == []


def test_those_near_the_best_are_raced_and_the_fastest_two_in_any_case() -> None:
    ratios = {number: Ratio(value, value, value) for number, value in enumerate([1.015, 0.99, 1.1, 1.0, 0.995, 1.01])}
    point = Point(64, 10.0, ratios, slower={6: 0.98})
    assert worth_racing(point, range(7)) == [1, 4, 3, 5]
    assert worth_racing(point, [0, 2]) == [0, 2]
    assert worth_racing(point, [2, 6]) == [2]
    assert worth_racing(point, [6]) == []


def test_of_the_ranges_without_a_measured_m_the_widest_is_measured_in_its_middle() -> None:
    found = [Stretch(1, 10, 0), Stretch(11, 50, 1), Stretch(51, 60, None), Stretch(61, 200, 0)]
    assert unseen_size(found, {1, 200}) == 31
    assert unseen_size(found, {1, 30, 200}) == 55
    assert unseen_size(found, {1, 30, 58, 200}) is None
    assert unseen_size(found, {1, 200}, allowed={12, 52}) == 12
    assert unseen_size(found, {1, 12, 200}, allowed={12, 20}) is None


def test_a_range_at_few_rows_is_wide_if_it_holds_many_times_its_first_m() -> None:
    found = [Stretch(1, 600, 0), Stretch(601, 1200, None), Stretch(1201, 1900, 0), Stretch(1901, 16384, 0)]
    assert unseen_size(found, {1, 16384}) == 901
    assert unseen_size([*found[:1], Stretch(601, 1900, 0), found[-1]], {1, 1000, 16384}) is None
