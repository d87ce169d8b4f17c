"""Run a function many times, each time in a process of its own that is forked from one warm process.

The warm process imports what the function needs, once. A fork of it costs milliseconds, shares its memory, and may
crash or hang alone. `multiprocessing` has a fork server too, but one for the whole interpreter, which whoever starts it
first sets up, and it limits no time; pebble limits times, but its processes import everything anew.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from tilescout.search.build.standby import Standby, StandbyError, open_session
from tilescout.search.build.standing import fork_group
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import ArtifactError, BuildError, StoreError, one_line
from tilescout.spaces.processes import deaf_to_ctrl_c, spawn_context

_LOG = logging.getLogger(__name__)

Task = Mapping[str, Any]
"""The argument of the function: a JSON object."""

MESSAGE_BYTES = 1 << 16
"""Bytes of a message at most: a configuration takes some hundred."""
_STARTS = 3  # of warm processes that end without having finished anything: the next would end too
_ERRORS: dict[str, type[Exception]] = {
    each.__name__: each for each in (ArtifactError, BuildError, StoreError, MemoryError)
}


class ForkTimeoutError(Exception):
    """A child did not end in time and was killed.

    Attributes
    ----------
    seconds
        The time that it had.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"did not end in {seconds:g} s")
        self.seconds = seconds


class ForkDiedError(Exception):
    """A child ended without an answer.

    Attributes
    ----------
    exitcode
        Its exit code; of a child that a signal ended, the signal's negative number.
    seconds
        How long it lived.
    """

    def __init__(self, exitcode: int, seconds: float) -> None:
        super().__init__(f"exit code {exitcode}")
        self.exitcode, self.seconds = exitcode, seconds


@dataclass
class _Waiting:
    """A task that is not finished, what hears of it, and whether all others go before it or it was run before."""

    task: Task
    timeout: float
    future: "Future[None]"
    later: bool
    again: bool = False

    def message(self, number: int) -> dict[str, Any]:
        return {"number": number, "task": self.task, "timeout": self.timeout, "later": self.later}


