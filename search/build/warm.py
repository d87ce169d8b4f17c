"""The warm process: it imports what a function needs once, and forks a child for every task.

`forks` has the other end, which asks for tasks and hears of them. The messages are JSON objects.
"""

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tilescout.search.build.standing import fork_group
from tilescout.spaces.errors import ArtifactError, BuildError, StoreError, one_line
from tilescout.spaces.faults import described

Task = Mapping[str, Any]
"""The argument of the function: a JSON object."""

Target = tuple[Callable[[], None], Callable[[Task], None], int, int]
"""Called once to warm up, called with each task, children at the same time at most, and the niceness of them all."""

MESSAGE_BYTES = 1 << 16
"""Bytes of a message at most: a configuration takes some hundred."""

FAILED = "failed"
"""The member of the message that says why the process could not warm up. It is the last one."""

ERRORS: dict[str, type[Exception]] = {
    each.__name__: each for each in (ArtifactError, BuildError, StoreError, MemoryError)
}
"""The errors of a task that are passed on as what they are, by their names."""


def warm_process(asked: Connection) -> None:
    """Warm up, and serve: what that means is the first thing that is asked for, a `Target`."""
    target: Target = asked.recv()
    warm_up, work, processes, niceness = target
    os.nice(niceness)
    try:
        warm_up()
    except (Exception, SystemExit) as error:  # code of others; another process would fail as well
        if isinstance(error, MemoryError):
            raise
        asked.send_bytes(json.dumps({FAILED: described(error)}).encode())
        return
    serve(asked, work, processes)


def serve(asked: Connection, work: Callable[[Task], None], processes: int) -> None:
    """Fork a child for every task that is asked for, until the other end of `asked` is closed or SIGTERM comes.

    Parameters
    ----------
    asked
        Where a `tilescout.search.build.forks.ForkPool` asks.
    work, processes
        See `ForkPool`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    told, server = _told_to_end(), _Server(asked, work, processes)
    try:
        server.run(told)
    except (EOFError, OSError):  # the process that asked is gone
        pass
    finally:
        server.end()


class _Server:
    """The tasks that wait for a child, and the children that run; see `serve`."""

    def __init__(self, asked: Connection, work: Callable[[Task], None], processes: int) -> None:
        self._asked, self._work, self._processes = asked, work, processes
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._later: deque[Mapping[str, Any]] = deque()  # begun when none of those waits
        self._children: dict[Connection, _Child] = {}

    def run(self, told: Connection) -> None:
        """Serve until `told` can be read."""
        while True:
            while (self._waiting or self._later) and len(self._children) < self._processes:
                self._begin((self._waiting or self._later).popleft())
            for ready in wait([self._asked, told, *self._children], self._seconds_left()):
                if ready is told:
                    return
                if ready is self._asked:
                    self._hear(json.loads(self._asked.recv_bytes(MESSAGE_BYTES)))
                    continue
                assert isinstance(ready, Connection)
                if ready in self._children:  # else it was cancelled in this very round
                    self._tell(_settle(self._children.pop(ready)))
            now = time.monotonic()
            for child in [each for each in self._children.values() if now >= each.deadline]:
                self._end(child)
                self._tell({"number": child.number, "timed_out": True})

    def end(self) -> None:
        """Kill all children."""
        for child in self._children.values():
            child.kill()

    def _begin(self, message: Mapping[str, Any]) -> None:
        try:
            child = _fork(message, self._work, self._asked)
        except OSError as error:  # no memory, or too many processes
            refusal = ["MemoryError", f"can't fork a compiler: {error.strerror}"]
            self._tell({"number": message["number"], "error": refusal})
        else:
            self._children[child.answers] = child

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "task" in message:
            (self._later if message["later"] else self._waiting).append(message)
        elif "hurry" in message:
            self._waiting.extend(_taken(self._later, message["hurry"]))
        else:
            number = message["cancel"]
            for waiting in (self._waiting, self._later):
                _taken(waiting, number)
            for child in [each for each in self._children.values() if each.number == number]:
                self._end(child)

    def _tell(self, answer: Mapping[str, Any]) -> None:
        self._asked.send_bytes(json.dumps(answer).encode())

    def _end(self, child: "_Child") -> None:
        _reap(self._children.pop(child.answers))

    def _seconds_left(self) -> float | None:
        """Until the first child has had its time; None without children."""
        deadlines = [child.deadline for child in self._children.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None


@dataclass
class _Child:
    """A child that runs a task."""

    number: int
    pid: int
    answers: Connection
    started: float
    deadline: float

    def kill(self) -> None:
        """End it, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _taken(waiting: deque[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    """The message of this number, taken out of those that wait; none if it does not wait there."""
    found = [message for message in waiting if message["number"] == number]
    for message in found:
        waiting.remove(message)
    return found


def _told_to_end() -> Connection:
    """A connection that can be read once SIGTERM came; an exception of a handler might be raised where none is heard.

    Until then SIGTERM ends the process, which has no children to end yet.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda *_: None)
    return Connection(reading, writable=False)


def _fork(message: Mapping[str, Any], work: Callable[[Task], None], asked: Connection) -> _Child:
    reading, writing = os.pipe()

    def run() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(reading)
        asked.close()
        _answer(writing, message, work)

    try:
        pid = fork_group(run)
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    os.close(writing)
    started = time.monotonic()
    return _Child(message["number"], pid, Connection(reading, writable=False), started, started + message["timeout"])


def _answer(writing: int, message: Mapping[str, Any], work: Callable[[Task], None]) -> None:
    try:
        work(message["task"])
    except (Exception, SystemExit) as error:  # whatever it is: the process that asked hears of it
        kind = next((name for name, each in ERRORS.items() if isinstance(error, each)), "")
        text = one_line(error) if kind else f"{type(error).__name__}: {one_line(error)}"
        os.write(writing, json.dumps([kind, text]).encode()[: MESSAGE_BYTES // 2])


def _settle(child: _Child) -> dict[str, Any]:
    """The answer of a child that has written, or ended without that."""
    written = os.read(child.answers.fileno(), MESSAGE_BYTES)
    exitcode = _reap(child)
    answer = {"number": child.number, "seconds": time.monotonic() - child.started, "timed_out": False}
    return {**answer, "error": json.loads(written)} if written else {**answer, "exitcode": exitcode}


def _reap(child: _Child) -> int:
    """End a child, if it has not ended, and what it has started; its exit code."""
    child.kill()
    _, status = os.waitpid(child.pid, 0)
    child.answers.close()
    return os.waitstatus_to_exitcode(status)
