"""Whom the trials of a study are shown to while it is searched."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

import optuna

from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.studies.sharing import Tuner
from tilescout.search.studies.trials import TRACKING_RUN, finished_trials
from tilescout.search.tuning.trackers import Tracker
from tilescout.spaces.errors import StoreError
from tilescout.spaces.space import SearchSpace


class Audience:
    """The tracker of a study, and whoever else is told of its trials. Use it as a context manager.

    The tracker delivers the trials of its own tuner and of those that this one is the heir of; of others it learns. The
    run that it makes is named in the study, so that a search that resumes it goes on with that run.

    Parameters
    ----------
    study
        What is searched.
    tuner
        Says whose a trial is.
    tracker
        Gets the trials.
    run_id
        The tracker's run, as the study names it; None if it names none.
    on_trial
        Called with every trial, too.
    """

    def __init__(
        self,
        study: optuna.Study,
        tuner: Tuner,
        tracker: Tracker,
        run_id: str | None,
        on_trial: Callable[[TrialRecord], None],
    ) -> None:
        self._study, self._tuner, self._tracker, self._on_trial = study, tuner, tracker, on_trial
        self._run_id = run_id
        self._shown: list[TrialRecord] = []

    def __enter__(self) -> Self:
        self._tracker.__enter__()
        self._name_run()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._tracker.__exit__(kind, error, trace)
        finally:  # the run of a search that was cut short may have been made just now
            with suppress(StoreError):
                self._name_run()

    def begin(self, before: Sequence[TrialRecord]) -> None:
        """Show the trials of earlier runs, and deliver those that never arrived."""
        self._tracker.catch_up(self._own(before))
        self._tracker.adopt(self._inherited(before))
        for trial in before:
            self.show(trial)

    def show(self, trial: TrialRecord) -> None:
        """Show a trial that has finished, here or at another tuner."""
        self._shown.append(trial)
        self._name_run()
        (self._tracker.log if self._tuner.owns(trial.number) else self._tracker.note)(trial)
        self._on_trial(trial)

    def cut_short(self, space: SearchSpace) -> Sequence[TrialRecord]:
        """All finished trials of a search that was interrupted; they are delivered."""
        try:
            found = finished_trials(self._study, space)
        except StoreError:  # the database is lost
            found = self._shown
        self._tracker.catch_up(self._own(found))  # the interrupt may have hit one's delivery
        return found

    def settle(self, trials: Sequence[TrialRecord]) -> None:
        """At the end, take over the trials of tuners that are gone, and learn of those of others."""
        self._tuner.look()
        self._tracker.adopt(self._inherited(trials))
        for trial in trials:
            if not self._tuner.owns(trial.number):
                self._tracker.note(trial)

    def page(self) -> str:
        """Where the tracker shows the study; see `Tracker`."""
        page = self._tracker.page
        self._name_run()
        return page

    def finish(self, result: StudyResult) -> None:
        """Deliver everything, and the result."""
        self._tracker.finish(result)

    def _own(self, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        return [trial for trial in trials if self._tuner.owns(trial.number)]

    def _inherited(self, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
        return [trial for trial in trials if self._tuner.inherits(trial.number)]

    def _name_run(self) -> None:
        """Name the tracker's run in the study, once there is one: it may be made beside the search."""
        if self._tracker.run_id and self._tracker.run_id != self._run_id:
            self._run_id = self._tracker.run_id
            self._study.set_user_attr(TRACKING_RUN, self._run_id)
