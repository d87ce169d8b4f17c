"""The process that stands by: it gets ready once, and forks a session for everyone who connects; see `standby`."""

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilescout.search.build.standby import (
    ENDED,
    IDLE_SECONDS,
    LEFT,
    REQUEST_BYTES,
    Do,
    NotReadyError,
    Ready,
    alone,
    leave,
    peer_of,
)
from tilescout.spaces.processes import find_modules_in

_PR_SET_PDEATHSIG = 1  # of prctl(2)
_ASKED_SECONDS = 10.0  # a session that is asked for nothing in this time ends
_PID = struct.Struct("i")


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def stand_by(listener: socket.socket, place: Path, do: Do, idle: float, more: Callable[[], None] | None = None) -> None:
    """Fork a session for every connection, and tell how it ended; return once none was asked for in `idle` seconds.

    Who connects and asks for nothing looks whether anybody answers, which does not count: each that starts to stand by
    looks at all others, so that they would keep one another from ending.

    A session takes two file descriptors here. There are at most so many that half of all stay free, and whoever
    connects then waits: where none is free, no connection can be taken, and `poll` tells of it without end.

    Parameters
    ----------
    listener
        The socket, which listens.
    place
        Its file.
    do
        What a session does.
    idle
        Seconds.
    more
        See `Ready`.
    """
    sessions = _Sessions(listener, do)
    begun, left, mine = sessions.last, False, _file_at(place)
    while True:
        ends = sessions.last + idle
        ready = sessions.wait(None if len(sessions) else max(0.0, ends - time.monotonic()))
        if not len(sessions) and time.monotonic() >= ends:
            if not left:  # another may stand by there afterwards
                with alone(place.parent):
                    if _file_at(place) == mine:  # else it was removed, and another stands by there already
                        leave(place)
                listener.setblocking(False)
                left = True
            if not select.select([listener], [], [], 0)[0]:  # one may have connected just before
                return
        sessions.settle(ready)
        sessions.part(ready)
        if listener.fileno() in ready:
            sessions.begin()
        if more is not None and sessions.last > begun and not len(sessions):
            with suppress(Exception):  # it may need space or memory that there is not; later sessions do without
                more()
            gc.freeze()
            more = None


class _Sessions:
    """The sessions of a process that stands by; see `stand_by`.

    Attributes
    ----------
    last
        When one that was asked for something ended last, by the monotonic clock; at first, when this was made.
    """

    def __init__(self, listener: socket.socket, do: Do) -> None:
        self._listener, self._do = listener, do
        self._held: dict[int, tuple[int, socket.socket]] = {}  # by their process's file descriptor
        self._most = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._polled = select.poll()
        self._polled.register(listener, select.POLLIN)
        # The numbers of those that were asked for something. No exit code can tell: who leaves has the session killed.
        self._reading, self._telling = os.pipe()
        os.set_blocking(self._reading, False)
        self._asked: set[int] = set()
        self.last = time.monotonic()

    def __len__(self) -> int:
        return len(self._held)

    def wait(self, seconds: float | None) -> Collection[int]:
        """Wait until something happens; the file descriptors at which something did."""
        self._polled.modify(self._listener, select.POLLIN if len(self) < self._most else 0)
        ready = dict(self._polled.poll(None if seconds is None else seconds * 1000))
        self._asked.update(_told(self._reading))
        return ready.keys()

    def settle(self, ready: Collection[int]) -> None:
        """Tell how those ended that have."""
        for process in [each for each in self._held if each in ready]:
            pid, control = self._held.pop(process)
            self._polled.unregister(process)
            with suppress(KeyError):  # it was killed
                self._polled.unregister(control)
            if pid in self._asked:
                self._asked.remove(pid)
                self.last = time.monotonic()
            tell_end(pid, control)
            os.close(process)

    def part(self, ready: Collection[int]) -> None:
        """Kill those whose asker is gone, or wants them gone; hear no more of one that was left alone."""
        for pid, control in self._held.values():
            if control.fileno() not in ready:
                continue
            said = _unread(control)
            if said not in (LEFT, b""):
                continue  # the session has not read all of its request
            self._polled.unregister(control)
            with suppress(ProcessLookupError):
                if said != LEFT:
                    os.killpg(pid, signal.SIGKILL)

    def begin(self) -> None:
        """Fork a session for whoever has connected."""
        with suppress(OSError):
            control, _ = self._listener.accept()
            others = [each for _, each in self._held.values()]
            try:
                process, pid = _started(control, self._listener, others, self._telling, self._do)
            except OSError:  # no memory, or too many processes: whoever asked has to hear that nobody answers
                control.close()
                return
            self._held[process] = pid, control
            self._polled.register(process, select.POLLIN)
            self._polled.register(control, select.POLLRDHUP)


