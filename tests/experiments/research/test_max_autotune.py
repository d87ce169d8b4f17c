"""Batch sizes that are compiled at the same time take turns to measure, and are shown with what one-line measured."""

from collections.abc import Callable
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from signal import ITIMER_REAL, SIGALRM, getitimer, getsignal
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
import torch

from tilescout.experiments.research.clients import products
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.max_autotune import forms
from tilescout.experiments.research.turns import OutOfTime, Turns
from tilescout.search.autotuning import tuner
from tilescout.spaces.gemm import GemmProblem


def is_taken(folder: Path) -> bool:
    with (folder / "turn").open("wb") as file:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_who_has_the_turn_is_alone(tmp_path: Path) -> None:
    first, second = (Turns(tmp_path, 2, 10.0) for _ in range(2))
    order: list[str] = []

    def follow() -> None:
        with second.alone():
            order.append("second")

    with first.alone():
        follower = Thread(target=follow)
        follower.start()
        follower.join(timeout=0.3)
        assert is_taken(tmp_path)
        order.append("first")
    follower.join(timeout=60)
    assert order == ["first", "second"]
    assert not is_taken(tmp_path)


def test_all_wait_until_the_last_has_compiled(tmp_path: Path) -> None:
    met: list[str] = []

    def meet(name: str) -> None:
        Turns(tmp_path, 2, 200.0).meet(name)
        met.append(name)

    early = Thread(target=meet, args=("16",))
    early.start()
    while not (tmp_path / "compiled-16").exists():
        sleep(0.01)
    early.join(timeout=0.3)
    assert not met
    meet("64")
    early.join(timeout=60)
    assert sorted(met) == ["16", "64"]


def test_who_never_comes_is_not_waited_for_longer_than_patience(tmp_path: Path) -> None:
    began = monotonic()
    Turns(tmp_path, 2, 0.2).meet("16")
    assert monotonic() - began >= 0.2


def test_benchmarks_of_torchinductor_are_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime import benchmarking

    benchmarker: Any = benchmarking.benchmarker
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda self, run: (run(), is_taken(tmp_path)))
    with Turns(tmp_path, 2, 10.0).benchmarks_alone():
        assert benchmarker.benchmark_gpu(lambda: 7) == (7, True)
        # A candidate of several kernels benchmarks these when it first runs: a second lock would never be had.
        assert benchmarker.benchmark_gpu(lambda: benchmarker.benchmark_gpu(lambda: 7)) == ((7, True), True)
    assert benchmarker.benchmark_gpu(lambda: 7) == (7, False)


def test_a_kernel_is_loaded_before_the_turn_in_which_it_is_benchmarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime import benchmarking

    benchmarker: Any = benchmarking.benchmarker
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda self, run: run())
    taken: list[bool] = []
    with Turns(tmp_path, 2, 10.0).benchmarks_alone():
        benchmarker.benchmark_gpu(lambda: taken.append(is_taken(tmp_path)))
    assert taken == [False, True]


def test_contests_of_autotune_are_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decides: Any = tuner
    monkeypatch.setattr(tuner, "decide", lambda name: (name, is_taken(tmp_path)))
    with Turns(tmp_path, 2, 10.0).contests_alone():
        assert decides.decide("a product") == ("a product", True)
    assert decides.decide("a product") == ("a product", False)


def test_what_takes_longer_than_patience_is_ended_though_it_catches_errors(tmp_path: Path) -> None:
    turns, began = Turns(tmp_path, 1, 0.2), monotonic()

    def stubborn() -> None:
        while monotonic() < began + 30:
            with suppress(Exception):
                sleep(30)

    with pytest.raises(OutOfTime), turns.within_patience():
        stubborn()
    assert 0.2 <= monotonic() - began < 20


def test_what_ends_within_patience_is_let_go_on(tmp_path: Path) -> None:
    before = getsignal(SIGALRM)
    with Turns(tmp_path, 1, 200.0).within_patience():
        assert getitimer(ITIMER_REAL)[0] > 0
    assert getitimer(ITIMER_REAL)[0] == 0  # an alarm that was left would end the process
    assert getsignal(SIGALRM) is before


def test_products_of_a_model_are_those_of_its_linear_layers() -> None:
    with torch.device("meta"):
        layers = [torch.nn.Linear(32, 64, bias=False), torch.nn.Linear(64, 32), torch.nn.Linear(32, 64, bias=False)]
    found = [GemmProblem(8, 64, 32), GemmProblem(8, 32, 64, bias=True)]
    assert products(torch.nn.Sequential(*layers), 8) == found


def test_a_product_with_a_bias_may_be_tuned_without() -> None:
    assert forms(GemmProblem(8, 64, 32, bias=True)) == [GemmProblem(8, 64, 32, bias=True), GemmProblem(8, 64, 32)]
    assert forms(GemmProblem(8, 64, 32)) == [GemmProblem(8, 64, 32)]


def of(contender: str, ratio: float, us: float) -> dict[str, Any]:
    ways = {
        "graph": {
            "default": {"us": us, "ratio": 1.0, "quartiles": [1.0, 1.0]},
            contender: {"us": us * ratio, "ratio": ratio, "quartiles": [ratio, ratio]},
        }
    }
    steps = {"16": ways, "summaries": {}, "difference": {f"{contender} 16": 0.001}}
    return {"client": "qwen3", "phase": "decode", "layers": 1, "dynamic": False, "first": {}, "steps": steps}


def test_it_is_shown_beside_the_other_contenders_of_one_line(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "ours.json", tmp_path / "max-autotune.json"]
    Record.of("one-line", "a command", of("ours", 0.5, 100.0)).write(files[0])
    Record.of("max-autotune", "a command", of("max-autotune", 0.98, 104.0)).write(files[1])
    study("max-autotune", "--again", str(files[1]))
    assert "0.9800" in capsys.readouterr().out
    study("one-line", "--again", str(files[0]), "--and", str(files[1]))
    printed = capsys.readouterr().out
    assert "0.5000" in printed
    assert "0.9800" in printed
    assert "104.0" not in printed  # default's time is that of the first file


def test_what_was_not_measured_is_printed_with_the_reason(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = of("ours", 0.5, 100.0)
    result["steps"] |= {"error of 64": "killed after 9 s", "left out": {"max-autotune 16": "after 7 s"}}
    Record.of("max-autotune", "a command", result).write(tmp_path / "some.json")
    study("max-autotune", "--again", str(tmp_path / "some.json"))
    printed = capsys.readouterr().out
    assert "not measured: 64, killed after 9 s" in printed
    assert "not measured: max-autotune 16, after 7 s" in printed
