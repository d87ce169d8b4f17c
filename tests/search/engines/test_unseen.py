"""A race on inputs that the search has not seen."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilescout.search.engines.engine import Task, settled_future
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.tables.table import Table
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "results" / "grouped-tables-2026-11-22"
LIBRARY_US = {0: 200.0, 8: 210.0}  # by the first draw


class Racing(ReplayEngine):
    """Of a recorded table; it keeps what was to race."""

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        assert isinstance(problem, GroupedProblem)
        return settled_future(LIBRARY_US[problem.first_draw])

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        self.raced = tasks
        return settled_future(np.ones((rounds, len(tasks))))


def test_the_draws_of_a_race_are_none_that_the_search_had() -> None:
    table = Table.read(FOLDER / "grouped_gemm_sm90-h200-qwen3-30b-a3b.parquet")
    engine = Racing(table, find_template(table.card.space))
    problem = GroupedProblem.parse("128x2048x1536x2048:bf16:zipf-1")
    with Evaluator(engine, problem) as evaluator:
        evaluator.race([0, 3], rounds=2, pairs=1, seed=0)
        assert evaluator.library_us() == LIBRARY_US[0]
    assert [str(task.problem) for task in engine.raced] == 2 * [f"{problem}:draws-8-15"]
    assert [task.library_us for task in engine.raced] == 2 * [LIBRARY_US[8]]
