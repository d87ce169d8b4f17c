"""A measuring process that is asked for before what measures with it is imported.

A GPU takes some tenths of a second until it computes, and a command takes as long to be imported. So the first thing
that a command does is to ask for a session on the GPU that it is likely to want. Whoever measures then takes it over.
"""

import tempfile
import threading
from contextlib import suppress
from typing import IO, Any

from tilescout.search.build.holding import hold_session, measuring_session
from tilescout.search.build.standby import Session, StandbyError, place_here
from tilescout.spaces.processes import own_folders


class Early(threading.Thread):
    """Asks for a session, in a thread of its own: what stands by may have to be started.

    Attributes
    ----------
    device
        As torch calls it.
    place
        The circumstances in which it is asked for.
    session, log
        The session and the file of what it prints; None where there is none, of which whoever measures tells.
    """

    def __init__(self, device: str) -> None:
        super().__init__(name="early")
        self.device, self.place, self._folders = device, place_here(), own_folders()
        self.session: Session | None = None
        self.log: IO[bytes] | None = None

    def run(self) -> None:
        """Ask for it."""
        with suppress(OSError, StandbyError):
            self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the session
            self.session = measuring_session(self.device, self.log.fileno(), True, self.place)

    def given(self) -> tuple[Session, IO[bytes]] | None:
        """The session and its log, once it is there; None, and it ends, if it would not find the modules of today."""
        self.join()
        if self.session is None or self.log is None:
            return None
        if self._folders != own_folders():  # a template of one's own was found meanwhile
            self.session.kill()
            self.session.connection.close()
            self.log.close()
            return None
        return self.session, self.log


_begun: dict[str, Early] = {}  # by device
_places: dict[str, dict[str, Any]] = {}  # in which they were asked for


def begin(device: str) -> None:
    """Ask for a measuring process on a device, and for its GPU's context at once. Nothing is waited for."""
    _begun[device] = early = Early(device)
    _places[device] = early.place
    early.start()


def hold_for_next() -> None:
    """Have measuring processes get the devices that were asked for, for the next command in the same circumstances.

    Once is enough: whoever calls it again has nothing more held.
    """
    while _places:
        hold_session(*_places.popitem())


def taken(device: str) -> tuple[Session, IO[bytes]] | None:
    """The session that was asked for early, and the file of what it prints; None if there is none for this device.

    It is given away once. One that nobody takes ends with this process.
    """
    early = _begun.pop(device, None)
    return early.given() if early is not None else None
