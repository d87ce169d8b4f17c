"""Go on with a search whose database was lost for a while: what it would store is stored when the database is back."""

import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage

from tilescout.spaces.errors import ResumableError, StoreError, one_line

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0  # half a heartbeat of a tuner: one that is back late would be taken for dead
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class Reconnection:
    """Repeats what failed because a database was lost, until the database is back.

    Threads may share it: one outage is told once.

    Parameters
    ----------
    name
        The database, for people.
    seconds
        How long an outage may last.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds
        self._lost_since: float | None = None
        self._here = threading.local()  # whether this thread is in `insist` or `once`

    def insist(self, action: Callable[[], _T]) -> _T:
        """The result of `action`, which is called again from its start as long as the database can't be reached.

        Raises
        ------
        ResumableError
            If the database is not back in time.
        """
        if getattr(self._here, "once", False):
            return action()
        pause = _FIRST_PAUSE
        try:
            while True:
                try:
                    with self.once():
                        result = action()
                    break
                except Exception as error:
                    if not _is_lost(error):
                        raise
                    self._wait(pause, error)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except KeyboardInterrupt:
            self.give_up()
            raise
        if self._lost_since is not None:
            self._lost_since = None
            _LOG.warning("the database %s is back", self._name)
        return result

    def give_up(self) -> None:
        """Wait for the database no longer, in any thread: who ends a search does not want to."""
        self._seconds = 0.0

    @contextmanager
    def once(self) -> Iterator[None]:
        """Have `insist` repeat nothing in this thread: for parts of an action that is repeated as a whole, or not."""
        before = getattr(self._here, "once", False)
        self._here.once = True
        try:
            yield
        finally:
            self._here.once = before

    def _wait(self, pause: float, error: Exception) -> None:
        cause = _cause(error)
        reason = one_line(getattr(cause, "orig", cause), 200)  # without the statement
        since = self._lost_since  # of this outage, though another thread may find the database back meanwhile
        if since is None:
            since = self._lost_since = time.monotonic()
            if self._seconds > 0:
                _LOG.warning(
                    "lost the database %s (%s): trying again for %.0f s; what is measured meanwhile is stored then",
                    self._name,
                    reason,
                    self._seconds,
                )
        if time.monotonic() - since >= self._seconds:
            self._seconds = 0.0  # nothing that is left to do waits again
            raise ResumableError(
                f"the database {self._name} failed ({reason}); what is finished is kept there, go on"
            ) from error
        time.sleep(pause)


def reconnecting(storage: BaseStorage, reconnection: Reconnection) -> BaseStorage:
    """A storage of optuna, each call of which is repeated while its database is lost.

    A call may be repeated although the database had done it, and was lost before it answered. All are harmless then: a
    trial that was made twice is in flight without a tuner, and is taken over; one that is finished already says so.
    """

    def repeated(name: str) -> Callable[..., Any]:
        def call(_: BaseStorage, *arguments: Any, **named: Any) -> Any:
            return reconnection.insist(lambda: getattr(storage, name)(*arguments, **named))

        return call

    methods = [name for name, _ in inspect.getmembers(BaseStorage, inspect.isfunction) if not name.startswith("_")]
    made: BaseStorage = type("ReconnectingStorage", (BaseStorage,), {name: repeated(name) for name in methods})()
    return made


def _cause(error: BaseException) -> BaseException:
    """The error as the database told it: optuna and we raise errors of our own from it."""
    from sqlalchemy.exc import SQLAlchemyError

    while not isinstance(error, SQLAlchemyError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_lost(error: Exception) -> bool:
    """Whether a database could not be reached or answer; a statement that it refused would be refused again."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError

    cause = _cause(error)
    if not isinstance(error, StorageInternalError | StoreError | SQLAlchemyError):
        return False
    # The third: optuna asks again in the transaction that was lost.
    return isinstance(cause, OperationalError | InterfaceError | PendingRollbackError) or (
        isinstance(cause, DBAPIError) and cause.connection_invalidated
    )