class ForkPool(Closing):
    """Runs a function in children of one warm process, some at a time.

    If the warm process itself is killed, another is started, and what was not finished is run again; a warning of the
    logger says so. What ran out of memory is run again, too, once no other waits: its child raised that, or the system
    killed it.

    Parameters
    ----------
    warm_up
        Called once, in the warm process. It may start no thread: a fork has only the thread that forks.
    work
        Called with a task, in a child. An exception that `tilescout` raises, or a shortage of memory, is passed on.
        Both are named by their modules, as all that is spawned is.
    processes
        Children that run at the same time.
    niceness
        By how much the processes give way to others, as of ``nice``.
    standby
        A process that stands by and has warmed up already, and what to ask of it. Its session has to `serve` the same
        work. Where it can't be had the warm process is started here.
    """

    def __init__(
        self,
        warm_up: Callable[[], None],
        work: Callable[[Task], None],
        processes: int,
        niceness: int = 0,
        standby: tuple[Standby, Mapping[str, Any]] | None = None,
    ) -> None:
        self._target = warm_up, work, processes, niceness
        self._standby = standby
        self._lock = threading.Lock()
        self._warm: _Warm | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._count = 0
        self._fruitless = 0  # warm processes that ended without having finished anything
        self._closed = False

    def start(self) -> None:
        """Have the warm process ready for the first task.

        Raises
        ------
        BuildError
            If it can't be started.
        """
        with self._lock:
            self._started()

    def submit(self, task: Task, timeout: float, later: bool = False) -> "Future[None]":
        """Run the function with a task.

        Cancelling the future, at any time, drops the task or kills its child.

        Parameters
        ----------
        task
            A JSON object.
        timeout
            Seconds after which the child is killed.
        later
            Start it only when no other waits, unless `hurry` is called.

        Returns
        -------
        Future
            None, once the function returned. It raises `ForkTimeoutError`, `ForkDiedError`, or what the function
            raised; a `BuildError` if the warm process ends again and again, or no other can be started.

        Raises
        ------
        BuildError
            If the warm process can't be started.
        """
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool was closed")
            warm = self._started()
            self._count += 1
            number = self._count
            self._waiting[number] = waiting = _Waiting(task, timeout, future, later)
            warm.send(waiting.message(number))
        future.add_done_callback(lambda done: self._cancel(number) if done.cancelled() else None)
        return future

    def hurry(self, future: "Future[None]") -> None:
        """Have a task that was submitted for later wait no longer than any other."""
        with self._lock:
            for number, waiting in self._waiting.items():
                if waiting.future is future and waiting.later:
                    waiting.later = False
                    self._started().send({"hurry": number})

    def close(self) -> None:
        """Kill all processes; the futures of tasks that are not finished are cancelled."""
        with self._lock:
            self._closed = True
            warm, self._warm = self._warm, None
            waiting, self._waiting = self._waiting, {}
        if warm is not None:
            warm.end()
        for each in waiting.values():
            if each.future.cancel():
                each.future.set_running_or_notify_cancel()

    def _started(self) -> "_Warm":
        if self._warm is None:
            try:
                self._warm = _Warm(self._target, self._standby, self._answered, self._ended)
            except OSError as error:  # no memory, or too many processes or open files
                raise BuildError(f"can't start the process that compilers are forked from: {error.strerror}") from error
        return self._warm

    def _cancel(self, number: int) -> None:
        with self._lock:
            if self._waiting.pop(number, None) is not None and self._warm is not None:
                self._warm.send({"cancel": number})

    def _answered(self, answer: Mapping[str, Any]) -> None:
        short = answer.get("error", [""])[0] == MemoryError.__name__ or answer.get("exitcode") == -signal.SIGKILL
        with self._lock:
            self._fruitless = 0
            waiting = self._waiting.get(answer["number"])
            if waiting is not None and not waiting.again and self._warm is not None and short:
                waiting.again = waiting.later = True
                self._warm.send(waiting.message(answer["number"]))
                return
            self._waiting.pop(answer["number"], None)
        if waiting is None or not waiting.future.set_running_or_notify_cancel():
            return
        future = waiting.future
        if "error" in answer:
            kind, message = answer["error"]
            future.set_exception(_ERRORS.get(kind, BuildError)(message))
        elif answer["timed_out"]:
            future.set_exception(ForkTimeoutError(waiting.timeout))
        elif answer["exitcode"]:
            future.set_exception(ForkDiedError(answer["exitcode"], answer["seconds"]))
        else:
            future.set_result(None)

    def _ended(self, warm: "_Warm", exitcode: int | None) -> None:
        """The warm process ended, though nobody ended it."""
        lost = []
        with self._lock:
            if self._closed or self._warm is not warm:
                return
            self._warm, self._standby = None, None
            self._fruitless += 1
            message = f"the process that compilers are forked from ended with exit code {exitcode}"
            why = f"{message}, {_STARTS} times in a row" if self._fruitless == _STARTS else ""
            if self._waiting and not why:
                _LOG.warning("%s: starting another", message)
                try:
                    warm = self._started()
                except BuildError as error:  # whoever waits would wait without end
                    why = f"{message}, and {error}"
                else:
                    for number, waiting in self._waiting.items():
                        warm.send(waiting.message(number))
            if why:
                lost, self._waiting = list(self._waiting.values()), {}
        for each in lost:
            if each.future.set_running_or_notify_cancel():
                each.future.set_exception(BuildError(why))


_Target = tuple[Callable[[], None], Callable[[Task], None], int, int]


class _Warm:
    """A warm process, and the thread that hears its answers."""

    def __init__(
        self,
        target: _Target,
        standby: tuple[Standby, Mapping[str, Any]] | None,
        answered: Callable[[Mapping[str, Any]], None],
        ended: Callable[["_Warm", int | None], None],
    ) -> None:
        self._ours, self._kill, self._wait = _session(standby) or _spawned(target)
        self._hearing = threading.Thread(target=self._hear, args=(answered, ended), name="warm-compiler", daemon=True)
        self._hearing.start()

    def send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # if it ended, the thread hears of it, and all that waits is sent to the next
            self._ours.send_bytes(json.dumps(message).encode())

    def end(self) -> None:
        self._kill()
        if self._hearing is not threading.current_thread():
            self._hearing.join()  # it waits for the process

    def _hear(
        self, answered: Callable[[Mapping[str, Any]], None], ended: Callable[["_Warm", int | None], None]
    ) -> None:
        while True:
            try:
                answer = json.loads(self._ours.recv_bytes(MESSAGE_BYTES))
            except (OSError, EOFError):
                break
            answered(answer)
        exitcode = self._wait()
        self._ours.close()
        ended(self, exitcode)


