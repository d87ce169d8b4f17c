"""Several callers that wait for one piece of work, each with a future of its own."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


def settle(waiting: "Future[Result]", work: "Future[Any]", outcome: Callable[[], Result]) -> None:
    """Settle a future when the work that it waits for is done.

    Parameters
    ----------
    waiting
        It is cancelled if the work was; if it was cancelled itself, it stays so.
    work
        The work.
    outcome
        Gives the result; what it raises is the future's.
    """
    if work.cancelled():
        waiting.cancel()
    if not waiting.set_running_or_notify_cancel():
        return
    try:
        waiting.set_result(outcome())
    except Exception as error:  # of whoever asks for the result
        waiting.set_exception(error)


class Shared(Generic[Result]):
    """Work whose result several futures wait for; once all of them are cancelled, the work is.

    Parameters
    ----------
    work
        The future of the work.
    """

    def __init__(self, work: "Future[Result]") -> None:
        self._work = work
        self._waiting: list[Future[Result]] = []
        self._lock = threading.Lock()
        self._begun = self._given_up = False

    def wait(self) -> "Future[Result] | None":
        """A future that is settled as the work is, and can be cancelled alone; None if all others have given it up."""
        future: Future[Result] = Future()
        with self._lock:
            if self._given_up:
                return None
            self._waiting.append(future)
            begun, self._begun = self._begun, True
        future.add_done_callback(self._left)
        if not begun:
            self._work.add_done_callback(self._settle)
        elif self._work.done():
            self._settle(self._work)
        return future

    def give_up(self) -> None:
        """Cancel the work, whoever waits for it: their futures are cancelled, too."""
        with self._lock:
            self._given_up = True
        self._work.cancel()

    def _left(self, future: "Future[Result]") -> None:
        if not future.cancelled():
            return
        with self._lock:
            if future in self._waiting:
                self._waiting.remove(future)
            self._given_up = not self._waiting
        if self._given_up:
            self._work.cancel()

    def _settle(self, work: "Future[Result]") -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            settle(future, work, work.result)
