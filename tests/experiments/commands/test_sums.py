"""Kernels that keep sums of 8-bit products in fewer bits than the library's function are said to."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilescout.experiments.commands.printing import print_result
from tilescout.search import StudyResult, tune
from tilescout.search.tracking.description import verdict
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.terminal import Console


@pytest.mark.parametrize(
    ("space", "problem", "told"),
    [
        ("cutlass_operators", "512x512x512:e4m3-bf16", True),
        ("cublaslt_fast", "512x512x512:e4m3-bf16", True),
        ("cublaslt_fast", "512x512x512:e4m3-bf16:fast", False),
        ("cutlass_operators", "512x512x512:bf16", False),
        ("gemm_sm90", "512x512x512:e4m3-bf16", False),
        ("own_kernel", "512x512x512:e4m3-bf16", False),
    ],
)
def test_a_result_says_so(
    space: str, problem: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tune(
        "gemm_sm90", "512x512x512:bf16", sampler="random", device="replay", budget=1, store=tmp_path, mlflow=False
    )
    result = StudyResult(replace(found.info, space=space, problem=GemmProblem.parse(problem)), found.trials, 0.0)
    print_result(result, Console(width=200))
    assert ("fewer bits" in capsys.readouterr().out) is told
    assert ("fewer bits" in verdict(result)) is told
