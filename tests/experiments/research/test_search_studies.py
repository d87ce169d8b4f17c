"""The scripts that study the guided search, on a small part of the shipped table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.persistence import load_model
from tilescout.experiments.research.records import Record
from tilescout.search.tables.table import Table
from tilescout.spaces.gemm import GemmProblem

PROBLEMS = tuple(map(GemmProblem.parse, ("4096x4096x4096", "2048x2048x2048", "64x8192x8192")))


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Table:
    return part_of_table(*map(str, PROBLEMS), rows=120)


QUICKLY = ["--trees", "4", "--steps", "20", "--processes", "1"]


def kept(folder: Path) -> list[tuple[str, ...]]:
    """The problems that each model of a store was trained on."""
    return sorted(load_model(path)[1].problems for path in (folder / "models" / "held-out").glob("*.npz"))


@pytest.mark.slow
def test_the_guided_study_says_when_a_search_was_good_and_when_it_stopped(
    study: Callable[..., None], table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "guided.json"
    arguments = ["gemm_sm90", "--table", str(table.path), "--trials", "20", *QUICKLY]
    study("guided", *arguments, "--store", str(tmp_path), "--out", str(out))
    names = list(map(str, PROBLEMS))
    others = [tuple(name for name in names if name != left_out) for left_out in names]
    assert kept(tmp_path) == sorted(others)  # never trained on what is searched
    found = Record.read(out).result
    assert [one["problem"] for one in found] == list(map(str, PROBLEMS))
    for one, problem in zip(found, PROBLEMS, strict=True):
        costs = np.asarray(table.data["gpu_seconds"])[table.rows(problem)]
        assert one["exhaustive_gpu_seconds"] == pytest.approx(costs.sum())
        assert 0 < one["gpu_seconds"] < one["exhaustive_gpu_seconds"]
        assert one["regret"] >= 0
        assert one["within"] is None or 1 <= one["within"] <= 20
        if one["within"] is not None and one["stopped"] is not None and one["stopped"] >= one["within"]:
            assert one["regret"] <= 0.01
    assert "within 1 %: median" in capsys.readouterr().out


@pytest.mark.slow
def test_the_suite_study_searches_alone_and_with_the_trials_before(
    study: Callable[..., None], table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "suite.json"
    arguments = ["gemm_sm90", "--orders", "1", "--trials", "12", "--table", str(table.path), *QUICKLY]
    study("suites", *arguments, "--store", str(tmp_path), "--out", str(out))
    names = tuple(map(str, PROBLEMS))
    assert kept(tmp_path) == sorted([names[:2], names[2:]])  # never the family of what is searched
    first, *others = Record.read(out).result
    assert first["before"] == 0
    assert first["alone"] == first["together"]
    assert [gain["before"] for gain in others] == [1, 2]
    for gain in (first, *others):
        for regrets in (gain["alone"], gain["together"]):
            assert len(regrets) == 12
            assert (np.diff(regrets) <= 0).all()
            assert regrets[-1] >= 0
    assert any(gain["alone"] != gain["together"] for gain in others)
    assert "2 searches; regret alone" in capsys.readouterr().out
