"""The account of a tuning's wall time: every second is counted once."""

import pytest

from tilescout.experiments.research.benchmarks.wall_time import PHASES, account, covered, timed


def test_what_overlaps_is_covered_once_and_nothing_outside_the_interval() -> None:
    assert covered([(0, 2), (1, 4), (6, 7), (9, 12)], 1, 10) == [(1, 4), (6, 7), (9, 10)]
    assert covered([(0, 1), (3, 3)], 1, 10) == []


def test_every_second_of_a_tuning_is_counted_once() -> None:
    times = {
        "imported": 1.0,
        "prepared": 5.0,
        "searched": 9.0,
        "raced": 9.5,
        "logged": 11.0,
        "compiling": [(5.0, 6.0), (5.0, 6.5), (7.0, 7.5)],
        "measuring": [(6.0, 6.2), (6.5, 7.0), (8.0, 8.5)],
    }

    parts = account(times, ended=12.0)

    expected = {
        "start": 1,
        "set up": 4,
        "propose": 1,
        "compile": 1.8,
        "measure": 1.2,
        "race": 0.5,
        "log": 1.5,
        "exit": 1,
    }
    assert parts == pytest.approx(expected)
    assert tuple(parts) == PHASES
    assert sum(parts.values()) == pytest.approx(12)


@pytest.mark.slow
def test_compiling_is_timed_without_a_gpu(tmp_path: object) -> None:
    asked = {"problem": "96x7168x2048:bf16", "store": str(tmp_path), "count": 2, "standby": False}
    empty, full = (timed(1, asked, str(tmp_path)) for _ in range(2))

    assert empty["cores"] == 1
    assert empty["trials"] == full["trials"] == empty["compiled"] == 2
    assert full["compiled"] == 0
    assert empty["compile_core_seconds"] == full["compile_core_seconds"] > 0
    assert full["account"]["compile"] < empty["account"]["compile"]
    assert sum(empty["account"].values()) == pytest.approx(empty["seconds"])
