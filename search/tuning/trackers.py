"""Trackers show trials to people while a search runs; one may be made beside the search."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Protocol, Self

from tilescout.search.studies.records import StudyResult, TrialRecord


class Tracker(Protocol):
    """Shows trials to people while a search runs, for example in MLflow."""

    @property
    def run_id(self) -> str:
        """Names the study's run, so that a resumed search continues it."""

    @property
    def page(self) -> str:
        """Where the study is shown, relative to the server; empty if nowhere."""

    def catch_up(self, trials: Iterable[TrialRecord]) -> None:
        """Deliver those trials of earlier runs that never arrived."""

    def log(self, trial: TrialRecord) -> None:
        """Take a finished trial; returns at once."""

    def note(self, trial: TrialRecord) -> None:
        """Learn of a trial that another tuner of the study delivers."""

    def adopt(self, trials: Iterable[TrialRecord]) -> None:
        """Deliver those trials of a tuner that is gone which it did not deliver; they may have been noted."""

    def finish(self, result: StudyResult) -> None:
        """Deliver everything, and the result."""

    def __enter__(self) -> Self:
        """Return the tracker."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Deliver what was logged, also without a result."""


class NoTracker:
    """Shows nothing."""

    run_id = page = ""

    def catch_up(self, trials: Iterable[TrialRecord]) -> None:
        """Ignore earlier trials."""

    def log(self, trial: TrialRecord) -> None:
        """Ignore a trial."""

    def note(self, trial: TrialRecord) -> None:
        """Ignore a trial of another tuner."""

    def adopt(self, trials: Iterable[TrialRecord]) -> None:
        """Ignore the trials of a tuner that is gone."""

    def finish(self, result: StudyResult) -> None:
        """Ignore the result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class LateTracker:
    """Has a tracker made in a thread, and hands it what is logged as soon as it is there.

    Opening a store takes seconds that a search has better use for. Whatever stops the tracker from being made is raised
    by the next call that logs something, by `finish`, or at the end of the context.

    Parameters
    ----------
    make
        Makes the tracker.
    quiet
        Seconds after which it is made, unless something waits for it: the thread holds the interpreter's lock, and
        whatever else this process does takes longer meanwhile.
    """

    def __init__(self, make: Callable[[], Tracker], quiet: float = 0.0) -> None:
        self._quiet, self._wanted = quiet, threading.Event()
        self._made: Future[Tracker] = Future()
        self._waiting: list[Callable[[Tracker], None]] = []
        self._raised = False
        threading.Thread(target=self._make, args=(make,), name="tracker", daemon=True).start()

    @property
    def run_id(self) -> str:
        """As the tracker names the run; empty while there is no tracker."""
        return self._made.result().run_id if self._made.done() and self._made.exception() is None else ""

    @property
    def page(self) -> str:
        """See `Tracker`; waits for it."""
        return self._tracker().page

    def catch_up(self, trials: Iterable[TrialRecord]) -> None:
        """See `Tracker`."""
        kept = list(trials)
        self._hand(lambda tracker: tracker.catch_up(kept))

    def log(self, trial: TrialRecord) -> None:
        """See `Tracker`."""
        self._hand(lambda tracker: tracker.log(trial))

    def note(self, trial: TrialRecord) -> None:
        """See `Tracker`."""
        self._hand(lambda tracker: tracker.note(trial))

    def adopt(self, trials: Iterable[TrialRecord]) -> None:
        """See `Tracker`."""
        kept = list(trials)
        self._hand(lambda tracker: tracker.adopt(kept))

    def finish(self, result: StudyResult) -> None:
        """See `Tracker`; waits for it."""
        self._tracker().finish(result)

    def _make(self, make: Callable[[], Tracker]) -> None:
        self._wanted.wait(self._quiet)
        try:
            self._made.set_result(make().__enter__())
        except BaseException as error:  # whoever logs hears of it
            self._made.set_exception(error)

    def _hand(self, call: Callable[[Tracker], None]) -> None:
        self._waiting.append(call)
        if self._made.done():
            self._tracker()

    def _tracker(self) -> Tracker:
        """The tracker, once it is there and has what was logged before."""
        self._wanted.set()
        self._raised = self._made.exception() is not None
        tracker = self._made.result()
        while self._waiting:
            self._waiting.pop(0)(tracker)
        return tracker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wanted.set()
        if (failure := self._made.exception()) is None:
            self._tracker().__exit__(kind, error, trace)
        elif error is None and not self._raised:
            raise failure
