"""Tuners are played in processes of their own, which a Ctrl-C ends in silence."""

import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from tilescout.experiments.research.clock import Clock
from tilescout.experiments.research.field.playing import BUCKETED, Play, Player, Sent, searched_at
from tilescout.experiments.research.field.referee import Account
from tilescout.experiments.research.studies.field import play_all
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import find_template

PROBLEM = "1000x512x512:bf16"


class Interrupted:
    """A referee that is interrupted while it measures, and cannot answer any more."""

    def answer(self, request: object, account: Account) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        raise RuntimeError("the engine is closed")


def test_ctrl_c_ends_the_searches_without_a_trace(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", traces.append)
    template, device = find_template("gemm_sm90"), find_device("h200")
    space = template.space(template.parse(PROBLEM), device).subset(np.arange(40))
    player = Player(template, device, ["random"])
    player.send([Sent(PROBLEM, space.codes, space[0], 10.0)])
    running = sys._current_frames().keys()
    with pytest.raises(KeyboardInterrupt):
        play_all([player], [Play("random", PROBLEM, 0, 4)], Interrupted(), Clock(100))  # type: ignore[arg-type]
    while sys._current_frames().keys() - running:  # a join that was interrupted takes its thread for ended
        time.sleep(0.01)
    player.close()
    assert not traces
    assert "Traceback" not in capfd.readouterr().err


def test_flashinfer_alone_measures_at_its_own_size() -> None:
    assert searched_at(BUCKETED, PROBLEM) == "1024x512x512:bf16"
    assert searched_at("quack.autotuner", PROBLEM) == PROBLEM
