"""Tables of one problem, and of problems for which nothing ran: what can be learned is, all else is refused."""

import json
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.costmodel.heuristics import Suggestion
from tilescout.experiments.commands.evaluate_model import evaluate_model, heuristics_regrets
from tilescout.experiments.commands.outputs import STDOUT, write_result
from tilescout.experiments.commands.portfolio import recorded
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.tables.shipped import named_tables
from tilescout.search.tables.table import Table, write_table
from tilescout.search.tables.training import card_of, samples_of
from tilescout.spaces.errors import ModelError, TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
PROBLEMS = ("512x512x512:bf16", "16x4096x4096:bf16")


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Table:
    return part_of_table(*PROBLEMS, rows=60)


def without_times(table: Table, problems: set[str], path: Path) -> Table:
    """The table, with wrong results in place of the times of some problems."""

    def outcome(row: int, problem: str) -> Measurement:
        found = table.measurement(row)
        if problem not in problems:
            return found
        return replace(found, status=Status.WRONG, error="wrong", timing=None, raced=None, pilot_us=None)

    rows = [
        (table.configuration(row), problem, outcome(row, str(problem)))
        for problem in table.problems
        for row in table.rows(problem).tolist()
    ]
    return write_table(path, table.card, rows)


def test_a_problem_for_which_all_failed_is_left_out_of_what_is_learned(table: Table, tmp_path: Path) -> None:
    half = without_times(table, {PROBLEMS[1]}, tmp_path / "half.parquet")
    assert [sample.problem for sample in samples_of(half, TEMPLATE)] == [PROBLEMS[0]]
    assert samples_of(half, TEMPLATE, without=half.problems[:1]) == []


def test_a_table_of_which_nothing_ran_is_refused(table: Table, tmp_path: Path) -> None:
    nothing = without_times(table, set(PROBLEMS), tmp_path / "nothing.parquet")
    with pytest.raises(TableError, match=r"nothing.parquet: nothing of it ran, so that there is no time to learn from"):
        samples_of(nothing, TEMPLATE)
    with pytest.raises(TableError, match="no problem of the signature bf16 was timed; nothing was timed in these"):
        recorded(TEMPLATE, [nothing], "bf16")


def test_one_problem_alone_is_left_out_of_nothing(table: Table, tmp_path: Path) -> None:
    half = without_times(table, {PROBLEMS[1]}, tmp_path / "half.parquet")
    given = ["gemm_sm90", "--table", str(half.path), "--trees", "1", "--steps", "1", "--store", str(tmp_path / "store")]
    with pytest.raises(TableError, match="without it nothing is left to learn from: give a table of several problems"):
        CliRunner().invoke(evaluate_model, given, catch_exceptions=False)


def test_a_table_that_is_named_twice_is_learned_from_once(table: Table) -> None:
    (named,) = named_tables(TEMPLATE, [table.path, table.path])
    samples = samples_of(named, TEMPLATE)
    assert card_of([named], [*samples, *samples]).problems == PROBLEMS


def on(device: str, table: Table, path: Path) -> Table:
    """The table, as if it were recorded on another device."""
    rows = [
        (table.configuration(row), problem, table.measurement(row))
        for problem in table.problems
        for row in table.rows(problem).tolist()
    ]
    return write_table(path, replace(table.card, device=device), rows)


def test_a_model_learns_from_tables_of_devices_of_one_architecture_together(table: Table, tmp_path: Path) -> None:
    samples, sibling = samples_of(table, TEMPLATE), on("h100", table, tmp_path / "sibling.parquet")
    card = card_of([table, sibling], [*samples, *samples_of(sibling, TEMPLATE)])
    assert (card.device, card.rows) == ("h200", 2 * sum(map(len, samples)))
    of_device, of_sibling = (samples_of(each, TEMPLATE)[0].features for each in (table, sibling))
    assert of_device.names == of_sibling.names
    assert not np.array_equal(of_device.values, of_sibling.values)
    other = on("elsewhere", table, tmp_path / "other.parquet")
    with pytest.raises(TableError, match=r"of gemm_sm90 on elsewhere, .* one space, on devices of one architecture"):
        card_of([table, other], samples)


def test_what_is_unknown_of_few_rows_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    write_result(STDOUT, {"rank_correlation": float("nan"), "problems": [{"regret": {1: float("inf")}, "shift": 0.5}]})
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"rank_correlation": None, "problems": [{"regret": {"1": None}, "shift": 0.5}]}


def test_heuristics_that_crash_over_a_problem_or_know_no_such_device_cost_no_evaluation(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suggest(problem: GemmProblem, device: str) -> list[Suggestion]:
        if problem.m == 16:
            raise ModelError(f"no answer for {problem}")
        return [Suggestion(128, 128, 64, 1, 1, 1, 4, 5.0)]

    monkeypatch.setattr("tilescout.experiments.commands.evaluate_model.suggest", suggest)
    samples = samples_of(table, TEMPLATE)
    known, unanswered = heuristics_regrets(table, TEMPLATE, samples, binaries=False)
    assert list(known) == ["512x512x512:bf16"]
    assert unanswered == ["no answer for 16x4096x4096:bf16"]

    elsewhere = copy(table)
    elsewhere.card = replace(table.card, device="rtx-pro-6000")
    assert heuristics_regrets(elsewhere, TEMPLATE, samples, binaries=False) == ({}, [])