def _file_at(place: Path) -> tuple[int, int] | None:
    """The identity of the file in a place, which one that comes there later does not have; None if there is none."""
    try:
        found = place.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _told(reading: int) -> list[int]:
    """The numbers that were written to a pipe since it was read last."""
    try:
        return [number for (number,) in _PID.iter_unpack(os.read(reading, _PID.size << 10))]
    except BlockingIOError:
        return []


def _unread(control: socket.socket) -> bytes:
    """The next byte on the socket of whoever asked for a session, which stays there; none if nothing comes any more."""
    try:
        return control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return b""


def fork_group(do: Callable[[], None]) -> int:
    """Fork a child that leads a process group of its own, does something, and ends, at the latest with this process.

    Its exit code is 0 if `do` returns, else 1. Where `do` raises `SystemExit` it ends as a program of Python does, with
    the code of that, and all that is to be done at the end of a process.

    Returns
    -------
    int
        Its number. Nothing is returned in the child.
    """
    parent = os.getpid()
    with warnings.catch_warnings():
        # Python warns where it sees several threads. Those are NumPy's, which survive a fork: they are started anew.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    with suppress(PermissionError, ProcessLookupError):  # whichever of the two is first
        os.setpgid(pid, pid)
    if pid:
        return pid
    code = 1
    try:
        die_with(parent)
        do()
        code = 0
    except SystemExit:
        raise
    except BaseException:
        with suppress(OSError, ValueError):
            traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # whatever they lead to: the child must not go on as its parent
        os._exit(code)


def _started(
    control: socket.socket, listener: socket.socket, others: list[socket.socket], telling: int, do: Do
) -> tuple[int, int]:
    """Fork a session: the file descriptor of its process, and its number."""

    def session() -> None:
        for inherited in (listener, *others):
            inherited.close()
        if peer_of(control)[1] != os.geteuid():
            raise PermissionError("another user asks")
        _begin(control, telling, do)

    return forked(session)


def forked(do: Callable[[], None]) -> tuple[int, int]:
    """Fork a child as `fork_group` does: the file descriptor of its process, and its number."""
    pid = fork_group(do)
    try:
        return os.pidfd_open(pid), pid
    except OSError:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def tell_end(pid: int, control: socket.socket) -> None:
    """Tell whoever asked for a session, which has ended or is about to, how it ended."""
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        control.send(ENDED.pack(os.waitstatus_to_exitcode(status)))
    control.close()


def _begin(control: socket.socket, telling: int, do: Do) -> None:
    """Do what is requested over a connection."""
    control.settimeout(_ASKED_SECONDS)
    if (asked := received(control)) is None:
        return  # it was only looked at
    os.write(telling, _PID.pack(os.getpid()))
    os.close(telling)
    control.close()  # the one that stands by tells how this ends
    do_asked(do, *asked)


def received(control: socket.socket) -> tuple[list[int], dict[str, Any]] | None:
    """The file descriptors and the message that come over a connection; None if nothing is asked for."""
    asked, given, _, _ = socket.recv_fds(control, 1, 4)
    if not asked:
        return None
    control.setblocking(True)
    with Connection(os.dup(control.fileno())) as asking:
        try:
            return given, json.loads(asking.recv_bytes(REQUEST_BYTES))
        except EOFError:  # who asked is gone
            return None


def do_asked(do: Do, given: Sequence[int], message: Mapping[str, Any]) -> None:
    """Be in the place of the one who asks, have their streams, and do what was requested."""
    connection, place = Connection(given[0]), message["place"]
    for number, stream in enumerate(given[1:]):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(place["environment"])
    os.chdir(place["folder"])
    os.sched_setaffinity(0, place["cores"])
    os.umask(place["umask"])
    for folder in place["folders"]:
        find_modules_in(folder)
    do(connection, {**message["request"], "host": place["pid"]})


def main(arguments: list[str]) -> None:
    """Detach from who started this, get ready, and stand by."""
    if os.fork():
        os._exit(0)
    number, place, places, entry, *rest = arguments
    sys.path[:] = json.loads(places)
    module, _, name = entry.partition(":")
    gc.disable()  # what is imported stays: torch takes 1.0 s of CPU time then, and 1.3 with it looked through
    idle = IDLE_SECONDS
    try:
        ready: Ready = getattr(import_module(module), name)(*rest)
    except NotReadyError as error:
        ready, idle = error.instead, 0.0  # who comes next starts another, and finds what has been installed since
    gc.freeze()
    gc.enable()
    listener = socket.socket(fileno=int(number))
    listener.listen()  # whoever connects from now on is told this process's number
    do, more = ready if isinstance(ready, tuple) else (ready, None)
    stand_by(listener, Path(place), do, idle, more)


if __name__ == "__main__":
    main(sys.argv[1:])