_Process = tuple[Connection, Callable[[], object], Callable[[], int | None]]
"""A connection to a process, what ends it, and what waits for its end."""


def _session(standby: tuple[Standby, Mapping[str, Any]] | None) -> _Process | None:
    """A process that is warm already; None if there is none."""
    if standby is None:
        return None
    try:
        session = open_session(*standby)
    except StandbyError as error:
        _LOG.warning("%s: starting a compiler of its own", error)
        return None
    return session.connection, session.kill, session.wait


def _spawned(target: _Target) -> _Process:
    """A process that warms up now."""
    # The script that runs here is imported there only if what is to be run is of it: it may be any user's.
    context = spawn_context(imports_main=b"__main__" in bytes(ForkingPickler.dumps(target)))
    ours, theirs = context.Pipe()
    process = context.Process(target=_warm_process, args=(theirs,), name="warm-compiler", daemon=True)
    try:
        with theirs, deaf_to_ctrl_c():
            process.start()
    except OSError:
        ours.close()
        raise
    # No arguments of the process: they may be of modules that are found only once it runs.
    with suppress(OSError):
        ours.send(target)

    def wait() -> int | None:
        process.join()
        return process.exitcode

    return ours, process.terminate, wait


@dataclass
class _Child:
    """A child that runs a task."""

    number: int
    pid: int
    answers: Connection
    started: float
    timeout: float

    def kill(self) -> None:
        """End it, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _warm_process(asked: Connection) -> None:
    target: _Target = asked.recv()
    warm_up, work, processes, niceness = target
    os.nice(niceness)
    warm_up()
    serve(asked, work, processes)


def serve(asked: Connection, work: Callable[[Task], None], processes: int) -> None:
    """Fork a child for every task that is asked for, until the other end of `asked` is closed or SIGTERM comes.

    Parameters
    ----------
    asked
        Where a `ForkPool` asks.
    work, processes
        See `ForkPool`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    told = _told_to_end()
    queue: deque[Mapping[str, Any]] = deque()
    later: deque[Mapping[str, Any]] = deque()
    children: dict[Connection, _Child] = {}
    try:
        while True:
            while (queue or later) and len(children) < processes:
                message = (queue or later).popleft()
                try:
                    child = _fork(message, work, asked)
                except OSError as error:  # no memory, or too many processes
                    refusal = ["MemoryError", f"can't fork a compiler: {error.strerror}"]
                    asked.send_bytes(json.dumps({"number": message["number"], "error": refusal}).encode())
                else:
                    children[child.answers] = child
            deadlines = [child.started + child.timeout for child in children.values()]
            left = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            for ready in wait([asked, told, *children], left):
                if ready is told:
                    return
                if ready is not asked:
                    assert isinstance(ready, Connection)
                    if ready in children:  # else it was cancelled in this very round
                        asked.send_bytes(json.dumps(_settle(children.pop(ready))).encode())
                    continue
                message = json.loads(asked.recv_bytes(MESSAGE_BYTES))
                if "task" in message:
                    (later if message["later"] else queue).append(message)
                    continue
                if "hurry" in message:
                    queue.extend(_taken(later, message["hurry"]))
                    continue
                for waiting in (queue, later):
                    _taken(waiting, message["cancel"])
                for child in [each for each in children.values() if each.number == message["cancel"]]:
                    _reap(children.pop(child.answers))
            now = time.monotonic()
            for child in [each for each in children.values() if now >= each.started + each.timeout]:
                _reap(children.pop(child.answers))
                asked.send_bytes(json.dumps({"number": child.number, "timed_out": True}).encode())
    except (EOFError, OSError):  # the process that asked is gone
        pass
    finally:
        for child in children.values():
            child.kill()


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
    try:
        pid = fork_group()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.close(reading)
            asked.close()
            _answer(writing, message, work)
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    return _Child(message["number"], pid, Connection(reading, writable=False), time.monotonic(), message["timeout"])


def _answer(writing: int, message: Mapping[str, Any], work: Callable[[Task], None]) -> None:
    try:
        work(message["task"])
    except Exception as error:  # whatever it is: the process that asked hears of it
        kind = next((name for name, each in _ERRORS.items() if isinstance(error, each)), "")
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
