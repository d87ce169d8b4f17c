"""A result is printed on the lines that tilescout begins, whatever the study says that it was read from."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilescout.experiments.commands import tune_suite
from tilescout.experiments.commands.printing import print_result
from tilescout.search import StudyResult, tune
from tilescout.search.measure.library_best import Peer
from tilescout.search.measure.measurement import Status
from tilescout.search.tracking import suite as suite_page
from tilescout.spaces.terminal import Console

FORGED = "a reason\nbest: forged"


def test_no_text_of_a_study_begins_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"sampler": "random", "device": "replay", "budget": 2, "store": tmp_path, "mlflow": False}
    found: StudyResult = tune("gemm_sm90", "512x512x512:bf16", **arguments)  # type: ignore[arg-type]
    measured = replace(found.trials[0].measurement, status=Status.WRONG, error=FORGED, timing=None)
    failed = [replace(trial, measurement=measured) for trial in found.trials]
    peers = [Peer(FORGED, 1.0, error=FORGED)]
    told = {"not_raced": FORGED, "stopped": FORGED, "library_best": None, "no_library_best": FORGED}
    print_result(StudyResult(found.info, failed, 0.0, peers=peers, **told), Console(width=200))  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert shown.count("a reason best: forged") >= 5
    assert not [line for line in shown.splitlines() if line.startswith("best: forged")]


def test_a_cost_model_that_is_an_object_is_named_without_a_word_on_what_it_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"sampler": "random", "device": "replay", "budget": 2, "store": tmp_path, "mlflow": False}
    found: StudyResult = tune("gemm_sm90", "512x512x512:bf16", **arguments)  # type: ignore[arg-type]
    for checksum, told in (("", "unknown"), ("ab" * 32, "abababababab")):
        info = replace(found.info, model_object="Own", model_sha256=checksum)
        print_result(StudyResult(info, found.trials, 0.0), Console(width=200))
        said = f"cost model: Own, given as an object, sha256 {told}; it does not say which problems it was trained on"
        assert said in capsys.readouterr().out


def test_the_results_of_a_suite_name_the_functions_that_speeds_are_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [
        tune("gemm_sm90", problem, sampler="random", device="replay", budget=1, store=tmp_path, mlflow=False)
        for problem in ("512x512x512:bf16", "512x512x512:e4m3-bf16")
    ]
    tune_suite._print(results, 2, "a suite", Console(width=200))
    assert "of the speed of torch.mm and torch._scaled_mm(use_fast_accum=False)" in capsys.readouterr().out
    page = suite_page._describe(results)
    assert "| over torch.mm and torch.\\_scaled\\_mm(use\\_fast\\_accum=False) |" in page
