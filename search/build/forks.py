"""Run a function many times, each time in a process of its own that is forked from one warm process.

The warm process imports what the function needs, once. A fork of it costs milliseconds, shares its memory, and may
crash or hang alone. `multiprocessing` has a fork server too, but one for the whole interpreter, which whoever starts it
first sets up, and it limits no time; pebble limits times, but its processes import everything anew.
"""

import json
import logging
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tilescout.search.build.standby import Standby, StandbyError, open_session
from tilescout.search.build.warm import ERRORS, FAILED, MESSAGE_BYTES, Target, Task, warm_process
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import BuildError
from tilescout.spaces.processes import context_for

_LOG = logging.getLogger(__name__)

_STARTS = 3  # of warm processes that end without having finished anything: the next would end too


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
        Called once, in the warm process. It may start no thread: a fork has only the thread that forks. What it raises
        fails all that waits.
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
            future.set_exception(ERRORS.get(kind, BuildError)(message))
        elif answer["timed_out"]:
            future.set_exception(ForkTimeoutError(waiting.timeout))
        elif answer["exitcode"]:
            future.set_exception(ForkDiedError(answer["exitcode"], answer["seconds"]))
        else:
            future.set_result(None)

    def _ended(self, warm: "_Warm", exitcode: int | None, failure: str) -> None:
        """The warm process ended, though nobody ended it; `failure` says why it could not warm up, where that is so."""
        lost = []
        with self._lock:
            if self._closed or self._warm is not warm:
                return
            self._warm, self._standby = None, None
            self._fruitless += 1
            message = f"the process that compilers are forked from ended with exit code {exitcode}"
            why = f"{message}, {_STARTS} times in a row" if self._fruitless == _STARTS else ""
            why = f"compilers can't get ready: {failure}" if failure else why
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


class _Warm:
    """A warm process, and the thread that hears its answers."""

    def __init__(
        self,
        target: Target,
        standby: tuple[Standby, Mapping[str, Any]] | None,
        answered: Callable[[Mapping[str, Any]], None],
        ended: Callable[["_Warm", int | None, str], None],
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
        self, answered: Callable[[Mapping[str, Any]], None], ended: Callable[["_Warm", int | None, str], None]
    ) -> None:
        failure = ""
        while True:
            try:
                answer = json.loads(self._ours.recv_bytes(MESSAGE_BYTES))
            except (OSError, EOFError):
                break
            if FAILED in answer:
                failure = answer[FAILED]
            else:
                answered(answer)
        exitcode = self._wait()
        self._ours.close()
        ended(self, exitcode, failure)


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


def _spawned(target: Target) -> _Process:
    """A process that warms up now."""
    context = context_for(target)
    ours, theirs = context.Pipe()
    process = context.Process(target=warm_process, args=(theirs,), name="warm-compiler", daemon=True)
    try:
        with theirs:
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
