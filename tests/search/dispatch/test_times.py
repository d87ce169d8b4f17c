"""Between measured m: the steps of kernels, the bounds of their times, and the estimate."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.search.dispatch.invented_gpu import MOST, InventedGpu
from tilescout.costmodel.arrays import Floats
from tilescout.search.dispatch.points import Known, Point, Ratio
from tilescout.search.dispatch.steps import Grid, LibraryKernels, Steps
from tilescout.search.dispatch.times import steadied, steady_times, times_of
from tilescout.spaces.templates import find_template


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


def levels(grid: Grid, known: Known) -> Floats:
    """Log of what the library's times were freed of."""
    return known.library - steadied(grid, known).library


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


def test_a_clock_is_far_off_where_all_times_of_an_m_are_and_not_where_one_kernels_is(
    invented_gpu: InventedGpu, grid: Grid
) -> None:
    sizes = list(range(1000, MOST + 1, 50))
    few = replace(grid, work=grid.work * 40)
    clear = dict(zip(sizes, levels(few, measured(invented_gpu, sizes)), strict=True))
    found = dict(zip(sizes, levels(few, measured(invented_gpu, sizes, {1500: 0.4})), strict=True))
    assert found.pop(1500) - clear.pop(1500) == pytest.approx(0.4, abs=0.03)
    assert max(abs(each - clear[m]) for m, each in found.items()) < 0.03

    known = measured(invented_gpu, sizes)
    ratios = known.ratios.copy()
    ratios[: len(ratios) // 2, sizes.index(1500)] += 0.8
    off = dict(zip(sizes, levels(few, replace(known, ratios=ratios)), strict=True))[1500]
    assert 0.05 < off <= 0.12 + 1e-9


def test_where_nothing_else_can_run_there_is_no_regret(invented_gpu: InventedGpu, grid: Grid) -> None:
    times = times_of(grid, measured(invented_gpu, [1, 512]))  # the library's time at more rows has no bound
    none = replace(times, mean=times.mean.copy(), low=times.low.copy(), high=times.high.copy())
    for each in (none.mean, none.low, none.high):
        each[:-1] = np.inf
    library = np.full(MOST, len(grid.legal))
    assert (none.bound(library) == 0).all()
    assert np.isinf(times.bound(library)[-1])


def glanced(gpu: InventedGpu, sizes: list[int], off: dict[int, float], rows: dict[int, list[int]]) -> Known:
    """Glances at some kernels at each m, whose times are all off by the clock."""
    points = {}
    for m in sizes:
        logs = gpu.logs[:, m - 1]
        told = {row: Ratio(*[float(np.exp(logs[row] - logs[-1]))] * 3) for row in rows[m] if np.isfinite(logs[row])}
        points[m] = Point(m, float(np.exp(logs[-1] + off[m])), told)
    return Known.of(points, len(gpu.kernels), told="glanced")


def of_one_kernel(grid: Grid) -> Grid:
    """The grid with a library that runs one kernel everywhere, whose time grows with m."""
    return replace(grid, library=np.zeros(MOST, dtype=np.int64), library_work=np.arange(1.0, MOST + 1))


def test_kernels_that_were_glanced_at_in_turns_are_told_apart_whatever_the_clock_was(
    invented_gpu: InventedGpu, grid: Grid
) -> None:
    kernels, sizes = np.flatnonzero(np.isfinite(invented_gpu.logs[:-1]).all(axis=1))[:2].tolist(), range(1500, MOST, 8)
    clock = np.random.default_rng(0).normal(0, 0.04, len(sizes)).tolist()
    off = dict(zip(sizes, clock, strict=True))
    known = glanced(invented_gpu, list(sizes), off, {m: [kernels[at % 2]] for at, m in enumerate(sizes)})
    inner = slice(1600, 1950)
    true = invented_gpu.logs[kernels, inner] - invented_gpu.logs[-1, inner]
    plain, freed = (
        find(of_one_kernel(grid), known).mean[kernels, inner] - find(of_one_kernel(grid), known).mean[-1, inner] - true
        for find in (times_of, steady_times)
    )
    assert np.sqrt((freed**2).mean()) < np.sqrt((plain**2).mean()) / 2


def test_a_glance_is_smoothed_and_a_race_stays_what_it_is_over_the_library(
    invented_gpu: InventedGpu, grid: Grid
) -> None:
    sizes, row = list(range(1600, 1700)), int(np.flatnonzero(np.isfinite(invented_gpu.logs[:-1]).all(axis=1))[0])
    known = glanced(invented_gpu, sizes, dict.fromkeys(sizes, 0.0), {m: [row] for m in sizes})
    noise = np.random.default_rng(1).normal(0, 0.02, len(sizes))
    noisy = replace(known, ratios=known.ratios + noise)
    error = (steadied(of_one_kernel(grid), noisy).ratios - known.ratios)[row]
    assert error.std() < noise.std() / 2
    raced = noisy.raced.copy()
    raced[row, 50] = True
    found = steadied(of_one_kernel(grid), replace(noisy, raced=raced))
    assert found.ratios[row, 50] == noisy.ratios[row, 50]


def test_another_kernel_of_the_library_is_known_by_its_own_measurements(invented_gpu: InventedGpu, grid: Grid) -> None:
    sizes = np.arange(1, MOST + 1)
    eighths = sizes % 8 == 0
    own = replace(of_one_kernel(grid), library=eighths.astype(np.int64))
    held = measured(invented_gpu, [1, 1201, 1264, 1301, 1401, MOST])
    slow = longer_library(held, 1264)
    plain, told = (times_of(own, each).mean[-1] for each in (held, slow))
    near = eighths & (np.abs(np.log(sizes / 1264)) < 0.04)
    assert told[near] == pytest.approx(plain[near] + np.log(1.1), abs=0.01)  # others lie towards the last m
    assert (told[~eighths] == plain[~eighths]).all()
    far = eighths & (sizes < 1000) & (sizes > 1)  # nothing that is near is known of that kernel
    assert (told[far] == plain[far]).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=20))
def test_what_the_library_names_survives_its_record(runs: list[tuple[int, int]]) -> None:
    template = find_template("cublaslt")
    rows = [(1, 66, 500 + number, 35, 1, 0, 0, 0, 5, 7) for number, length in runs for _ in range(length)]
    named = LibraryKernels.of(template, rows)
    named.check(len(rows))
    assert LibraryKernels.from_dict(json.loads(json.dumps(named.to_dict()))) == named
    found = [named.kernels[number]["tile"] for number in named.at(np.arange(1, len(rows) + 1)).tolist()]
    assert found == [row[2] for row in rows]


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


def test_where_no_kernel_is_left_the_times_are_the_librarys(invented_gpu: InventedGpu) -> None:
    named = LibraryKernels.of(find_template("cublaslt"), [[1, 66, 502, 35, 1, 0, 0, 0, 5, 7]] * MOST)
    grid, known = Grid.of(invented_gpu.kernels, MOST, named), measured(invented_gpu, [1, 300, MOST])
    times = steady_times(grid.take([]), known.take([]))
    assert times.mean.shape == (1, MOST)
    assert np.isfinite(times.mean).all()
