"""The comparison of fast with accurate accumulation, on the host."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tilescout.experiments.research.backend_rows import FAST, OF_LIST
from tilescout.experiments.research.studies import fast_sums
from tilescout.spaces.gemm import GemmProblem


def test_both_ways_race_and_their_errors_are_told(
    host_library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_sums, "SPACES", {"host_cublaslt": OF_LIST, "no_such_space": fast_sums.FAST_LIST})
    out, problem = tmp_path / "found.json", "32x48x64:e4m3-bf16"
    asked = ["--problem", problem, "--device", "cpu", "--store", str(tmp_path / "store"), "--out", str(out)]

    done = CliRunner().invoke(fast_sums.main, asked)

    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())["result"]
    rows = told["problems"][problem]["rows"]
    assert set(told["means"]) == {FAST, OF_LIST}
    assert told["means"][FAST][0] == rows[FAST]["speed"]["value"] > 0
    assert "unknown space" in rows[fast_sums.FAST_LIST]["error"]
    assert f"{rows[OF_LIST]['speed']['value']:.3f}" in done.output


def test_errors_are_those_of_the_sums_alone() -> None:
    errors = fast_sums.errors_of(GemmProblem(32, 48, 64, dtype="e4m3"), "cpu", seed=0)

    assert set(errors) == {"accurate", "fast"}
    assert max(errors.values()) < 1e-5  # a result in bf16 would be off by some 2e-3
