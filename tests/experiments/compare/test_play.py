"""Searches of a comparison that a file has from before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.experiments.compare import compare
from tilescout.experiments.compare.play import Case, FinishedRuns, find_cases
from tilescout.experiments.compare.report import SEARCHES
from tilescout.search.tables.results import read_results
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import StoreError, TableError

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


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str, float], Path]:
    """A function: a table in a folder of its own, of one problem, whose times are scaled."""

    def recorded(folder: str, scale: float) -> Path:
        (tmp_path / folder).mkdir()
        cache = {f"{block}": {"block": block, "time": scale * block} for block in (1, 2, 4)}
        about = {"device_name": "A100", "kernel_name": "stencil", "problem_size": [64, 64], "cache": cache}
        (tmp_path / "cache.json").write_text(json.dumps(about))
        return write_table(tmp_path / folder / "t.parquet", *read_results(tmp_path / "cache.json")).path

    return recorded


def test_a_table_that_is_named_twice_counts_once(recorded: Callable[[str, float], Path], tmp_path: Path) -> None:
    table = recorded("a", 1.0)
    copy = Path(shutil.copytree(table.parent, tmp_path / "copy")) / table.name
    assert [case.table for case in find_cases([table, table, copy], [])] == [str(table)]


def test_problems_that_results_would_call_by_one_name_are_refused(recorded: Callable[[str, float], Path]) -> None:
    tables = [recorded("a", 1.0), recorded("b", 2.0)]
    with pytest.raises(TableError, match=r"both hold 64x64, .* by one name, t 64x64: rename one of the files"):
        find_cases(tables, [])


def test_searches_have_no_more_trials_than_a_problem_has_configurations(
    part_of_table: Callable[..., Table], caplog: pytest.LogCaptureFixture
) -> None:
    table = part_of_table("512x512x512:bf16", rows=40)

    found = compare(["random"], tables=[table.path], trials=10**9, seeds=1, processes=1)

    assert found.trials == len(table) == 40
    assert "no problem has more than 40 configurations" in caplog.text


def test_integers_of_numpy_are_trials_and_seeds(part_of_table: Callable[..., Table], tmp_path: Path) -> None:
    table = part_of_table("512x512x512:bf16", rows=40)
    out = tmp_path / "comparison"

    limits: dict[str, Any] = {"trials": np.int64(3), "seeds": np.uint8(1), "processes": np.int32(1)}
    compare(["random"], tables=[table.path], out=out, **limits)

    with FinishedRuns(out / SEARCHES, resume=True) as finished:
        assert [(trace.run.trials, len(trace.indices)) for trace in finished.traces] == [(3, 3)]
