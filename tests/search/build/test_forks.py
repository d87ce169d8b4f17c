"""The warm process that compilers are forked from: where it or memory is lacking, or Ctrl-C reaches it."""

import json
import signal
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tilescout.search.build import forks
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.build.forks import ForkDiedError, ForkPool
from tilescout.search.build.warm import serve
from tilescout.spaces.errors import BuildError
from tilescout.spaces.knobs import Configuration

TASK = {"wanted": 1}


class Ended:
    """Stands in for a warm process: it ends when it is told to, and answers nothing."""

    def __init__(self) -> None:
        self.ours, self.theirs = Pipe()

    def end(self) -> None:
        self.theirs.close()

    def process(self) -> Any:
        return self.ours, self.end, lambda: -signal.SIGKILL


def nothing(*arguments: object) -> None:
    pass


def refuse(target: object) -> None:
    raise OSError(12, "Cannot allocate memory")


def test_where_no_other_can_be_started_whoever_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = Ended()
    monkeypatch.setattr(forks, "_spawned", lambda target: warm.process())
    with ForkPool(nothing, nothing, 1) as pool:
        waiting = pool.submit(TASK, 60)
        monkeypatch.setattr(forks, "_spawned", refuse)
        warm.end()
        with pytest.raises(BuildError, match=r"ended with exit code -9, and can't start .*: Cannot allocate memory"):
            waiting.result(timeout=10)


@pytest.mark.parametrize("short", [{"exitcode": -signal.SIGKILL}, {"error": ["MemoryError", "no room"]}])
def test_what_ran_out_of_memory_runs_once_more_when_no_other_waits(
    monkeypatch: pytest.MonkeyPatch, short: dict[str, Any]
) -> None:
    warm = Ended()
    monkeypatch.setattr(forks, "_spawned", lambda target: warm.process())
    answer = json.dumps({"number": 1, "seconds": 1.0, "timed_out": False, **short}).encode()
    asked = list[dict[str, Any]]()
    with ForkPool(nothing, nothing, 1) as pool:
        waiting = pool.submit(TASK, 60)
        for _ in range(2):
            asked.append(json.loads(warm.theirs.recv_bytes()))
            warm.theirs.send_bytes(answer)
        with pytest.raises((ForkDiedError, MemoryError)):
            waiting.result(timeout=10)
    assert [each["later"] for each in asked] == [False, True]


def test_what_could_not_be_asked_for_can_be_asked_for_again(
    plain_gemm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Configuration.of({"fault": "nothing", "repeats": 1})
    monkeypatch.setattr(forks, "_spawned", refuse)
    with CompilePool(plain_gemm.TEMPLATE, "bf16", "host", ArtifactStore(tmp_path), CompileOptions(1)) as pool:
        for _ in range(2):  # the second does not wait for the first, which nobody works on
            with pytest.raises(BuildError, match="can't start the process that compilers are forked from"):
                pool.submit(wanted)


def test_a_task_that_is_cancelled_as_it_ends_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, asked = Pipe()
    told, _ = Pipe()
    rounds: list[int] = []

    def both(objects: list[Any], left: float | None) -> list[Any]:
        """Tell of the task at first, then of its end and its cancelling, then that nobody asks any more."""
        rounds.append(len(objects))
        if len(objects) == 3:
            wait([objects[2]], 60)
            ours.send_bytes(json.dumps({"cancel": 1}).encode())
            return [asked, objects[2]]
        if len(rounds) > 1:
            ours.close()
        return [asked]

    monkeypatch.setattr("tilescout.search.build.warm.wait", both)
    monkeypatch.setattr("tilescout.search.build.warm._told_to_end", lambda: told)
    monkeypatch.setattr(signal, "signal", nothing)
    ours.send_bytes(json.dumps({"number": 1, "task": TASK, "timeout": 60.0, "later": False}).encode())

    serve(asked, nothing, 1)  # it ended with an error, and so did all that was being compiled

    assert rounds == [2, 3, 2]
