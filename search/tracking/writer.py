"""A thread that runs jobs in order, retries after temporary errors, and reports the jobs that failed."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilescout.search.tracking.store import ERROR_LENGTH
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.texts import some_of

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 5.0  # seconds between attempts; doubles each time
_NAMED = 10  # how many undelivered items a message names


class TrackingError(StoreError):
    """A part of a search did not reach the tracking store.

    Attributes
    ----------
    undelivered
        What did not arrive.
    """

    def __init__(self, undelivered: tuple[str, ...], reason: str) -> None:
        self.undelivered = undelivered
        super().__init__(
            f"not delivered to MLflow: {some_of(undelivered, _NAMED)} ({reason}); "
            "the study itself is safe, resume it to deliver the rest"
        )


@dataclass(frozen=True)
class _Job:
    label: str
    action: Callable[[], None]


class Writer:
    """Runs jobs one after the other in a thread of its own.

    A job that fails for a passing reason is tried again, with growing pauses, before the next one. One that fails for
    good is put aside and named by `drain`. Jobs must therefore bear being run twice.

    Parameters
    ----------
    is_passing
        Whether an error may go away by itself.
    """

    def __init__(self, is_passing: Callable[[Exception], bool]) -> None:
        self._is_passing = is_passing
        self._jobs: deque[_Job] = deque()
        self._refused: list[str] = []
        self._reason = "nothing came back"
        self._settled = 0  # jobs that are done or refused
        self._stopping = False
        self._changed = threading.Condition()
        # A daemon thread: a call that hangs in MLflow must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._work, name="mlflow-writer", daemon=True)
        self._thread.start()

    def put(self, label: str, action: Callable[[], None]) -> None:
        """Queue a job and return at once; `label` names it in errors."""
        with self._changed:
            self._jobs.append(_Job(label, action))
            self._changed.notify_all()

    def drain(self, patience: float) -> None:
        """Wait until everything queued is delivered.

        Parameters
        ----------
        patience
            Seconds without a single delivery after which to give up.

        Raises
        ------
        TrackingError
            If something was not delivered.
        """
        with self._changed:
            while self._jobs:
                settled = self._settled
                if not self._changed.wait_for(partial(self._is_past, settled), patience):
                    break
            undelivered = (*self._refused, *(job.label for job in self._jobs))
            if undelivered:
                raise TrackingError(undelivered, self._reason)

    def stop(self) -> None:
        """End the thread after its current attempt. Queued jobs are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _is_past(self, settled: int) -> bool:
        return self._settled > settled

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopping)
                if self._stopping:
                    return
                job = self._jobs[0]
            refused = self._attempt(job)
            with self._changed:
                if self._stopping:
                    return
                self._jobs.popleft()
                self._settled += 1
                if refused:
                    self._refused.append(job.label)
                self._changed.notify_all()

    def _attempt(self, job: _Job) -> bool:
        """Run a job until it is done (False), refused for good (True) or the thread is told to stop (True)."""
        pause = _FIRST_PAUSE
        while True:
            try:
                job.action()
                return False
            except Exception as error:  # no error may end the thread
                self._reason = one_line(error, ERROR_LENGTH)
                if not self._is_passing(error):
                    return True
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, pause):
                    return True
            pause = min(2 * pause, _LONGEST_PAUSE)
