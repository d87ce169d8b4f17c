"""The scripts that look at recorded times: what a knob is worth, who races, and what a ranker drops."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.experiments.research.kernels import finalists
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies import defaults, nvgemm_ranking
from tilescout.experiments.research.studies.knob_worth import losses, main, worth_of_values
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.shapes import shape_groups

TABLE = Table.read(shipped_tables()[0])


def test_what_leaving_a_knob_alone_costs_is_nothing_for_the_best_value() -> None:
    best = {summary.problem: summary.best for summary in TABLE.summarise()}
    for name, values in TABLE.card.knobs.items():
        lost = losses(TABLE, name)
        assert lost.shape == (len(TABLE.problems), len(values))
        assert (lost >= 0).all()
        for row, problem in zip(lost, TABLE.problems, strict=True):
            fastest = best[problem]
            assert fastest is not None
            assert row[values.index(fastest[name])] == 0


def test_a_value_is_worth_what_the_others_cost_where_it_was_timed() -> None:
    lost = np.array([[0.0, 0.25, np.inf], [0.02, 0.0, 0.005], [0.0, np.inf, np.inf]])
    worth = worth_of_values((1, 2, 4), lost, ["a", "b", "c"])
    assert worth["1"] == {"problems": 3, "best": 2, "needed": 2, "most": None, "where": "c"}  # alone there
    assert worth["2"] == {"problems": 2, "best": 1, "needed": 0, "most": pytest.approx(0.005), "where": "b"}
    assert worth["4"] == {"problems": 1, "best": 0, "needed": 0, "most": pytest.approx(1 / 1.005 - 1), "where": "b"}
    assert worth_of_values((1,), np.full((1, 1), np.inf), ["a"])["1"]["where"] is None


def test_what_knobs_are_worth_is_told_of_several_tables_of_a_space_together(tmp_path: Path) -> None:
    tables, out = [str(path) for path in shipped_tables() if "e4m3" not in path.name], tmp_path / "worth.json"
    done = CliRunner().invoke(main, [*tables, "--out", str(out)], catch_exceptions=False)
    assert "values that are worth more than 1 % on no problem" in done.output
    result = Record.read(out).result
    assert len(result["raster"]["loss"]) == sum(len(Table.read(Path(path)).problems) for path in tables)
    assert result["raster"]["values"]["m"]["problems"] == len(result["raster"]["loss"])


def test_the_fastest_race_in_order_and_the_default_once_at_the_end() -> None:
    for problem in TABLE.problems:
        default = TABLE.card.baselines[problem].default
        runners = finalists(TABLE, problem, 6)
        assert runners[-1] == default
        assert runners.count(default) == 1
        assert len(runners) in (6, 7)
        rows = [TABLE.row(runner, problem) for runner in runners[:-1]]
        times = TABLE.times_us[np.array(rows)]
        assert (np.diff(times) >= 0).all()
        assert (
            times[0] <= np.sort(TABLE.times_us[TABLE.rows(problem)])[1]
        )  # the first or, if that is the default, the next


def test_no_shape_is_in_two_parts_that_are_left_out() -> None:
    problems = [GemmProblem.parse(str(problem)) for path in shipped_tables() for problem in Table.read(path).problems]
    labels = np.array(shape_groups(problems))
    assert len(set(labels)) < len(problems)  # bf16 and fp8 of one shape
    for seed in range(5):
        found = defaults.parts(problems, 6, np.random.default_rng(seed))
        assert sorted(np.concatenate(found).tolist()) == list(range(len(problems)))
        for at, part in enumerate(found):
            assert not set(labels[part]) & set(labels[np.concatenate(found[:at] + found[at + 1 :])])


def test_what_is_kept_costs_nothing_where_the_predictions_are_right() -> None:
    times = [4.0, 3.0, 2.0, 1.0]
    right, wrong = np.array([40, 30, 20, 10]), np.array([10, 20, 30, 40])
    assert nvgemm_ranking.losses(times, right, timed=2, kept=(1, 2)) == [2, 0, 0]
    assert nvgemm_ranking.losses(times, wrong, timed=4, kept=(1, 2)) == [0, 3, 2]


def test_predictions_are_those_of_the_operators_of_one_order_of_tiles() -> None:
    assert nvgemm_ranking.predicted(GemmProblem(4096, 4096, 4096)).shape == (24,)
