"""Between measured m: the steps of kernels, the bounds of their times, and the estimate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.dispatch.invented_gpu import MOST, InventedGpu
from tilescout.search.dispatch.points import Known, Point, Ratio
from tilescout.search.dispatch.steps import Grid, Steps
from tilescout.search.dispatch.times import levels, times_of


@pytest.fixture(scope="module")
def grid(invented_gpu: InventedGpu) -> Grid:
    return Grid.of(invented_gpu.kernels, MOST)


def measured(gpu: InventedGpu, sizes: list[int], off: dict[int, float] | None = None) -> Known:
    """Times without noise, but for what the clock is off."""
    points = {}
    for m in sizes:
        logs = gpu.logs[:, m - 1]
        ratios = {row: float(np.exp(logs[row] - logs[-1])) for row in np.flatnonzero(np.isfinite(logs[:-1])).tolist()}
        library_us = float(np.exp(logs[-1] + (off or {}).get(m, 0.0)))
        points[m] = Point(m, library_us, {row: Ratio(each, each, each) for row, each in ratios.items()})
    return Known.of(points, len(gpu.kernels))


some_sizes = st.lists(st.integers(1, MOST), min_size=1, max_size=12, unique=True).map(sorted)


def test_the_rules_of_every_m_are_those_of_the_template(invented_gpu: InventedGpu, grid: Grid) -> None:
    for m in (1, 2, 8, 9, 31, 32, 33, 64, 65, 127, 128, 129, 200, 1000, 2047, MOST):
        assert (grid.legal[:, m - 1] == invented_gpu.kernels.legal(m)).all(), m
    first = [int(row.argmax()) + 1 for row in grid.legal if row.any()]
    assert set(first) <= set(grid.corners())


def test_work_grows_with_m_and_most_where_a_wave_begins(invented_gpu: InventedGpu, grid: Grid) -> None:
    assert (np.diff(grid.work, axis=1) >= 0).all()
    steps = Steps.of(invented_gpu.kernels)
    for row, (rows, across, at_once) in enumerate(zip(steps.rows, steps.across, steps.at_once, strict=True)):
        tiles = -(-np.arange(1, MOST + 1) // rows) * across
        assert (np.diff(grid.work[row]) > 0).sum() == (np.diff(tiles) > 0).sum()
        assert (steps.waves(np.array([MOST]))[row] == -(-tiles[-1] // at_once)).all()


@settings(max_examples=40, deadline=None)
@given(some_sizes)
def test_every_time_lies_between_the_bounds_that_a_few_measured_m_give(
    invented_gpu: InventedGpu, grid: Grid, sizes: list[int]
) -> None:
    whole = sorted({1, *sizes, MOST})
    times = times_of(grid, measured(invented_gpu, whole))
    true = np.where(np.vstack([grid.legal, np.ones((1, MOST), dtype=bool)]), invented_gpu.logs, np.inf)
    known = np.isfinite(times.mean)
    slack = 1e-9
    assert (true[known] <= times.high[known] + slack).all()
    assert (true[known] >= times.low[known] - slack).all()
    assert (times.low[known] <= times.mean[known] + slack).all()
    assert (times.mean[known] <= times.high[known] + slack).all()
    for m in whole:
        at = np.isfinite(times.mean[:, m - 1])
        assert times.mean[at, m - 1] == pytest.approx(true[at, m - 1])


@settings(max_examples=20, deadline=None)
@given(some_sizes, st.integers(0, 2**32 - 1))
def test_the_bound_of_the_regret_holds_whatever_serves(
    invented_gpu: InventedGpu, grid: Grid, sizes: list[int], seed: int
) -> None:
    times = times_of(grid, measured(invented_gpu, sorted({1, *sizes, MOST})))
    seen = np.isfinite(times.mean)
    rows = np.where(seen, np.random.default_rng(seed).random(seen.shape), -1.0).argmax(axis=0)
    true = np.where(seen, invented_gpu.logs, np.inf)  # of the others nothing is known
    regret = true[rows, np.arange(MOST)] - true.min(axis=0)
    assert (regret <= times.bound(rows) + 1e-9).all()


def test_what_the_clock_was_off_is_found(invented_gpu: InventedGpu, grid: Grid) -> None:
    sizes = list(range(1000, MOST + 1, 50))
    few = replace(grid, work=grid.work * 40)  # as of a product with so many times the columns: many waves
    off = {1200: 0.06, 1700: -0.05}
    found = dict(zip(sizes, levels(few, measured(invented_gpu, sizes, off)), strict=True))
    clear = levels(few, measured(invented_gpu, sizes))
    assert found[1200] - clear[sizes.index(1200)] == pytest.approx(0.06, abs=0.02)
    assert found[1700] - clear[sizes.index(1700)] == pytest.approx(-0.05, abs=0.02)
    others = [found[m] - clear[at] for at, m in enumerate(sizes) if m not in off]
    assert np.abs(others).max() < 0.02


def longer_library(known: Known, m: int) -> Known:
    """The same with a library that takes a tenth longer at an m."""
    return replace(known, library=known.library + np.where(known.sizes == m, np.log(1.1), 0.0))


def test_a_library_that_is_another_where_8_divides_m_tells_nothing_of_its_neighbours(
    invented_gpu: InventedGpu, grid: Grid
) -> None:
    held = measured(invented_gpu, [1, 101, 160, 169, 181, 800, 1301, MOST])
    plain = times_of(grid, held)
    times = times_of(grid, longer_library(held, 160))
    at = np.arange(MOST) == 159
    assert times.mean[-1, at] == pytest.approx(plain.mean[-1, at] + np.log(1.1))
    assert (times.mean[-1, ~at] == plain.mean[-1, ~at]).all()
    assert times_of(grid, longer_library(held, 800)).mean[-1, 700] > plain.mean[-1, 700]  # nothing else is near
