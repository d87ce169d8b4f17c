"""Tunings of problems that the model never saw: which are drawn, what runs, and the figures of a race."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.out_of_sample import kinds, speeds
from tilescout.experiments.research.studies.tunings_out_of_sample import drawn, fastest, figures, tuned
from tilescout.search.tables.table import Table

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
TABLE = RESULTS / "out-of-sample-2026-11-22" / "gemm_sm90-h200-out-of-sample.parquet"


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.read(TABLE)


def problem_of(answer: float, heats: int = 10) -> dict[str, Any]:
    """The record of a problem whose answer takes so much of the time of the table's best, which the library takes."""
    rng = np.random.default_rng(0)
    shared = 0.002 * rng.standard_normal((heats, 6))  # of a round
    times = {"answer": answer, "default": 1.2, "table 1": 1.001, "table 2": 1.0, "table 3": 1.02}
    race = {
        name: (np.log(time) + shared + 0.001 * rng.standard_normal((heats, 6))).tolist() for name, time in times.items()
    }
    best = {"speedup_of_best": {"value": 0.97 / answer, "low": 0.96 / answer, "high": 0.98 / answer}}
    result = {"trials": 20, "gpu_seconds": 0.5, "stopped": "enough", "model": {"sha256": "00"}, "library_best": best}
    return {"result": result, "wall_seconds": 20.0, "compiled": 21, "race": race}


def test_problems_are_drawn_evenly_over_the_kinds_and_the_same_again(table: Table) -> None:
    names = drawn(table, 10, 0)
    assert names == drawn(table, 10, 0)
    assert names != drawn(table, 10, 1)
    assert len(set(names)) == 10
    of_kind = [kinds(table)[name] for name in names]
    assert {kind: of_kind.count(kind) for kind in of_kind} == dict.fromkeys(
        ("decode", "prefill", "odd", "wide", "deep-k"), 2
    )
    assert len(drawn(table, 100, 0)) == 40


def test_the_fastest_of_the_table_are_those_of_its_race(table: Table) -> None:
    problem = table.problem("95x4608x3584:bf16")
    rows = [table.row(configuration, problem) for configuration in fastest(table, problem)]
    ratios = [table.data["raced_ratio"][row].as_py() for row in rows]
    assert ratios == sorted(ratios)
    [speed] = [one for one in speeds(table) if one.problem == str(problem)]
    assert 1 / ratios[0] == speed.best


@pytest.mark.slow
def test_a_tuning_is_the_real_command_and_names_its_model(tmp_path: Path, copy_store: Callable[[Path], str]) -> None:
    (tmp_path / "store").mkdir()
    copy_store(tmp_path / "store")
    model = shipped_model("gemm_sm90", "h200")
    assert model is not None
    found = tuned("gemm_sm90", "1024x1024x1024:bf16", model, "replay", tmp_path / "store")
    assert found["result"]["problem"] == "1024x1024x1024:bf16"
    assert found["result"]["model"] == {
        "name": model.name, "sha256": load_model(model)[1].sha256, "trained_on_problem": True,
    }  # fmt: skip
    assert found["compiled"] == 0  # a replay compiles nothing
    assert found["wall_seconds"] > 0


def test_the_regret_is_to_the_fastest_of_the_table_in_the_same_rounds() -> None:
    behind, ahead = figures(problem_of(1.03)), figures(problem_of(0.98))
    value, low, high = behind["regret"]
    assert low < 0.03 < high
    assert value == pytest.approx(0.03, abs=2e-3)
    assert ahead["regret"][2] < 0
    assert behind["speed"][1] < 1 / 1.03 < behind["speed"][2]
    assert behind["best"] == pytest.approx(1.0, abs=2e-3)
    assert behind["over_library_best"] == pytest.approx(0.97 / 1.03)
    assert (
        figures({**problem_of(1.0), "result": {"trials": 1, "gpu_seconds": 1, "stopped": ""}})["over_library_best"]
        is None
    )


def test_the_figures_of_a_file_are_printed_again(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tunings.json"
    Record({}, {"problems": {"64x64x64:bf16": problem_of(1.03), "128x64x64:bf16": problem_of(0.98)}}).write(path)
    study("tunings-out-of-sample", "--again", str(path))
    assert '"trials": 20.0' in capsys.readouterr().out
