"""The account of a run's seconds: they add up, and are told apart."""

from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

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
HOUR = 3600


def test_the_parts_of_a_run_add_up_to_its_seconds_and_are_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock on which an hour is over at each look: what takes milliseconds cannot be told from a part that was lost.
    monkeypatch.setattr("tilescout.search.tuning.wall.time", SimpleNamespace(monotonic=partial(next, count(0, HOUR))))
    engine = ReplayEngine(default_table(TEMPLATE, PROBLEM), TEMPLATE)
    with Evaluator(engine, PROBLEM) as evaluator:
        result = run_study(evaluator, TuneOptions("random", 0, Budget(5), tmp_path))

    assert set(result.wall) == {"set up", "propose", "candidates", "compile", "measure", "race"}
    assert sum(result.wall.values()) == pytest.approx(result.seconds - HOUR)  # the last look is behind all parts
    assert result.seconds >= 5 * HOUR
    assert min(result.wall.values()) >= 0
    assert result.wall["propose"] > 0
    assert result.to_dict()["wall"] == result.wall
    assert result_metrics(result)["wall_set_up_seconds"] == result.wall["set up"]
