"""``tilescout portfolio``, on a part of the shipped table."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.costmodel.portfolio import CAP
from tilescout.experiments.commands.portfolio import Regrets, left_out, portfolio, recorded
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import StoreError, TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.template import KNOBS
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.templates import find_template

PROBLEMS = ("4096x4096x4096", "1024x1024x1024", "64x8192x8192")


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Table:
    return part_of_table(*PROBLEMS, rows=150)


def _run(*arguments: object) -> str:
    done = CliRunner().invoke(portfolio, ["gemm_sm90", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_regret_of_a_portfolio_is_that_of_the_recorded_times(table: Table, tmp_path: Path) -> None:
    out, plot = tmp_path / "kernels.json", tmp_path / "kernels.png"

    said = _run("--table", table.path, "--kernels", 3, "--json", out, "--plot", plot)

    result = json.loads(out.read_text())
    curve, picked = result["curve"], result["portfolio"]
    times = table.times_us

    def time(problem: object, kernel: dict[str, object]) -> float:
        row = table.row(kernel, problem)  # type: ignore[arg-type]
        return float("inf") if row is None or not np.isfinite(times[row]) else float(times[row])

    for count, point in enumerate(curve, start=1):
        best = [np.nanmin(times[table.rows(problem)]) for problem in table.problems]
        served = [min(time(problem, kernel) for kernel in picked[:count]) for problem in table.problems]
        logs = np.minimum(np.log(np.array(served) / np.array(best)), 1.0)
        assert point["regret"] == pytest.approx(np.expm1(logs.mean()))
        assert point["worst"] == pytest.approx(np.expm1(logs.max()))
    assert [point["regret"] for point in curve] == sorted((point["regret"] for point in curve), reverse=True)
    assert [knob.name for knob in KNOBS] == list(picked[0])
    assert result["least_possible_regret"] <= result["exchanged_regret"] <= curve[-1]["regret"] + 1e-12
    assert "at least 63 %" in said
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_no_kernel_is_chosen_that_serves_nothing_better(table: Table, tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    _run("--table", table.path, "--kernels", 50, "--folds", 3, "--json", out)
    result = json.loads(out.read_text())
    regrets = [point["regret"] for point in result["curve"]]
    assert regrets == sorted(set(regrets), reverse=True)
    assert len(result["portfolio"]) == len(regrets) <= len(PROBLEMS)
    assert len(result["left_out"]["curve"]) == len(regrets)


def test_kernels_of_two_tables_of_a_problem_are_compared_with_each_other(table: Table, tmp_path: Path) -> None:
    problem = table.problems[0]
    rows = table.rows(problem)
    rows = rows[np.argsort(table.times_us[rows], kind="stable")][: np.isfinite(table.times_us[rows]).sum()]
    card = replace(table.card, baselines={problem: table.card.baselines[problem]})
    for name, some in {"slow": rows[-3:], "fast": rows[:3]}.items():
        held = [(table.configuration(row), problem, table.measurement(row)) for row in some.tolist()]
        write_table(tmp_path / f"{name}.parquet", card, held)
    both = [Table.read(tmp_path / f"{name}.parquet") for name in ("slow", "fast")]
    regrets = recorded(find_template("gemm_sm90"), both, "bf16")
    times = table.times_us[np.concatenate([rows[-3:], rows[:3]])]
    assert sorted(regrets.logs[:, 0]) == pytest.approx(sorted(np.log(times / times.min())))


def test_problems_that_are_left_out_are_served_by_what_the_others_chose(table: Table, tmp_path: Path) -> None:
    # Without the first the second kernel is chosen, which was not timed there; without any other product the first one.
    logs = np.array([[0.0, 0.4, 0.1, 0.3], [np.nan, 0.0, 0.3, 0.0], [0.9, 0.9, 0.0, 0.9]])
    problems = tuple(map(GemmProblem.parse, ("1x8x8", "1x16x8", "1x24x8", "2x16x8")))
    regrets = Regrets(((0,), (1,), (2,)), problems, logs, "invented")
    found = left_out(regrets, 1, 3)
    expected = np.array([CAP, *logs[0, 1:]])
    assert found["curve"][0]["regret"] == pytest.approx(np.expm1(expected.mean()))
    assert (found["products"], found["timed"]) == (3, 0.75)
    with pytest.raises(TableError, match="3 products can't be put into 4 parts"):
        left_out(regrets, 1, 4)

    grouped = ("8x1x16x8", "8x2x16x8:bf16:zipf-1", "8x1x24x8", "8x1x24x8:bf16:worst")
    experts = replace(regrets, problems=tuple(map(GroupedProblem.parse, grouped)))
    assert left_out(experts, 1, 2)["products"] == 2

    said = _run("--table", table.path, "--kernels", 2, "--folds", 3, "--plot", tmp_path / "kernels.png")
    assert "On problems that were left out, 3 parts of 3 products" in " ".join(said.split())


def test_a_suite_is_served_by_predictions_of_the_same_kernels(table: Table, tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    said = _run("--table", table.path, "--suite", "squares", "--model", "analytic", "--kernels", 2, "--json", out)
    assert "predicted, analytic model; suite squares" in " ".join(said.split())
    assert "2048x2048x2048:bf16" in json.loads(out.read_text())["problems"]


def test_what_can_not_be_chosen_is_refused(table: Table, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no problem of the signature fp16 was timed; recorded are bf16"):
        _run("--table", table.path, "--signature", "fp16")
    with pytest.raises(TableError, match="no table of gemm_sm90 on h100 is shipped"):
        _run("--device", "h100")
    with pytest.raises(TableError, match="was recorded on h200, and kernels are chosen for h100"):
        _run("--table", table.path, "--device", "h100")
    kept = tmp_path / "kept.png"
    kept.write_text("not a plot")
    with pytest.raises(StoreError):
        _run("--table", table.path, "--plot", kept)
    assert kept.read_text() == "not a plot"
    with pytest.raises(StoreError, match="plots are PNG files"):
        _run("--table", table.path, "--plot", tmp_path / "plot.svg")
