"""Which kernel serves how many tokens of a grouped product, by times that are made up."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.dispatch.grouped_bundling import over_library
from tilescout.search.dispatch.grouped_ranges import (
    CHOICE_US,
    GroupedStretch,
    choose_grouped,
    grouped_stretches,
    outlook,
    served_ratio,
    served_regret,
)
from tilescout.search.dispatch.grouped_times import GroupedTimes
from tilescout.search.dispatch.pair_rule import fit_rule
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import TEMPLATE
from tilescout.spaces.templates import find_template, of_any_problem

H200 = DEVICES["h200"]
SIZES, ROUTINGS = (64, 512, 8192), ("balanced", "zipf-1")
PROBLEMS = tuple(GroupedProblem.parse(f"8x{size}x4096x4096:bf16:{routing}") for size in SIZES for routing in ROUTINGS)
KERNELS = tuple(
    TEMPLATE.default(GroupedProblem.parse(text), H200)
    for text in ("8x64x4096x4096", "8x8192x4096x4096", "8x8192x4096x4096:bf16:zipf-1", "8x256x4096x4096")
)
LIBRARY_US = 1000.0  # so that the price of a choice is small


def times(ratios: object, width: float = 0.001) -> GroupedTimes:
    """Times with intervals of this half-width, of some kernels."""
    ratio = np.array(ratios, dtype=np.float64)
    library_us = np.full(len(PROBLEMS), LIBRARY_US)
    kernels = KERNELS[: len(ratio)]
    return GroupedTimes(of_any_problem(TEMPLATE), H200, PROBLEMS, library_us, kernels, ratio, ratio * (1 + width))


def ranges(measured: GroupedTimes) -> list[GroupedStretch]:
    """The ranges, of as many kernels as are wanted."""
    expected = outlook(measured)
    return grouped_stretches(expected, choose_grouped(expected))


def test_a_kernel_for_few_tokens_and_one_for_many_are_told_apart() -> None:
    measured = times([[0.6, 0.6, 0.8, 0.8, 2.0, 2.0], [1.5, 1.5, 0.5, 0.5, 0.7, 0.9]])
    found = ranges(measured)
    assert [each.kernels for each in found] == [(0,), (1,)]
    assert 64 <= found[0].high < 512
    assert served_regret(measured, found).max() == 0
    assert over_library(measured, found) == pytest.approx(0.9 * 1.001)


def test_where_routings_want_different_kernels_the_device_chooses() -> None:
    torn = times([[0.6, 0.6, 0.5, 0.9, 0.5, 0.9], [0.6, 0.6, 0.9, 0.5, 0.9, 0.5]])
    found = ranges(torn)
    assert found[-1].second is not None
    assert sorted(found[-1].kernels) == [0, 1]
    (balanced, skewed) = served_ratio(torn, found)[2:4]
    assert balanced == pytest.approx(0.5 + CHOICE_US / LIBRARY_US)
    assert skewed == pytest.approx(0.5 + CHOICE_US / LIBRARY_US)
    assert served_ratio(torn, found, far=True)[2] == pytest.approx(0.5 * 1.001 + CHOICE_US / LIBRARY_US)


def test_where_it_was_measured_a_choice_that_saves_less_than_it_costs_is_left_out() -> None:
    close = times([[0.6, 0.6, 0.5, 0.505, 0.5, 0.505], [0.6, 0.6, 0.505, 0.5, 0.505, 0.5]])
    assert all(each.second is None for each in ranges(close) if any(each.low <= size <= each.high for size in SIZES))


def test_an_outlook_looks_right_above_the_numbers_of_tokens_that_fill_tiles() -> None:
    tokens = outlook(times([[0.6] * 6])).tokens
    assert tokens == tuple(sorted(set(tokens)))
    for full in (512, 1024, 4096):  # 8 experts: 64, 128 and 512 tokens for each
        assert tokens[tokens.index(full) + 1] == full + 8


def test_a_rule_that_is_fitted_exactly_is_found() -> None:
    counts = np.array([[1, 8, 31, 18, 15, 39], [1, 8, 13, 18, 28, 33], [1, 8, 28, 35, 9, 20]], dtype=np.float64)
    rule = fit_rule(counts, np.array([-0.12, -0.11, -0.07]))  # its last step is none at all
    assert (rule.score(counts) < 0).all()


def test_a_space_without_pairs_has_the_kernel_that_the_worst_routing_slows_least() -> None:
    torn = times([[0.6, 0.9] * 3, [0.9, 0.6] * 3, [0.65, 0.65] * 3])
    alone = replace(torn, template=find_template("grouped_swiglu_sm90"))
    assert ranges(alone)[-1].kernels == (2,)
    assert all(each.second is None for each in ranges(alone))


def test_a_kernel_that_one_routing_slows_below_the_library_serves_none() -> None:
    measured = times([[0.6, 0.6, 0.6, 1.1, 0.6, 1.2]])
    found = ranges(measured)
    assert [each.kernels for each in found] == [(0,), ()]
    assert 64 <= found[0].high < 512
    assert over_library(measured, found) == 1.0


def test_one_that_may_be_slower_than_the_library_is_not_proven() -> None:
    assert {each.kernels for each in ranges(times([[0.99] * 6], width=0.02))} == {()}
    assert {each.kernels for each in ranges(times([[0.99] * 6], width=0.001))} == {(0,)}


def test_times_of_two_tables_stand_beside_each_other() -> None:
    whole = times([[0.6, 0.7, 0.8, 0.8, 2.0, 2.0], [1.5, 1.5, 0.7, 0.7, 0.7, 0.9]])
    whole = replace(whole, library_us=np.arange(6.0) + 100)
    first, second = whole.take([0, 1, 4, 5]), whole.take([3, 2])
    turned = second.configurations[::-1]
    swapped = replace(second, configurations=turned, ratio=second.ratio[::-1], high=second.high[::-1])
    joined = first.beside(swapped)
    assert joined.configurations == whole.configurations
    for at, problem in enumerate(whole.problems):
        place = joined.problems.index(problem)
        assert joined.ratio[:, place].tolist() == whole.ratio[:, at].tolist()
        assert joined.library_us[place] == whole.library_us[at]


def test_of_a_problem_in_two_tables_each_kernel_has_its_first_time_but_a_rough_one() -> None:
    first, second = times([[0.6] * 6, [0.7] * 6]), times([[0.9] * 6, [0.8] * 6])
    rough = replace(first, high=np.where([[True], [False]], first.high, np.inf))
    joined = rough.beside(second)
    assert joined.problems == first.problems
    assert joined.ratio.tolist() == [[0.6] * 6, [0.8] * 6]
    assert np.isfinite(joined.high).all()
    with pytest.raises(SpaceError, match="can't stand beside"):
        first.beside(replace(second, template=find_template("grouped_streamk_sm90")))


def test_times_of_two_products_are_refused() -> None:
    other = GroupedProblem.parse("4x8x64x128")
    with pytest.raises(SpaceError, match="several grouped products"):
        replace(times(np.ones((1, 6))), problems=(*PROBLEMS[:5], other))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.floats(0.3, 3.0), min_size=6, max_size=6), min_size=1, max_size=4))
def test_ranges_cover_all_sizes_and_no_kernel_serves_where_it_is_slower(ratios: list[list[float]]) -> None:
    measured = times(ratios)
    found = ranges(measured)
    assert (found[0].low, found[-1].high) == (1, SIZES[-1])
    assert all(after.low == before.high + 1 for before, after in pairwise(found))
    assert over_library(measured, found) <= 1.002
