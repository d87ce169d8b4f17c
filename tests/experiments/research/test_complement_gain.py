"""Gains of a second space by two tables: the estimated and the measured ones, and tables without a common problem."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilescout.experiments.research.studies.complement_gain import gains, main
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TilescoutError

TABLES = Path(__file__).resolve().parents[3] / "experiments" / "results" / "stream-k-2026-11-26"
WHOLE, SHARING = (TABLES / f"{space}-h200-many-7-bf16.parquet" for space in ("gemm_sm90", "gemm_streamk_sm90"))


@pytest.mark.slow
def test_both_gains_of_each_problem_are_told(tmp_path: Path) -> None:
    out = tmp_path / "gain.json"

    done = CliRunner().invoke(main, [str(WHOLE), str(SHARING), "--out", str(out)])

    assert done.exit_code == 0, done.output
    problems = json.loads(out.read_text())["result"]["problems"]
    assert len(problems) == 14
    deep = problems["15104x1160x11240:bf16"]
    whole, sharing = (
        next(each for each in Table.read(path).summarise() if str(each.problem) == "15104x1160x11240:bf16")
        for path in (WHOLE, SHARING)
    )
    assert whole.best_timing is not None
    assert sharing.best_timing is not None
    assert deep["measured"] == pytest.approx(whole.best_timing.ratio / sharing.best_timing.ratio - 1)
    assert deep["expected"]
    assert not problems["2781x2240x5760:bf16"]["expected"]


def test_tables_without_a_problem_in_common_are_refused() -> None:
    with pytest.raises(TilescoutError, match="no problem in common"):
        gains(Table.read(WHOLE), Table.read(TABLES / "gemm_streamk_sm90-h200-many-7-e4m3.parquet"))
