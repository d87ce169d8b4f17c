"""Small tables of what was recorded."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tilescout.search.tables.card import Baseline
from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

TakePart = Callable[..., Table]


@pytest.fixture(scope="session")
def part_of_table(tmp_path_factory: pytest.TempPathFactory) -> TakePart:
    """A function: a table of a problem's first rows in the shipped one, the default's among them, for some problems."""

    def part_of_table(*problems: str, rows: int) -> Table:
        whole = largest_table(find_template("gemm_sm90"))
        found = [GemmProblem.parse(problem) for problem in problems]
        taken = [(problem, row) for problem in found for row in whole.rows(problem)[:rows].tolist()]
        baselines: dict[Problem, Baseline] = {problem: whole.card.baselines[problem] for problem in found}
        assert {(problem, whole.row(baselines[problem].default, problem)) for problem in found} <= set(taken)
        return write_table(
            tmp_path_factory.mktemp("table") / "part.parquet",
            replace(whole.card, baselines=baselines),
            [(whole.configuration(row), problem, whole.measurement(row)) for problem, row in taken],
        )

    return part_of_table
