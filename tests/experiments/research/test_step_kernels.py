"""Where a step's time goes: kernels side by side, those that differ most first."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.step_kernels import differences

KERNELS = {
    "default": {"library_gemm": [2.0, 30.0], "experts": [1.0, 400.0], "norm": [1.0, 3.0]},
    "ours": {"our_gemm": [2.0, 25.0], "experts": [1.0, 435.0], "norm": [1.0, 3.1]},
}
STEP = {"us": 450.0, "ratio": 1.0, "quartiles": [1.0, 1.0]}


def test_the_kernels_that_differ_most_come_first_and_one_that_a_contender_lacks_takes_no_time() -> None:
    assert differences(KERNELS) == [
        ("experts", 400.0, 435.0),
        ("library_gemm", 30.0, 0.0),
        ("our_gemm", 0.0, 25.0),
        ("norm", 3.0, 3.1),
    ]


def test_a_record_is_printed_again_with_sums_over_all_kernels(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draws = [{"default": STEP, "ours": {**STEP, "us": 470.0, "ratio": 1.044, "quartiles": [1.04, 1.05]}}]
    result = {"client": "mixtral-experts", "rows": 16, "draws": draws, "kernels": KERNELS, "summary of ours": "told"}
    Record.of("step-kernels", "a command", result).write(tmp_path / "step.json")
    study("step-kernels", "--again", str(tmp_path / "step.json"))
    printed = capsys.readouterr().out
    assert "1.0440 [1.0400, 1.0500]" in printed
    assert "433.0" in printed
    assert "463.1" in printed
    assert "+30.1" in printed
    assert "norm" not in printed
