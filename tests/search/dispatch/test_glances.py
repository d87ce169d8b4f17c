"""Where glances are cast, and how they are put together with what was measured."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.dispatch.invented_gpu import MOST, InventedGpu
from tilescout.search.dispatch.glances import Looked, corrected, fine_sizes, glanced_sizes, merged, short_first
from tilescout.search.dispatch.measuring import Sweep
from tilescout.search.dispatch.points import Point, Ratio
from tilescout.search.dispatch.steps import Grid
from tilescout.search.dispatch.times import Times
from tilescout.search.engines.engine import CannotMeasureError


def ratio(value: float) -> Ratio:
    return Ratio(value, value, value)


@given(st.integers(16, 20_000))
def test_every_cell_gets_one_glance_and_cells_are_wider_where_there_are_more_rows(most: int) -> None:
    sizes = glanced_sizes(most)
    assert len(set(sizes)) == len(sizes)
    assert min(sizes) >= 1
    assert max(sizes) <= most
    fine = [m for m in sizes if m <= 2048]
    assert {(m - 1) // 8 for m in fine} == set(range(-(-min(most, 2048) // 8)))
    assert {(m - 1) // 64 for m in sizes if m <= 8192} == set(range(-(-min(most, 8192) // 64)))
    assert {(m - 1) // 128 for m in sizes} == set(range(-(-most // 128)))


def test_any_first_part_of_them_is_spread_over_all() -> None:
    sizes = glanced_sizes(16_384)
    first = np.sort(sizes[: len(sizes) // 8])
    assert np.diff(np.log(first[first > 64])).max() < 0.9
    assert np.diff(first).max() < 800
    assert 0.2 < (first <= 2048).mean() < 0.4  # a quarter, and an eighth of the rest, counts up to there


def test_sizes_whose_launches_are_short_come_first_and_else_keep_their_order() -> None:
    sizes = np.arange(1, 101)
    library = np.log(np.where(sizes <= 50, 30.0, 60.0))
    nothing = np.full(100, np.inf)
    times = Times(sizes, np.stack([nothing, library]), np.stack([nothing, library]), np.stack([nothing, library]))
    assert short_first([70, 9, 60, 50, 99, 51, 3], times) == [9, 50, 3, 70, 60, 99, 51]


def test_a_glance_is_corrected_by_what_was_measured_there_and_between_such_sizes() -> None:
    times = {100: 10.0, 1000: 20.0, 10_000: math.inf}  # µs of the library
    glances = {m: Point(m, us, {0: ratio(1.0), 1: ratio(1.1)}) for m, us in times.items()}
    points = {
        100: Point(100, 10.0, {0: ratio(1.02)}),
        10_000: Point(10_000, math.inf, {0: ratio(0.98)}, failed={1: "wrong"}),
    }
    found = merged(glances, points)
    assert found[100].ratios[0] == ratio(1.02)
    assert found[100].ratios[1].value == pytest.approx(1.1 * 1.02)
    assert found[1000].ratios[0].value == pytest.approx((1.02 * 0.98) ** 0.5)
    assert found[10_000].ratios == {0: ratio(0.98)}  # what failed there has no time


def test_without_a_size_that_has_both_glances_stand_as_they_are() -> None:
    glance = Point(100, 100.0, {0: ratio(1.0)})
    assert merged({100: glance}, {50: Point(50, 90.0, {0: ratio(0.9)})})[100] == glance


def test_a_kernel_is_not_taken_to_be_further_off_than_a_quarter() -> None:
    found = merged(
        {9: Point(9, 1.0, {0: ratio(1.0)}), 10: Point(10, 1.0, {0: ratio(1.0)})}, {9: Point(9, 1.0, {0: ratio(3.0)})}
    )
    assert found[10].ratios[0].value == pytest.approx(np.exp(0.25))


@given(st.integers(16, 20_000))
def test_kept_kernels_are_looked_at_in_every_cell_of_16_rows_and_wherever_8_divides_m(most: int) -> None:
    sizes = fine_sizes(most)
    assert len(set(sizes)) == len(sizes)
    assert min(sizes) >= 1
    assert max(sizes) <= most
    assert {(m - 1) // 16 for m in sizes if m % 8} >= set(range(most // 16))
    assert {m for m in sizes if m % 8 == 0} >= set(range(8, most + 1, 8))


def test_kernels_are_glanced_at_together_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], list[dict[int, list[int]]]()

    class Watched(Sweep):
        def glances(self, sizes: Mapping[int, Sequence[int]], rounds: int = 2) -> list[Point]:
            asked.append({m: list(numbers) for m, numbers in sizes.items()})
            now[0] += 1
            if len(asked) == 2:
                raise CannotMeasureError("it crashed")
            return super().glances(sizes, rounds)

    monkeypatch.setattr("tilescout.search.dispatch.glances.time.monotonic", lambda: now[0])
    gpu = InventedGpu(6144, 4096, 12, noise=0.0, seed=3)
    looked = Looked(Watched(gpu, gpu.kernels), Grid.of(gpu.kernels, MOST), {})
    looked.add(Point(1, 10.0))  # something has to be known
    wanted = glanced_sizes(MOST)
    looked.glance(range(12), wanted, until=5.5)
    assert len(asked) == 6
    sizes = [m for each in asked for m in each]
    assert sizes == wanted[: len(sizes)]
    assert looked.found.keys() == {1, *sizes} - asked[1].keys()  # the others were not lost
    looked.glance(range(12), wanted, math.inf)
    assert {1, *wanted} == looked.found.keys()
    assert max(map(len, asked)) > 20


def test_glances_are_corrected_by_the_fastest_kernel_and_those_near_it() -> None:
    def at(m: int, *values: float) -> Point:
        return Point(m, 50.0, {number: ratio(value) for number, value in enumerate(values)})

    glances = {8: at(8, 0.98, 1.0, 1.8, 1.9), 16: at(16, 1.0)}
    assert corrected(glances, {8: at(8, 0.98, 1.0, 2.1, 2.2)})[16].ratios[0].value == pytest.approx(1.0)
    assert corrected(glances, {8: at(8, 1.078, 1.1, 1.8, 1.9)})[16].ratios[0].value == pytest.approx(1.1)
