"""The difference between two hosts on the same kernels, and the half-width that is enough for a new problem."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.hosts import Difference, difference, differences, half_width, raced_in
from tilescout.search.measure.race import Estimate, RaceOptions
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Configuration

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results" / "race-2026-11-22"


def of(tile: int) -> Configuration:
    return Configuration.of({"tile": tile})


def raced(half: float, **ratios: float) -> dict[Configuration, Estimate]:
    return {
        of(int(name[1:])): Estimate(value, value * np.exp(-half), value * np.exp(half))
        for name, value in ratios.items()
    }


def scored(score: float) -> Difference:
    return Difference("p", 0.0, score, None, 1)


def test_the_score_is_what_the_intervals_of_the_two_races_do_not_explain() -> None:
    found = difference("p", raced(0.03, t1=0.9, t2=1.0), raced(0.0, t1=0.9 * np.exp(-0.05), t3=0.5), of(2))
    assert found.configurations == 1
    assert found.library == pytest.approx(0.05)
    assert found.score == pytest.approx(0.04)  # 3, 4, 5
    assert found.default is None
    assert difference("p", raced(0.03, t1=0.9), raced(0.0, t1=0.91), of(2)).score == 0
    with pytest.raises(TableError, match="no configuration of p raced on both hosts"):
        difference("p", raced(0.0, t1=1.0), raced(0.0, t2=1.0), of(2))


def test_the_fastest_is_compared_with_the_default_without_the_library() -> None:
    found = difference("p", raced(0.0, t1=0.8, t2=1.0), raced(0.0, t1=0.88, t2=1.0), of(2))
    assert found.default == pytest.approx(np.log(0.8 / 0.88))


@given(st.integers(19, 200), st.integers(0, 2**32 - 1))
def test_the_half_width_is_enough_for_95_percent_of_the_problems_and_of_one_more(count: int, seed: int) -> None:
    scores = abs(np.random.default_rng(seed).standard_cauchy(count))
    found = half_width([scored(float(score)) for score in scores])
    assert found is not None
    assert (scores <= found).sum() >= 0.95 * (count + 1)


def test_fewer_than_nineteen_problems_promise_nothing() -> None:
    assert half_width([scored(0.01)] * 18) is None


def test_problems_of_a_judged_shape_are_left_out() -> None:
    [path] = [path for path in shipped_tables() if "spread" in path.name]
    table = Table.read(path)
    names = [str(problem) for problem in table.problems[:3]]
    elsewhere = {
        name: {
            "default": {},
            "raced": [
                {
                    "configuration": dict(each),
                    "time_over_library": {"value": one.value, "low": one.low, "high": one.high},
                }
                for each, one in raced_in(table, name).items()
            ],
        }
        for name in names
    }
    found = differences(table, elsewhere, [names[1]])
    assert [one.problem for one in found] == [names[0], names[2]]
    assert [one.score for one in found] == [0.0, 0.0]


def test_the_shipped_half_width_is_the_one_of_the_recorded_hosts(
    study: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    result = Record.read(RESULTS / "hosts.json").result
    found = half_width([Difference(**one) for one in result["differences"]])
    assert found is not None
    assert found <= RaceOptions().host < found + 0.0005
    study("hosts", "--again", str(RESULTS / "hosts.json"))
    printed = capsys.readouterr().out
    assert json.dumps(found)[:7] in printed
    assert "…" not in printed  # whole in a pipe of any width
