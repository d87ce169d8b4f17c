"""The account of a run's seconds: they add up, and are told apart."""

from pathlib import Path

import pytest

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.tables.shipped import default_table
from tilescout.search.tracking.fields import result_metrics
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
PROBLEM = GemmProblem(16, 4096, 4096, dtype="e4m3")  # the fewest recorded


def test_the_parts_of_a_run_add_up_to_its_seconds_and_are_metrics(tmp_path: Path) -> None:
    engine = ReplayEngine(default_table(TEMPLATE, PROBLEM), TEMPLATE)
    with Evaluator(engine, PROBLEM) as evaluator:
        result = run_study(evaluator, TuneOptions("random", 0, Budget(5), tmp_path))

    assert set(result.wall) == {"set up", "propose", "candidates", "compile", "measure", "race"}
    assert sum(result.wall.values()) == pytest.approx(result.seconds, abs=0.05)
    assert min(result.wall.values()) >= 0
    assert result.wall["propose"] > 0
    assert result.to_dict()["wall"] == result.wall
    assert result_metrics(result)["wall_set_up_seconds"] == result.wall["set up"]
