"""The display of a search says what is going on, and why it ended."""

import threading
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from tilescout.search import Budget, SearchInterrupted, TuneResult, tune
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.build.standby import can_stand_by
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.race import Estimate
from tilescout.search.tracking import MlflowTracker
from tilescout.search.tracking.standing.logger import StandingTracker
from tilescout.search.tuning.progress import StudyProgress, why_ended
from tilescout.spaces.knobs import Configuration


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    store = tmp_path_factory.mktemp("store")
    return tune("gemm_sm90", "512x512x512:bf16", sampler="random", budget=3, device="replay", store=store, mlflow=False)


def test_the_reason_why_searches_of_one_budget_ended_is_told(result: TuneResult) -> None:
    by_itself = replace(result, stopped="little to gain")
    assert why_ended([by_itself], Budget(trials=64)) == "stopped by itself"
    assert why_ended([by_itself, result], Budget(trials=6)) == "all trials are done"
    assert why_ended([result], Budget(trials=3)) == "all trials are done"
    assert why_ended([result] * 2, Budget(gpu_seconds=2 * result.gpu_seconds)) == "the GPU seconds are spent"
    assert why_ended([result, replace(result, seconds=9.0)], Budget(seconds=8.0)) == "the time is up"
    assert why_ended([by_itself, result], Budget(trials=7)) == "nothing is left to try"


def test_setting_up_and_the_race_are_no_reason_why_a_search_ended(result: TuneResult) -> None:
    whole = replace(result, seconds=31.0, info=replace(result.info, size=3))
    assert why_ended([whole], Budget(seconds=30.0)) == "nothing is left to try"
    best = LibraryBest("cuBLASLt", "13.1.0", "cublaslt", Configuration.of({}), 8, Estimate(0.8, 0.7, 0.9), None, 9.0)
    dear = replace(result, library_best=best)
    assert dear.gpu_seconds > 9.0
    assert why_ended([dear], Budget(gpu_seconds=9.0, seconds=0.0)) == "the time is up"
    assert why_ended([replace(whole, library_best=best)], Budget(gpu_seconds=9.0)) == "nothing is left to try"


def test_the_bar_shows_the_best_what_comes_behind_the_trials_and_the_end(
    result: TuneResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    with StudyProgress(3) as bar:
        for trial in result.trials:
            bar(trial)
        bar.phase("race the best")
        bar.end("all trials are done")
        bar.phase("give MLflow its pictures")
    assert f"3/3 0:00:00 best {result.best_value:.2f} µs; all trials are done" in shown.getvalue()


def test_searches_of_two_spaces_tell_on_one_line_what_they_do_behind_the_end_and_leave_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, before = StringIO(), set(threading.enumerate())
    monkeypatch.setattr("sys.stderr", shown)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("TTY_COMPATIBLE", "1")):
        monkeypatch.setenv(name, value)
    with StudyProgress(3) as bar:
        bar.end("all trials are done")
        bar.phase("log the [trials] of one")
        bar.phase("log those of the other")
    hidden, back = "\x1b[?25l", "\x1b[?25h"
    text = shown.getvalue()
    assert "log the [trials] of one" in text
    assert text.count(hidden) == text.count(back) == 2  # the cursor, once for the bar and once for the line
    assert text.rfind(back) > text.rfind(hidden)
    for drawing in set(threading.enumerate()) - before:
        drawing.join(5)
        assert not drawing.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tracker", "standby"),
    [
        (MlflowTracker, False),
        pytest.param(StandingTracker, True, marks=pytest.mark.skipif(not can_stand_by(), reason="needs Linux")),
    ],
)
def test_ctrl_c_behind_the_search_hands_out_its_whole_result(
    tracker: type, standby: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tracker, "finish", interrupted)
    printed: list[TuneResult] = []
    with pytest.raises(SearchInterrupted) as caught:
        tune("gemm_sm90", "512x512x512:bf16", sampler="random", budget=3, device="replay", store=tmp_path,
             on_result=printed.append, live=LiveOptions(CompileOptions(standby=standby)))  # fmt: skip
    assert caught.value.complete
    assert len(caught.value.result.trials) == 3
    assert len(printed) == 1
