"""The columns of points, and how glances are put together with what was measured."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.dispatch.glances import corrected, corrected_points
from tilescout.search.dispatch.kernels import portfolio_of
from tilescout.search.dispatch.points import Known, Point, Ratio
from tilescout.search.dispatch.recorded import Recorded
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

KERNELS = 3


def ratio(value: float) -> Ratio:
    return Ratio(value, value, value)


def at(m: int, *values: float) -> Point:
    return Point(m, 50.0, {number: ratio(value) for number, value in enumerate(values)})


def merged(glances: dict[int, Point], points: dict[int, Point]) -> dict[int, dict[int, float]]:
    """The ratios that are known at each m."""
    measured = Known.of(points, KERNELS)
    whole = measured.beside(corrected(Known.of(glances, KERNELS), measured))
    columns = np.exp(whole.ratios.T).tolist()
    return {
        m: {number: value for number, value in enumerate(column) if not math.isnan(value)}
        for m, column in zip(whole.sizes.tolist(), columns, strict=True)
    }


def test_a_glance_is_corrected_by_what_was_measured_there_and_between_such_sizes() -> None:
    times = {100: 10.0, 1000: 20.0, 10_000: math.inf}  # µs of the library
    glances = {m: Point(m, us, {0: ratio(1.0), 1: ratio(1.1)}) for m, us in times.items()}
    points = {
        100: Point(100, 10.0, {0: ratio(1.02)}),
        10_000: Point(10_000, math.inf, {0: ratio(0.98)}, failed={1: "wrong"}),
    }
    found = merged(glances, points)
    assert found[100] == pytest.approx({0: 1.02, 1: 1.1 * 1.02})
    assert found[1000][0] == pytest.approx((1.02 * 0.98) ** 0.5)
    assert found[10_000] == pytest.approx({0: 0.98})  # what failed there has no time


def test_without_a_size_that_has_both_glances_stand_as_they_are() -> None:
    found = merged({100: at(100, 1.0)}, {50: at(50, 0.9)})
    assert found == {100: pytest.approx({0: 1.0}), 50: pytest.approx({0: 0.9})}


def test_a_kernel_is_not_taken_to_be_further_off_than_a_quarter() -> None:
    found = merged({9: at(9, 0.7), 10: at(10, 0.7)}, {9: at(9, 1.0)})
    assert found[10][0] == pytest.approx(0.7 * np.exp(0.25))


def test_a_kernel_that_is_far_behind_the_library_corrects_no_glance() -> None:
    found = merged({9: at(9, 1.0), 10: at(10, 1.0)}, {9: at(9, 1.2)})
    assert found[10][0] == pytest.approx(1.0)


def test_one_race_that_is_off_is_outvoted_by_those_of_launches_that_take_as_long() -> None:
    def there(m: int, ratio: float) -> Point:
        return replace(at(m, ratio), library_us=float(m))

    raced = {m: there(m, 1.06 if m == 103 else 1.01) for m in range(100, 107)}
    found = merged({m: there(m, 1.0) for m in range(100, 110)} | {200: replace(at(200, 1.0), library_us=103.0)}, raced)
    assert found[109][0] == pytest.approx(1.01)
    assert found[200][0] == pytest.approx(1.01)


def test_glances_are_corrected_by_the_fastest_kernel_and_those_near_it() -> None:
    glances = {8: at(8, 0.98, 1.0, 1.8), 16: at(16, 1.0)}
    assert merged(glances, {8: at(8, 0.98, 1.0, 2.1)})[16][0] == pytest.approx(1.0)
    assert merged(glances, {8: at(8, 1.078, 1.1, 1.8)})[16][0] == pytest.approx(1.1)


def test_a_glance_is_not_corrected_by_a_kernel_that_was_given_up() -> None:
    given_up = Point(8, 50.0, slower={0: 1.5})
    assert merged({8: at(8, 1.0), 16: at(16, 1.0)}, {8: given_up})[16][0] == pytest.approx(1.0)


values = st.floats(0.5, 2.0)
some_points = st.dictionaries(st.integers(1, 40), st.dictionaries(st.integers(0, KERNELS - 1), values), max_size=8)


def points_of(drawn: dict[int, dict[int, float]]) -> dict[int, Point]:
    return {
        m: Point(m, 10.0 + m, {number: ratio(value) for number, value in held.items()}) for m, held in drawn.items()
    }


@given(some_points, some_points)
def test_points_are_corrected_as_columns_are(
    glanced: dict[int, dict[int, float]], drawn: dict[int, dict[int, float]]
) -> None:
    glances, points = points_of(glanced), points_of(drawn)
    told = corrected_points(tuple(glances.values()), tuple(points.values()), KERNELS)
    assert [each.m for each in told] == sorted(glances)
    columns = corrected(Known.of(glances, KERNELS), Known.of(points, KERNELS))
    assert Known.of({each.m: each for each in told}, KERNELS).ratios == pytest.approx(columns.ratios, nan_ok=True)


@given(some_points)
def test_columns_hold_what_the_points_do(drawn: dict[int, dict[int, float]]) -> None:
    known = Known.of(points_of(drawn), KERNELS)
    assert known.sizes.tolist() == sorted(drawn)
    for place, m in enumerate(known.sizes.tolist()):
        assert np.flatnonzero(known.paired[:, place]).tolist() == sorted(drawn[m])
        for number, value in drawn[m].items():
            assert known.logs[number, place] == pytest.approx(np.log(value * (10.0 + m)))
    assert np.isnan(known.ratios[~known.paired]).all()


def test_what_a_kernel_is_proven_to_do_is_the_upper_end_of_its_interval() -> None:
    points = {64: Point(64, 10.0, {0: Ratio(1.0, 0.9, 1.1)}, slower={1: 1.5}, failed={2: "wrong"})}
    assert np.exp(Known.of(points, KERNELS).ratios[:2, 0]) == pytest.approx([1.0, 1.5])
    assert np.exp(Known.of(points, KERNELS, promised=True).ratios[:2, 0]) == pytest.approx([1.1, 1.5])
    assert Known.of(points, KERNELS).failed.tolist() == [[False], [False], [True]]


outcomes = st.dictionaries(st.integers(0, KERNELS - 1), st.sampled_from(["raced", "timed", "slower", "failed"]))


def point_of(told: dict[int, str]) -> Point:
    """A point of what became of each kernel, as a file of a dispatcher may hold it."""

    def those(*kinds: str) -> list[int]:
        return [number for number, kind in sorted(told.items()) if kind in kinds]

    ratios = {number: ratio(0.9 + number / 10) for number in those("raced", "timed")}
    slower, failed = dict.fromkeys(those("slower"), 2.0), dict.fromkeys(those("failed"), "wrong")
    return Point(100, 50.0, ratios, slower, failed, raced=tuple(those("raced")))


@given(outcomes, outcomes)
def test_points_that_are_joined_or_replayed_say_of_no_kernel_without_a_ratio_that_it_raced(
    first: dict[int, str], second: dict[int, str]
) -> None:
    joined = point_of(first).joined(point_of(second))
    assert Point.from_dict(joined.to_dict()) == joined
    part = replayed(joined).at(100, [0])
    assert Point.from_dict(part.to_dict()) == part


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_a_point_that_took_no_possible_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="can have taken"):
        Point.from_dict({**Point(64, 10.0).to_dict(), "seconds": seconds})


@pytest.mark.parametrize("member", ["ratios", "slower", "failed", "raced"])
def test_numbers_of_kernels_whose_hashes_are_all_equal_are_refused_before_they_are_compared(member: str) -> None:
    told = {"ratios": {"value": 1, "low": 1, "high": 1}, "slower": 1.5, "failed": "crash"}.get(member)
    numbers = [number * (2**61 - 1) for number in range(1, 30_000)]  # to compare all of them takes some 10 s
    hostile = {str(number): told for number in numbers} if told is not None else numbers
    with pytest.raises(ValueError, match="no kernel has the number '2305843009213693951'"):
        Point.from_dict({**Point(64, 10.0).to_dict(), member: hostile})


def replayed(point: Point) -> Recorded:
    template = find_template("gemm_sm90")
    device = find_device("h200")
    return Recorded(portfolio_of(template, GemmProblem(1, 6144, 4096), device).take(range(KERNELS)), {100: point})
