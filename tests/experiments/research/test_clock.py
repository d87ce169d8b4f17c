"""The time that a study may take."""

import time
from collections.abc import Iterator

import pytest

from tilescout.experiments.research.clock import Clock


def test_what_is_begun_in_time_is_done_and_the_first_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def slow() -> Iterator[float]:
        nonlocal now
        while True:
            yield now
            now += 30

    clock = Clock(70)
    assert list(clock.in_time(slow())) == [1000, 1030, 1060]
    assert (clock.spent, clock.left) == (90, -20)
    assert list(clock.in_time("ab")) == ["a"]
    assert list(Clock().in_time("ab")) == ["a", "b"]
    assert list(clock.in_time("")) == []
