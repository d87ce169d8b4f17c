"""Programs as sessions of a process that stands by: what they import is there when they are called.

A program of Python that imports for a second is called by a small one, which does nothing but ask for a session. That
has the small one's arguments, streams, folder and environment, and ends with it. Ctrl-C and Ctrl-Z, which a terminal
sends to the small one alone, are passed on.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from tilescout.search.build.standby import Do, Standby, can_stand_by, open_ready

_GO = b"go"
_ANSWER_SECONDS = 5.0  # in which a process that is ready has forked: some milliseconds, where memory is not short
_LONGEST_NUMBER = 20
_OWN_FILES = ("/dev/fd/", "/proc/self/")  # a shell names what it has open so: `--json >(jq .best)`


def run_ready(standby: Standby, arguments: Sequence[str], heeds: bool) -> int | None:
    """Run a program as a session of a process that is ready for it.

    Parameters
    ----------
    standby
        Its entry returns what `program` does.
    arguments
        Those of the program, its name the first.
    heeds
        Whether it heeds Ctrl-C; `nohup` and the like have it ignored.

    Returns
    -------
    int or None
        Its exit code, as a shell tells it: 128 and the number of the signal that ended it. None if nothing was run: no
        process is ready, or the program would not be what was started here (a debugger runs it, Python has options, a
        stream is closed, an argument names a file that this process alone has open).
    """
    if not (can_stand_by() and is_ordinary(sys.orig_argv, len(sys.argv)) and _has_streams()):
        return None
    if any(own in each for own in _OWN_FILES for each in arguments):
        return None
    package = getattr(sys.modules["__main__"], "__package__", None)  # by which it calls itself in messages
    session = open_ready(standby, {"arguments": list(arguments), "package": package, "heeds": heeds}, (0, 1, 2))
    if session is None:
        return None
    try:
        if not session.connection.poll(_ANSWER_SECONDS):
            raise TimeoutError
        number = int(session.connection.recv_bytes(_LONGEST_NUMBER))
        with _signals_passed_on(number) if heeds else nullcontext():
            session.connection.send_bytes(_GO)
            code = session.wait()
    except (OSError, EOFError):  # it has not begun: it does that once it hears so
        session.kill()
        return None
    return code if code >= 0 else 128 - code


def program(main: Callable[[], object]) -> Do:
    """The work of a session that runs a program.

    Parameters
    ----------
    main
        The program. It finds its arguments in `sys.argv`, and may raise `SystemExit`.
    """

    def do(connection: Connection, request: Mapping[str, Any]) -> None:
        connection.send_bytes(str(os.getpid()).encode())
        try:
            connection.recv_bytes(len(_GO))
        except (OSError, EOFError):  # nobody waits for it
            return
        _open_streams()
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGINT, signal.default_int_handler if request["heeds"] else signal.SIG_IGN)
        sys.argv[:] = request["arguments"]
        sys.modules["__main__"] = ModuleType("__main__")  # what it spawns has nothing to do with what stands by
        sys.modules["__main__"].__package__ = request["package"]
        try:
            main()
        finally:
            if request["heeds"]:  # what is left is the end of Python, which would show a traceback
                signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit()

    return do


def is_ordinary(command: Sequence[str], count: int) -> bool:
    """Whether a command of Python is a script, or a module without an option but ``-P``, and its `count` - 1 arguments.

    A process that stands by has no other options. It has the variables that stand for them.
    """
    begun = list(command[1 : len(command) - count + 1])
    if begun[:1] == ["-P"]:
        del begun[0]
    return len(begun) == (2 if begun[:1] == ["-m"] else 1) and not begun[-1].startswith("-")


def _has_streams() -> bool:
    """Whether no standard stream is closed: the next file that is opened would be in its place."""
    try:
        return all(os.fstat(number) for number in range(3))
    except OSError:
        return False


@contextmanager
def _signals_passed_on(number: int) -> Iterator[None]:
    """Have a session, which leads a group of processes, hear of Ctrl-C, and stop and go on with this process."""

    def interrupt(signal_number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(number, signal_number)

    def stop(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(number, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)  # until the shell has it go on
        with suppress(ProcessLookupError):
            os.killpg(number, signal.SIGCONT)

    former = {each: signal.signal(each, act) for each, act in ((signal.SIGINT, interrupt), (signal.SIGTSTP, stop))}
    try:
        yield
    finally:
        for each, act in former.items():
            signal.signal(each, act)


def _open_streams() -> None:
    """Have Python's streams be of the files that took the place of those it was started with."""
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        former = getattr(sys, name)
        by_lines = former.line_buffering or former.write_through  # a terminal's are in any case
        stream = open(number, mode, 1 if by_lines else -1, former.encoding, former.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
