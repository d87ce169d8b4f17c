"""Which kernel serves how many tokens of a grouped product, by times that are made up."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.dispatch.grouped import (
    GroupedTimes,
    choose_grouped,
    grouped_stretches,
    serve,
    served_regret,
)
from tilescout.search.dispatch.grouped_bundling import over_library
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration

SIZES, ROUTINGS = (8, 100, 5000), ("balanced", "zipf-1")
PROBLEMS = tuple(GroupedProblem.parse(f"4x{size}x64x64:bf16:{routing}") for size in SIZES for routing in ROUTINGS)


def times(ratios: object, width: float = 0.001) -> GroupedTimes:
    """Times with intervals of this half-width, of kernels that are known by a number."""
    ratio = np.array(ratios, dtype=np.float64)
    kernels = tuple(Configuration.of({"kernel": number}) for number in range(len(ratio)))
    return GroupedTimes(PROBLEMS, kernels, ratio, ratio * (1 + width))


def test_a_kernel_for_few_tokens_and_one_for_many_are_told_apart() -> None:
    measured = times([[0.6, 0.6, 0.8, 0.8, 2.0, 2.0], [1.5, 1.5, 0.7, 0.7, 0.7, 0.9], [0.9] * 6])
    kept = choose_grouped(measured)
    assert kept == (0, 1)
    found = grouped_stretches(measured, kept)
    assert [(each.low, each.high, each.kernel) for each in found] == [(1, 85, 0), (86, 5000, 1)]
    assert served_regret(measured, found).max() == 0
    assert over_library(measured, found) == pytest.approx(0.9 * 1.001)


def test_a_kernel_that_one_routing_slows_below_the_library_serves_none() -> None:
    measured = times([[0.6, 0.6, 0.6, 1.1, 0.6, np.inf]])
    served = serve(measured, [0])
    assert served == {8: 0, 100: None, 5000: None}
    found = grouped_stretches(measured, [0])
    assert [(each.low, each.high, each.kernel) for each in found] == [(1, 28, 0), (29, 5000, None)]
    assert over_library(measured, found) == 1.0


def test_one_that_may_be_slower_than_the_library_is_not_proven() -> None:
    assert serve(times([[1.0] * 6], width=0.01), [0]) == dict.fromkeys(SIZES)
    assert serve(times([[1.0] * 6], width=0.001), [0]) == dict.fromkeys(SIZES, 0)


def test_one_kernel_serves_all_routings_of_a_number_so_the_worst_of_them_decides() -> None:
    torn = [[0.6, 0.9] * 3, [0.9, 0.6] * 3, [0.65, 0.65] * 3]
    assert choose_grouped(times(torn), count=1) == (2,)
    assert serve(times(torn), [0, 1, 2]) == dict.fromkeys(SIZES, 2)


def test_times_of_two_tables_stand_beside_each_other() -> None:
    whole = times([[0.6, 0.7, 0.8, 0.8, 2.0, 2.0], [1.5, 1.5, 0.7, 0.7, 0.7, 0.9]])
    first, second = whole.take([0, 1, 4, 5]), whole.take([3, 2])
    swapped = GroupedTimes(second.problems, second.configurations[::-1], second.ratio[::-1], second.high[::-1])
    joined = first.beside(swapped)
    assert joined.configurations == whole.configurations
    for at, problem in enumerate(whole.problems):
        assert joined.ratio[:, joined.problems.index(problem)].tolist() == whole.ratio[:, at].tolist()
    assert choose_grouped(joined) == choose_grouped(whole)
    with pytest.raises(SpaceError, match="4x8x64x64:bf16:balanced is in two"):
        joined.beside(whole.take([0]))


def test_times_of_two_products_are_refused() -> None:
    other = GroupedProblem.parse("4x8x64x128")
    with pytest.raises(SpaceError, match="several grouped products"):
        GroupedTimes((PROBLEMS[0], other), (), np.ones((0, 2)), np.ones((0, 2)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(0.3, 3.0), min_size=6, max_size=6), min_size=1, max_size=6))
def test_ranges_cover_all_sizes_and_no_kernel_serves_where_it_is_slower(ratios: list[list[float]]) -> None:
    measured = times(ratios)
    kept = choose_grouped(measured)
    served, found = serve(measured, kept), grouped_stretches(measured, kept)
    assert (found[0].low, found[-1].high) == (1, SIZES[-1])
    assert all(after.low == before.high + 1 for before, after in pairwise(found))
    for size, kernel in served.items():
        (inside,) = [each for each in found if each.low <= size <= each.high]
        assert inside.kernel == kernel
    assert over_library(measured, found) <= 1.002
