"""The process that logs, and its sessions: each reads the studies of a command, and writes them to MLflow."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescout.search.build.standby import Do, NotReadyError
from tilescout.search.measure.protocol import Objective
from tilescout.search.studies.journal_folder import SUFFIX, open_study
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyResult
from tilescout.search.studies.trials import TRACKING_RUN
from tilescout.search.tracking.standing.unlogged import clear, mark
from tilescout.search.tracking.store import Opening, importing, quiet_environment, quiet_mlflow
from tilescout.search.tracking.suite import SuiteInfo, SuiteRun
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.faults import described

if TYPE_CHECKING:
    from tilescout.search.tracking.tracker import MlflowTracker

_NICENESS = 10  # as the compilers: the search and what measures go first
_ATTEMPTS = 10  # at writing to a study that a search may still have open
_PACE = 1.0  # seconds after which a study is read again while it is searched; longer where reading takes long
_HEAVY = (
    *("matplotlib.backends.backend_agg", "mlflow.store.tracking.sqlalchemy_store", "optuna.importance._fanova"),
    *("mlflow.system_metrics.system_metrics_monitor", "sklearn.ensemble", "tilescout.search.tracking.tracker"),
)
"""Modules that logging a study imports; none of it connects to anything yet."""


def ready_to_log() -> Do:
    """Get ready to stand by as a process that logs.

    Raises
    ------
    NotReadyError
        If something can't be imported. Sessions then say what.
    """
    os.nice(_NICENESS)
    try:
        with quiet_environment(), importing():
            for module in _HEAVY:
                import_module(module)
    except StoreError as error:
        raise NotReadyError(str(error), partial(_refuse_what_is_asked, str(error))) from error
    return _log_what_is_asked


def _refuse_what_is_asked(why: str, connection: Connection, request: Mapping[str, Any]) -> None:
    _serve(connection, _Refusal(Path(request["place"]), why))


def _log_what_is_asked(connection: Connection, request: Mapping[str, Any]) -> None:
    root, place = Path(request["root"]) if request["root"] is not None else None, Path(request["place"])
    with quiet_mlflow(), Opening(request["uri"]) as opening:
        opening.begin()
        _serve(connection, _Desk(request["uri"], root, place, opening))


def _serve(connection: Connection, desk: "_Desk | _Refusal") -> None:
    """Do what is asked for over a connection, until it is closed."""
    pace = _PACE
    while True:
        if not connection.poll(pace if desk.open else None):
            begun = time.monotonic()
            desk.look()
            pace = max(_PACE, 10 * (time.monotonic() - begun))
            continue
        try:
            asked = json.loads(connection.recv_bytes())
        except (OSError, EOFError):
            return  # whoever searched is gone: a resumed search delivers the rest
        if asked["what"] == "tell":
            desk.tell(asked["study"], asked["indices"])
            continue
        try:
            answer = desk.do(**asked)
        except Exception as error:  # whatever it is: whoever asked is to hear of it
            answer = {"error": str(_told(error))}
        with suppress(OSError):  # whoever asked has gone, and left this to go on alone
            connection.send_bytes(json.dumps(answer).encode())


class _Refusal:
    """Stands in for a desk where nothing can be logged, and says why to whatever is asked."""

    open = False

    def __init__(self, place: Path, why: str) -> None:
        self._place, self._why = place, why

    def do(self, what: str, study: str = "", left: bool = False, **about: Any) -> dict[str, Any]:
        """Refuse it; where nobody waits for the answer, the mark beside the study says why."""
        if left:
            mark(self._place, study, self._why)
        raise StoreError(self._why)

    def tell(self, study: str, indices: Mapping[str, int]) -> None:
        """Ignore it."""

    def look(self) -> None:
        """Log nothing."""


class _Desk:
    """Does what a search asks for, in the process that logs."""

    def __init__(self, uri: str, root: Path | None, place: Path, opening: Opening) -> None:
        self._uri, self._root, self._place, self._opening = uri, root, place, opening
        self._trackers: dict[str, MlflowTracker] = {}
        self._indices: dict[str, dict[int, int]] = {}  # of each study, by the numbers of its trials
        self._suite: SuiteRun | None = None
        self._refused: dict[str, str] = {}  # why studies could not begin

    @property
    def open(self) -> bool:
        """Whether a study is being searched."""
        return bool(self._trackers)

    def do(self, what: str, **about: Any) -> dict[str, Any]:
        """Do what is asked for, and say what came of it."""
        known: dict[str, Callable[..., dict[str, Any]]] = {
            "begin": self._begin,
            "finish": self._finish,
            "end": self._end,
            "begin a suite": self._begin_suite,
            "log a suite": self._log_suite,
            "finish a suite": self._finish_suite,
            "end a suite": self._end_suite,
        }
        return known[what](**about)

    def tell(self, study: str, indices: Mapping[str, int]) -> None:
        """Learn which configurations the trials of a study are of."""
        self._indices.setdefault(study, {}).update({int(number): index for number, index in indices.items()})

    def look(self) -> None:
        """Log what the studies have by now; what can't be read now is read later."""
        for name in self._trackers:
            with suppress(StoreError):
                self._catch_up(name)

    def _catch_up(self, study: str) -> None:
        known, found = self._indices.get(study, {}), read_study(study, self._place).trials
        told = [replace(trial, index=known[trial.number]) for trial in found if trial.number in known]
        self._trackers[study].catch_up(told)

    def _begin(self, study: str, run_id: str | None) -> dict[str, Any]:
        from tilescout.search.tracking.tracker import MlflowTracker

        suite = self._suite.run_id if self._suite is not None else None
        try:
            info = read_study(study, self._place).info
            tracker = MlflowTracker(self._uri, self._root, info, run_id, suite=suite, opening=self._opening)
        except Exception as error:  # whatever MLflow makes of an address
            self._refused[study] = str(_told(error))
            raise
        self._trackers[study] = tracker
        return {"run_id": tracker.run_id, "page": tracker.page}

    def _finish(self, study: str, indices: dict[str, int], wall: dict[str, float], left: bool) -> dict[str, Any]:
        try:
            if study in self._refused:
                raise StoreError(self._refused[study])
            self.tell(study, indices)
            found = replace(read_study(study, self._place), wall=wall)
            if not {trial.number for trial in found.trials} <= self._indices[study].keys():
                self._end(study, "KILLED")
                raise StoreError("another search went on with it before all was logged")
            tracker = self._trackers.pop(study)
            tracker.finish(with_indices(found, self._indices[study]))
            if left:
                self._name_run(study, tracker.run_id)
        except Exception as error:  # of MLflow, or of what draws
            if left and (self._place / f"{study}{SUFFIX}").exists():  # it may have been deleted meanwhile
                mark(self._place, study, one_line(_told(error)))
            raise
        if left:
            clear(self._place, study)
        return {}

    def _name_run(self, study: str, run_id: str) -> None:
        """Have the study name its run, as the search does that waits for it, once that has let the study go."""
        from optuna.samplers import RandomSampler

        for attempt in range(_ATTEMPTS):
            try:
                with open_study(self._place / f"{study}{SUFFIX}", RandomSampler()) as stored:
                    stored.set_user_attr(TRACKING_RUN, run_id)
                return
            except StoreError:
                if attempt == _ATTEMPTS - 1:
                    raise
                time.sleep(_PACE)

    def _end(self, study: str, status: str) -> dict[str, Any]:
        if study in self._trackers:
            with suppress(StoreError):
                self._catch_up(study)
            self._trackers.pop(study).close(status)
        return {}

    def _begin_suite(self, info: dict[str, Any], resume: bool) -> dict[str, Any]:
        about = SuiteInfo(**{**info, "objective": Objective(info["objective"])})
        self._suite = SuiteRun(self._uri, self._root, about, resume, self._opening)
        return {"run_id": self._suite.run_id, "page": self._suite.page}

    def _log_suite(self, studies: list[str]) -> dict[str, Any]:
        assert self._suite is not None
        self._suite.log([read_study(study, self._place) for study in studies])
        return {}

    def _finish_suite(self, studies: list[str]) -> dict[str, Any]:
        assert self._suite is not None
        self._suite.finish([read_study(study, self._place) for study in studies])
        return {}

    def _end_suite(self, failed: bool) -> dict[str, Any]:
        if self._suite is not None:
            suite, self._suite = self._suite, None
            suite.end(failed)
        return {}


def _told(error: Exception) -> StoreError:
    """An error as whoever asked is told it."""
    return error if isinstance(error, StoreError) else StoreError(f"can't log to MLflow: {described(error)}")


def with_indices(result: StudyResult, indices: Mapping[int, int]) -> StudyResult:
    """A result that was read back, whose trials have the numbers of the study for indices, with the space's."""
    trials = [replace(trial, index=indices[trial.number]) for trial in result.trials]
    race = result.race
    if race is not None:
        race = replace(
            race,
            winner=indices[race.winner],
            answer=indices[race.answer],
            ratios={indices[number]: ratio for number, ratio in race.ratios.items()},
            ran={indices[number]: rounds for number, rounds in race.ran.items()},
        )
    return replace(result, trials=trials, race=race)
