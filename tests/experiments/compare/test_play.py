"""Searches of a comparison that a file has from before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilescout.experiments.compare.play import Case, FinishedRuns
from tilescout.spaces.errors import StoreError

CASE = Case("t.parquet", "0" * 64, "8x8x8:bf16")


def record(**changed: Any) -> dict[str, Any]:
    """A finished search, some of it changed."""
    run = {"contender": "random", "case": vars(CASE), "trials": 4, "seed": 0}
    return {"run": run, "indices": [0, 9], "seconds": 0.5, "error": "", **changed}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """A function: a file with one search."""

    def written(search: dict[str, Any]) -> Path:
        path = tmp_path / "runs.jsonl"
        path.write_text(json.dumps(search) + "\n")
        return path

    return written


@pytest.mark.parametrize(
    "changed",
    [
        {"indices": [1.5]},
        {"indices": [[1]]},
        {"indices": "x"},
        {"indices": [True]},
        {"indices": None},
        {"seconds": float("nan")},
        {"seconds": -1},
        {"seconds": [1]},
        {"error": 1},
        {"run": []},
        {"run": {**record()["run"], "contender": []}},
        {"run": {**record()["run"], "trials": []}},
        {"run": {**record()["run"], "case": {**vars(CASE), "table": [1]}}},
    ],
    ids=str,
)
def test_one_that_no_comparison_wrote_is_refused(
    written: Callable[[dict[str, Any]], Path], changed: dict[str, Any]
) -> None:
    path = written(record(**changed))
    with pytest.raises(StoreError, match=r"can't use .*runs\.jsonl"):
        FinishedRuns(path, resume=True)


@pytest.mark.parametrize("index", [-1, 10, 10**30])
def test_one_that_tried_what_the_problem_does_not_have_is_refused(
    written: Callable[[dict[str, Any]], Path], index: int
) -> None:
    with FinishedRuns(written(record(indices=[0, index])), resume=True) as finished:
        finished.check({})  # it is not asked for
        with pytest.raises(StoreError, match="a configuration that the table does not have"):
            finished.check({CASE: 10})


def test_one_that_was_written_is_kept(written: Callable[[dict[str, Any]], Path]) -> None:
    with FinishedRuns(written(record()), resume=True) as finished:
        finished.check({CASE: 10})
        assert finished.left([finished.traces[0].run]) == []
