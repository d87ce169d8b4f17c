"""The standings of tuners: figures of races whose truth is known."""

from typing import Any

import numpy as np
import pytest

from tilescout.experiments.research.field.standings import agreement, standings
from tilescout.experiments.research.studies import ranks

RNG = np.random.default_rng(0)


def record(times: dict[int, float], runs: list[tuple[str, int | None]], default: int) -> dict[str, Any]:
    """The record of a problem: times over the library's with a little noise, and who answered what."""
    race = {str(index): (np.log(time) + RNG.normal(0, 2e-4, (6, 6))).tolist() for index, time in times.items()}
    told = [
        {"tuner": tuner, "answer": answer, "kernels": 4, "gpu_seconds": 0.5, "own_seconds": 0.1, "error": ""}
        for tuner, answer in runs
    ]
    return {"race": race, "default": default, "runs": told}


def test_figures_are_those_of_the_race() -> None:
    times = {0: 1.0, 1: 1.02, 2: 1.005, 3: 1.2}
    runs = [("good", 0), ("good", 2), ("bad", 3), ("bad", 0), ("default", 1), ("lost", None)]
    found = standings({"p": record(times, runs, 1), "q": record(times, runs, 1)})
    assert list(found) == ["good", "default", "bad"]  # who has no answer to a problem has no standing
    assert found["good"].regret == pytest.approx(0.0025, abs=3e-4)
    assert found["bad"].regret == pytest.approx(0.1, abs=1e-3)
    assert found["bad"].worst == pytest.approx(0.2, abs=1e-3)
    assert [one.slower_than_default for one in found.values()] == [0, 0, 0.5]
    assert [one.flips for one in found.values()][::2] == [0, 1]
    assert np.isnan(found["default"].flips)
    assert found["default"].plain()["flips"] is None


def test_an_answer_that_is_as_fast_as_the_default_is_not_slower_by_chance() -> None:
    told = [standings({"p": record({0: 1.0, 1: 1.0}, [("same", 1)], 0)})["same"] for _ in range(20)]
    assert sum(one.slower_than_default for one in told) <= 2


def test_ranks_agree_where_they_chose_one_kernel_and_wait_for_the_slowest() -> None:
    times = {0: 1.0, 1: 1.02, 2: 1.005}
    chosen = [("same", 0), ("near", 0), ("far", 0)], [("same", 0), ("near", 2), ("far", 1)]
    told = [record(times, [*own], 0) for own in chosen]
    for rank in told:
        for run in rank["runs"]:
            run["number"] = 0
    found = ranks.standings({"p": {"ranks": told, "default": 0}})
    assert list(found) == ["same", "near", "far"]
    assert [(one.same, one.apart) for one in found.values()] == [(1, 0), (0, 0), (0, 1)]
    assert found["same"].regret == 0
    assert found["far"].regret == pytest.approx(0.02, abs=1e-3)
    told = [{**rank, "runs": rank["runs"][2:]} for rank in told]
    del told[1]["race"]["0"], told[0]["race"]["1"]  # what each chose fails on the other GPU
    assert ranks.standings({"p": {"ranks": told, "default": 2}})["far"].apart == 1


def test_gpus_that_rank_alike_agree() -> None:
    first = np.linspace(1, 2, 60)
    assert agreement(first, 3 * first, 20) == {"configurations": 60, "tau": 1, "tau_top": 1, "loss": 0}
    other = first.copy()
    other[0], other[1] = first[3], np.nan
    found = agreement(first, other, 20)
    assert found["configurations"] == 59
    assert found["loss"] == pytest.approx(first[3] / first[2] - 1)
    assert agreement(first, -first + 4, 20)["tau_top"] == -1
