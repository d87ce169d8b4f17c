"""Where glances are cast, and how they are put together with what was measured."""

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.dispatch.invented_gpu import MOST, InventedGpu
from tilescout.search.dispatch.glances import Looked, fine_sizes, glanced_sizes, short_first
from tilescout.search.dispatch.measuring import Sweep
from tilescout.search.dispatch.points import Point
from tilescout.search.dispatch.recorded import Recorded
from tilescout.search.dispatch.steps import Grid
from tilescout.search.dispatch.times import Times
from tilescout.search.engines.engine import CannotMeasureError


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


def test_sizes_of_very_many_rows_are_ordered_soon() -> None:
    begun = time.process_time()
    sizes = fine_sizes(1 << 18)
    assert time.process_time() - begun < 5  # looking at all of them for each took 20 s
    assert np.diff(np.sort(sizes[:256])).max() < 1 << 13, "any first part of them is spread over all"


def test_sizes_whose_launches_are_short_come_first_and_else_keep_their_order() -> None:
    sizes = np.arange(1, 101)
    library = np.log(np.where(sizes <= 50, 30.0, 60.0))
    nothing = np.full(100, np.inf)
    times = Times(sizes, np.stack([nothing, library]), np.stack([nothing, library]), np.stack([nothing, library]))
    assert short_first([70, 9, 60, 50, 99, 51, 3], times) == [9, 50, 3, 70, 60, 99, 51]


@given(st.integers(16, 20_000))
def test_kept_kernels_are_looked_at_in_every_cell_of_16_rows_and_wherever_8_divides_m(most: int) -> None:
    sizes = fine_sizes(most)
    assert len(set(sizes)) == len(sizes)
    assert min(sizes) >= 1
    assert max(sizes) <= most
    assert {(m - 1) // 16 for m in sizes if m % 8} >= set(range(most // 16))
    assert {m for m in sizes if m % 8 == 0} >= set(range(8, most + 1, 8))
    assert {*sizes} >= {*range(1, min(most, 64) + 1)}


@given(st.lists(st.integers(0, 4), min_size=16, max_size=400))
def test_every_kernel_that_the_library_runs_in_a_cell_is_seen_before_all_else(numbers: list[int]) -> None:
    library = np.array(numbers)
    sizes, plain = fine_sizes(len(library), library), fine_sizes(len(library))
    assert {*sizes} == {*sizes} | {*plain}
    groups = {((m - 1) // 32, numbers[m - 1]) for m in range(1, len(library) + 1)}
    assert {((m - 1) // 32, numbers[m - 1]) for m in sizes[: len(groups) + 64]} == groups


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
    wanted = glanced_sizes(MOST)
    looked = Looked(Watched(gpu, gpu.kernels), Grid.of(gpu.kernels, MOST), wanted, {})
    looked.add(Point(1, 10.0))  # something has to be known
    looked.glance(range(12), wanted, until=5.5)
    assert len(asked) == 6
    sizes = [m for each in asked for m in each]
    assert sizes == wanted[: len(sizes)]
    assert looked.found.keys() == {1, *sizes} - asked[1].keys()  # the others were not lost
    looked.glance(range(12), wanted, math.inf)
    assert {1, *wanted} == looked.found.keys()
    assert max(map(len, asked)) > 20


def test_what_was_recorded_has_no_glances_and_none_are_planned() -> None:
    gpu = InventedGpu(6144, 4096, 12, noise=0.0, seed=3)

    class Unplanned(Looked):
        def times(self) -> Times:
            raise AssertionError("nothing is to be expected of glances that there are not")

    recorded = Recorded(gpu.kernels, {1: Point(1, 10.0), 64: Point(64, 10.0)})
    looked = Unplanned(recorded, Grid.of(gpu.kernels, MOST), glanced_sizes(MOST), {})
    looked.glance(range(12), glanced_sizes(MOST), math.inf)
    assert not looked.found


def test_times_are_expected_wherever_something_was_measured() -> None:
    gpu = InventedGpu(6144, 4096, 12, noise=0.0, seed=3)
    sweep = Sweep(gpu, gpu.kernels)
    points = {m: sweep.at(m, range(12)) for m in (1, 1001, MOST)}
    times = Looked(sweep, Grid.of(gpu.kernels, MOST), range(64, MOST, 64), points).times()
    assert {1, 1001, MOST, *range(64, MOST, 64)} == {*times.sizes.tolist()}
    at = int(np.searchsorted(times.sizes, 1001))
    for number, each in points[1001].ratios.items():
        assert times.mean[number, at] - times.mean[-1, at] == pytest.approx(np.log(each.value))
