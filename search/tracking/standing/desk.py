"""The process that logs, and its sessions: each reads the studies of a command, and writes them to MLflow."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescout.search.build.standing import Do
from tilescout.search.measure.protocol import Objective
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyResult
from tilescout.search.tracking.store import Opening, quiet_environment, quiet_mlflow
from tilescout.search.tracking.suite import SuiteInfo, SuiteRun
from tilescout.spaces.errors import StoreError

if TYPE_CHECKING:
    from tilescout.search.tracking.tracker import MlflowTracker

_NICENESS = 10  # as the compilers: the search and what measures go first
_PACE = 1.0  # seconds after which a study is read again while it is searched; longer where reading takes long
_HEAVY = (
    *("matplotlib.backends.backend_agg", "mlflow.store.tracking.sqlalchemy_store", "optuna.importance._fanova"),
    *("mlflow.system_metrics.system_metrics_monitor", "sklearn.ensemble", "tilescout.search.tracking.tracker"),
)
"""Modules that logging a study imports; none of it connects to anything yet."""


def ready_to_log() -> Do:
    """Get ready to stand by as a process that logs."""
    os.nice(_NICENESS)
    with quiet_environment():
        for module in _HEAVY:
            import_module(module)
    return _log_what_is_asked


def _log_what_is_asked(connection: Connection, request: Mapping[str, Any]) -> None:
    root = Path(request["root"]) if request["root"] is not None else None
    with quiet_mlflow(), Opening(request["uri"]) as opening:
        opening.begin()
        desk = _Desk(request["uri"], root, Path(request["place"]), opening)
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
            except StoreError as error:
                answer = {"error": str(error)}
            connection.send_bytes(json.dumps(answer).encode())


class _Desk:
    """Does what a search asks for, in the process that logs."""

    def __init__(self, uri: str, root: Path | None, place: Path, opening: Opening) -> None:
        self._uri, self._root, self._place, self._opening = uri, root, place, opening
        self._trackers: dict[str, MlflowTracker] = {}
        self._indices: dict[str, dict[int, int]] = {}  # of each study, by the numbers of its trials
        self._suite: SuiteRun | None = None

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

        info = read_study(study, self._place).info
        suite = self._suite.run_id if self._suite is not None else None
        tracker = MlflowTracker(self._uri, self._root, info, run_id, suite=suite, opening=self._opening)
        self._trackers[study] = tracker
        return {"run_id": tracker.run_id, "page": tracker.page}

    def _finish(self, study: str, indices: dict[str, int], wall: dict[str, float]) -> dict[str, Any]:
        self.tell(study, indices)
        found = replace(read_study(study, self._place), wall=wall)
        self._trackers.pop(study).finish(with_indices(found, self._indices[study]))
        return {}

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
