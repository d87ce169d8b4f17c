"""The random problems whose searches make tables: drawn again by the same seed, and none to judge by."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tilescout.experiments.research.studies.draw_problems import pooled
from tilescout.experiments.research.studies.judged_tables import SPACES
from tilescout.experiments.research.studies.searched_tables import LEAST_BYTES, LEAST_FLOP, drawn, main
from tilescout.search.measure.protocol import Objective
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import StoreError

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
RECORDED = {
    "stream-k-2026-11-30/{space}-h200-searched-1001-bf16.parquet": (1001, 72, "bf16"),
    "stream-k-2026-12-01/{space}-h200-searched-1011-e4m3.parquet": (1011, 132, "e4m3"),
}
"""Tables by the seed, the number and the types of their problems."""


def test_problems_are_none_to_judge_by_and_none_is_short() -> None:
    found = drawn(7, 100, "bf16")

    assert len(set(found)) == 100
    assert not {(problem.n, problem.k) for problem in found} & pooled()
    assert all(problem.flops > LEAST_FLOP or problem.bytes > LEAST_BYTES for problem in found)
    assert drawn(7, 10, "bf16") == found[:10]


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", RECORDED)
def test_what_was_recorded_is_of_the_problems_that_its_seed_draws(space: str, name: str) -> None:
    table = Table.read(RESULTS / name.format(space=space))

    assert {str(problem) for problem in table.problems} == {str(problem) for problem in drawn(*RECORDED[name])}
    assert table.card.objective is Objective.SANDWICH


def test_problems_of_other_types_are_drawn_alike() -> None:
    found = drawn(7, 40, "e4m3")

    assert {problem.signature for problem in found} == {"e4m3-bf16"}
    assert not {(problem.n, problem.k) for problem in found} & pooled()


def test_a_table_that_is_there_is_told_of_before_anything_is_measured(tmp_path: Path) -> None:
    there = tmp_path / "gemm_streamk_sm90-h200-searched-7-e4m3-fp32.parquet"
    there.write_bytes(b"of days")

    done = CliRunner().invoke(main, ["--seed", "7", "--signature", "e4m3-fp32", "--write", str(tmp_path)])

    assert isinstance(done.exception, StoreError)
    assert f"{there} is there already" in str(done.exception)
    assert there.read_bytes() == b"of days"
