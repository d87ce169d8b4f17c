"""A session ahead: a measuring process that has a GPU before it is asked for.

A process gets a GPU, and what any problem needs in it, in 0.4 to 0.5 s (`experiments/results/wall-time.md`). So where a
tuning has its answer, another session is forked, which does that for the next one, and waits for a minute. It has run
nothing but that: no kernel of a search has been loaded there.

Two processes wait. One holds the place: it listens, and has nothing of the GPU. The other is its child and has the GPU.
The session goes to whoever comes first, if the circumstances are those of the one who asked that it be held: the same
device, sources, environment, cores and folders of modules. Whoever comes with others has it end, so that it is in
nobody's way. Those who wait know of the environment what imports and the GPU's libraries read, and a hash of it all.
"""

import hashlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tilescout.search.build.standby import (
    HELD,
    HELD_SECONDS,
    MEASURING,
    Do,
    Session,
    StandbyError,
    alone,
    answers,
    ask,
    connection_to,
    leave,
    open_session,
    peer_of,
    place_of,
    read_by_imports,
    send_asked,
)
from tilescout.search.build.standing import do_asked, forked, received, tell_end

_SECONDS = 5.0  # in which whoever connects has asked, and hears whether the session is theirs: some milliseconds
_GIVEN = b"y"
_OF_A_COMMAND = {"_", "OLDPWD", "PWD", "SHLVL"}
"""Variables that change from one command to the next, and that no session reads."""

_OF_A_GPU = ("CUBLAS", "CUDA_VISIBLE_DEVICES", "CUDNN")
"""Beginnings of the variables that a process reads as it gets a GPU, beside those that imports read."""


def measuring_session(
    device: str, output: int, at_once: bool = False, place: Mapping[str, Any] | None = None
) -> Session:
    """A session that measures on a device: the one that is held for it, else one that is forked.

    Parameters
    ----------
    device
        As torch calls it.
    output
        File descriptor that it writes what it prints to.
    at_once
        Have it get the device at once, and not when it is told to.
    place
        See `open_session`.

    Raises
    ------
    StandbyError
        If it can't be had.
    """
    request = {"device": device, "at_once": at_once}
    return _held(request, output, place) or open_session(MEASURING, request, output, place)


def hold_session(device: str, place: Mapping[str, Any]) -> None:
    """Have a session get a device, for whoever measures next; nothing is waited for. One is held at most.

    Parameters
    ----------
    device
        As torch calls it.
    place
        The circumstances in which it is going to be asked for, as `tilescout.search.build.standby.place_here` told
        them: what a command imports may change its environment.
    """
    environment = place["environment"]
    read = {name: text for name, text in environment.items() if name.startswith(_OF_A_GPU)}
    known = {**place, "environment": {**read_by_imports(environment), **read}}  # no secret outlives its command
    with suppress(OSError, StandbyError):
        request = {"device": device, "socket": str(_place()), "circumstances": circumstances(device, place)}
        open_session(MEASURING, request, place=known).leave()


def _place() -> Path:
    """The socket of whoever holds a session; raises as `place_of` does."""
    place = place_of(MEASURING)
    return place.with_name(f"{place.stem}{HELD}.socket")


def _held(request: Mapping[str, Any], output: int, place: Mapping[str, Any] | None) -> Session | None:
    """The session that is held, if there is one that fits."""
    try:
        control = connection_to(_place())
        with open(os.devnull, "r+b") as nothing:
            session = ask(control, request, (nothing.fileno(), output, output), place)
    except (OSError, StandbyError):  # there is none, or it has just ended
        return None
    with suppress(OSError):
        control.settimeout(_SECONDS)
        if control.recv(len(_GIVEN)) == _GIVEN:
            control.settimeout(None)
            return session
    session.connection.close()
    control.close()
    return None


def hold(place: Path, mine: str, prepare: Callable[[], Do | None], seconds: float = HELD_SECONDS) -> None:
    """Hold a session until somebody asks for it, and see to it until it ends.

    Parameters
    ----------
    place
        Where to listen.
    mine
        The `circumstances` in which it may be asked for.
    prepare
        Gets ready in the session's process, and returns what the session does; None if nothing is to be held.
    seconds
        How long to wait for somebody.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with alone(place.parent):
            if place.exists() and answers(place):
                return  # one is held already
            leave(place)
            listener.bind(str(place))
            listener.listen()
        try:
            holder = _Holder(listener, prepare)
            taken = holder.wait(mine, time.monotonic() + seconds)
        finally:
            with alone(place.parent):
                leave(place)
    if taken is not None:
        holder.see_to(taken)


class _UnfitError(Exception):
    """The session that is held was made ready for others than the one who asks."""


class _Holder:
    """The session that is held, as the process that holds it sees it.

    Parameters
    ----------
    listener
        The socket that the session has nothing to do with.
    prepare
        See `hold`.
    """

    def __init__(self, listener: socket.socket, prepare: Callable[[], Do | None]) -> None:
        self._listener = listener
        self._passing, theirs = socket.socketpair()
        with theirs:
            self._process, self._pid = forked(partial(self._be_held, theirs, prepare))

    def _be_held(self, passed: socket.socket, prepare: Callable[[], Do | None]) -> None:
        """Do what the session's process does."""
        self._listener.close()
        self._passing.close()
        do = prepare()
        if do is None or (asked := received(passed)) is None:
            return  # nobody came
        passed.close()
        do_asked(do, *asked)

    def wait(self, mine: str, until: float) -> socket.socket | None:
        """Wait for somebody to whom the session is given, and return their control of it; None if nobody comes."""
        polled = select.poll()
        for each in (self._listener.fileno(), self._process):
            polled.register(each, select.POLLIN)
        while (left := until - time.monotonic()) > 0:
            ready = dict(polled.poll(left * 1000))
            if self._process in ready:  # it could not get the device
                return None
            try:
                if ready and (came := self._asked(mine)) is not None:
                    return came
            except _UnfitError:
                return None
        return None

    def _asked(self, mine: str) -> socket.socket | None:
        """Take a connection, and give the session to whoever asks for it there; None if nobody does.

        Raises
        ------
        _UnfitError
            If it is not what they need.
        """
        control, _ = self._listener.accept()
        given: list[int] = []
        try:
            control.settimeout(_SECONDS)
            if peer_of(control)[1] != os.geteuid() or (asked := received(control)) is None:
                control.close()
                return None  # they only looked whether anybody answers
            given, message = asked
            if circumstances(message["request"]["device"], message["place"]) != mine:
                raise _UnfitError
            send_asked(self._passing, given, message)
            control.sendall(_GIVEN)
            control.setblocking(True)
        except (OSError, EOFError, ValueError):  # they are gone, or have waited for too long
            control.close()
            return None
        finally:
            for each in given:
                os.close(each)
        return control

    def see_to(self, control: socket.socket) -> None:
        """Have the session killed when whoever has it wants that, or is gone; tell them how it ended."""
        polled = select.poll()
        polled.register(self._process, select.POLLIN)
        polled.register(control, select.POLLRDHUP)
        if self._process not in dict(polled.poll()):
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        tell_end(self._pid, control)


def circumstances(device: str, place: Mapping[str, Any]) -> str:
    """A name for a device and a place, as far as a session that has the device already is right for no others."""
    environment = sorted((name, text) for name, text in place["environment"].items() if name not in _OF_A_COMMAND)
    found = [device, environment, place["cores"], place["folders"]]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()
