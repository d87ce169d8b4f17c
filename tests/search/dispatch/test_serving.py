"""At a measured m no kernel serves that was not timed there."""

import numpy as np
import pytest

from tests.search.dispatch.invented_gpu import InventedGpu
from tilescout.search.dispatch.building import DispatchOptions, _Builder
from tilescout.search.dispatch.measuring import Sweep
from tilescout.search.dispatch.plan import Stretch, choice_of, stretches, where_timed
from tilescout.search.dispatch.points import Point, Ratio
from tilescout.search.dispatch.times import Times

KEPT = (4, 7)
"""Numbers of the kernels that are kept, among all candidates."""


def ratio(value: float) -> Ratio:
    return Ratio(value, value * 0.99, value * 1.01)


def times(*rows: list[float]) -> Times:
    """Times of two kernels and of the library at 1, 2, … rows."""
    mean = np.log(np.array(rows))
    return Times(np.arange(1, mean.shape[1] + 1), mean, mean, mean)


def test_a_kernel_serves_no_measured_m_at_which_another_was_timed_and_it_was_not() -> None:
    expected = times([9.0] * 5, [8.0] * 5, [10.0] * 5)
    points = {
        2: Point(2, 10.0, {4: ratio(0.9)}),
        3: Point(3, 10.0, {1: ratio(0.5)}),
        4: Point(4, 10.0, {7: ratio(0.8)}),
    }
    found = stretches(where_timed(expected, points, KEPT), 0.005, 0.01)
    assert found == [Stretch(1, 1, 1), Stretch(2, 2, 0), Stretch(3, 5, 1)]


def test_a_kernel_that_was_given_up_as_slow_was_timed() -> None:
    expected = times([9.0] * 3, [8.0] * 3, [10.0] * 3)
    points = {2: Point(2, 10.0, {4: ratio(0.9)}, slower={7: 1.5})}
    assert np.array_equal(where_timed(expected, points, KEPT).mean, expected.mean)


@pytest.fixture
def builder() -> _Builder:
    gpu = InventedGpu(6144, 4096, 12, noise=0.01, seed=5)
    return _Builder(Sweep(gpu, gpu.kernels, most_rows=64), DispatchOptions(kernels=2, most_rows=64), lambda point: None)


def test_what_serves_a_measured_m_and_was_not_timed_there_is_raced_first(
    builder: _Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder._kept = KEPT
    builder._points |= {2: Point(2, 10.0, {4: ratio(0.9)}), 5: Point(5, 10.0, {4: ratio(0.95)})}
    raced: list[tuple[int, list[int]]] = []

    def planned() -> tuple[Times, list[Stretch], np.ndarray]:
        """The second kernel serves all, until it is known to be slow at 2 rows."""
        slow = 7 in builder._points[2].ratios
        expected = times([9.0] * 5, [9.5 if slow else 8.0] * 5, [10.0] * 5)
        found = stretches(expected, 0.005, 0.01)
        return expected, found, choice_of(found, 2, expected.sizes)

    def check(m: int, numbers: list[int]) -> None:
        raced.append((m, numbers))
        values = {number: ratio(1.2 if number == 7 else 0.9) for number in numbers}
        builder._points[m] = builder._points[m].joined(Point(m, 10.0, values))

    monkeypatch.setattr(builder, "_planned", planned)
    monkeypatch.setattr(builder, "_check", check)
    builder.prove()
    assert raced[:2] == [(2, [7]), (5, [7])]
    assert sorted(raced[2:]) == [(2, [4]), (5, [4])]  # what is to serve from then on
