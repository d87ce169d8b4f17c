"""The difference between two hosts on the same kernels, and the half-width that holds that of a new problem."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.hosts import Difference, Side, difference, differences, half_width
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Configuration


def of(tile: int) -> Configuration:
    return Configuration.of({"tile": tile})


def side(ratios: dict[int, float], library: float) -> Side:
    names = {of(tile): ratio for tile, ratio in ratios.items()}
    return Side(names, dict.fromkeys(names, library))


def test_the_difference_is_of_what_is_fast_on_both_hosts_and_was_timed_on_both() -> None:
    one = side({1: 0.9, 2: 1.0, 3: 2.0, 4: float("nan")}, 10.0)
    other = side({1: 0.9, 2: 0.8, 4: 0.1, 5: 0.1}, 12.0)
    found = difference("p", one, other, fastest=1)
    assert found.configurations == 1
    assert found.difference == pytest.approx(np.log(1.0 / 0.8))
    assert found.library == pytest.approx(np.log(10 / 12))
    with pytest.raises(TableError, match="no configuration of p was timed on both hosts"):
        difference("p", side({1: 1.0}, 1.0), side({2: 1.0}, 1.0))


@given(st.integers(19, 200), st.integers(0, 2**32 - 1))
def test_the_half_width_holds_95_percent_of_the_problems_and_of_one_more(count: int, seed: int) -> None:
    apart = np.random.default_rng(seed).standard_cauchy(count)
    found = half_width([Difference(f"p{at}", float(value), 0.0, 1) for at, value in enumerate(apart)])
    assert found is not None
    assert (abs(apart) <= found).sum() >= 0.95 * (count + 1)


def test_fewer_than_nineteen_problems_promise_nothing() -> None:
    assert half_width([Difference(f"p{at}", 0.01, 0.0, 1) for at in range(18)]) is None


def test_problems_of_a_judged_shape_are_left_out_and_races_are_read(
    part_of_table: Callable[..., Table], tmp_path: Path
) -> None:
    names = ("4096x4096x4096:bf16", "64x8192x8192:bf16", "128x14336x4096:bf16")
    table = part_of_table(*names, rows=40)
    raced = {}
    for name in names:
        ratios = Side.of_table(table, name).ratios
        timed = [(each, ratio) for each, ratio in ratios.items() if np.isfinite(ratio)][:5]
        raced[name] = {
            "library_us": 1.0,
            "raced": [
                {"configuration": dict(each), "time_over_library": {"value": ratio / 1.02, "low": 0.1, "high": 9.0}}
                for each, ratio in timed
            ],
        }
    path = tmp_path / "races.json"
    Record({}, {"problems": raced}).write(path)
    found = differences(table.path, path, ["4096x4000x4096:bf16"])
    assert [one.problem for one in found] == list(names[1:])
    assert [one.difference for one in found] == pytest.approx([np.log(1.02)] * 2)
    same = differences(table.path, table.path, [])
    assert [one.difference for one in same] == [0.0] * 3
