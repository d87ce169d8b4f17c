"""Log studies from a process that stands by: it has imported MLflow, and reads the studies where they are stored.

A search that logs by itself imports MLflow, Matplotlib and scikit-learn: 6 to 12 s on an H200 host behind the answer
(`experiments/results/wall-time.md`). What is logged is in the study's journal before: nothing is lost with the process.
"""

import json
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tilescout.search.build.standby import Standby, StandbyError, answers, can_stand_by, open_session, place_of
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tracking.standing.unlogged import clear, is_any_under_way, mark
from tilescout.search.tracking.suite import SuiteInfo
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.templates import KernelTemplate, comes_with_package

_LOG = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.5
"""Seconds behind the answer for which a process that logs is waited for that has not begun. One that has to start
imports MLflow for 3 to 4 s; it then goes on alone."""

_PACE = 0.1  # seconds between two looks at what is under way

_STANDBY = Standby("tilescout.search.tracking.standing.desk:ready_to_log")


def standing_logger(
    uri: str, artifact_root: Path | None, place: Path | str, template: KernelTemplate
) -> "StandingLogger | None":
    """A session of the process that logs; None where it could not read what is searched, or no process can stand by.

    It reads journals of the kernels that come with this package. A warning of the logger says why none can stand by.

    Parameters
    ----------
    uri, artifact_root
        See `MlflowTracker`.
    place
        Where the studies are: a folder, or the URL of a database.
    template
        What is searched.
    """
    if "://" in str(place) or not (can_stand_by() and comes_with_package(template)):
        return None
    try:
        return StandingLogger(uri, artifact_root, Path(place))
    except StandbyError as error:
        _LOG.warning("%s: this process imports MLflow", error)
        return None


def wait_for_what_is_under_way(place: Path | str) -> None:
    """Wait for the studies of a folder that a process logs alone, before a search is resumed that may be one of them.

    Until they have arrived, or are given up, a study does not name its run in MLflow, and a search that went on with it
    would begin another one. Where no process that logs stands by, nothing is waited for.
    """
    if not (is_any_under_way(place) and can_stand_by() and _stands_by()):
        return
    _LOG.info("waiting until the last search is logged to MLflow, so that this one goes on with its run")
    while is_any_under_way(place):
        time.sleep(_PACE)


def _stands_by() -> bool:
    """Whether a process that logs stands by, or gets ready to."""
    try:
        socket = place_of(_STANDBY)
    except StandbyError:
        return False
    return socket.exists() and answers(socket)


class StandingLogger(Closing):
    """A session of the process that logs, for the studies of one command.

    Parameters
    ----------
    uri, artifact_root
        See `MlflowTracker`.
    place
        The folder of the studies' journals.

    Raises
    ------
    StandbyError
        If no process can stand by.
    """

    def __init__(self, uri: str, artifact_root: Path | None, place: Path) -> None:
        root = str(artifact_root) if artifact_root is not None else None
        self.place = place
        self._sent = self._heard = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._left = False
        self._session = open_session(_STANDBY, {"uri": uri, "root": root, "place": str(place.absolute())})
        self._sending = threading.Lock()
        self._hearing = threading.Condition()
        self._is_polled = False  # whether somebody waits for the next answer, and hears it for all

    def study(self, name: str, run_id: str | None) -> "StandingTracker":
        """A tracker of the study of this name, which `run_id` continues; it belongs to the suite, where one was begun.

        Raises
        ------
        StoreError
            If MLflow's store can't be opened or written.
        """
        return StandingTracker(self, name, run_id)

    def suite(self, info: SuiteInfo, resume: bool) -> "StandingSuite":
        """Begin a suite, as `SuiteRun` does, to which the studies belong from now on; raises as `study` does."""
        return StandingSuite(self, info, resume)

    def send(self, what: str, **about: Any) -> int:
        """Have something done, and wait for nothing; the number by which it is asked for with `answer`.

        Raises
        ------
        StoreError
            If the process ended.
        """
        with self._sending:
            try:
                self._session.connection.send_bytes(json.dumps({"what": what, **about}).encode())
            except OSError as error:
                raise _ended(error) from error
            self._sent += 1
            return self._sent

    def answer(self, number: int, seconds: float | None = None) -> dict[str, Any] | None:
        """The answer to what was sent, waited for so long or, with None, until it is there; None if it is not yet.

        Raises
        ------
        StoreError
            If it can't be done, or the process ended.
        """
        until = time.monotonic() + (seconds or 0.0)
        with self._hearing:
            while self._heard < number:
                left = None if seconds is None else max(0.0, until - time.monotonic())
                if not (self._hearing.wait(left) if self._is_polled else self._hear(left)):
                    return None
            answer = self._answers[number]  # it is kept: whoever asks again is told the same
        if "error" in answer:
            raise StoreError(answer["error"])
        return answer

    def _hear(self, seconds: float | None) -> bool:
        """Wait for the next answer, whoever's it is, while others ask for theirs; whether there is one in time."""
        self._is_polled = True
        self._hearing.release()
        try:
            told = self._session.connection.recv_bytes() if self._session.connection.poll(seconds) else None
        except (OSError, EOFError) as error:
            raise _ended(error) from error
        finally:
            self._hearing.acquire()
            self._is_polled = False
            self._hearing.notify_all()  # also where there is none: another goes on waiting for it
        if told is not None:
            self._heard += 1
            self._answers[self._heard] = json.loads(told)
        return told is not None

    @property
    def has_begun(self) -> bool:
        """Whether it has answered anything."""
        return self._heard > 0

    def ask(self, what: str, **about: Any) -> dict[str, Any]:
        """Have something done, and wait until it is; raises as `answer` does."""
        answer = self.answer(self.send(what, **about))
        assert answer is not None
        return answer

    def go_on_alone(self) -> None:
        """Have it do all that it was sent, also when this process has ended."""
        self._left = True

    def tell(self, **about: Any) -> None:
        """Let it know of trials. If it ended, the next that is asked for says so."""
        with self._sending, suppress(OSError):
            self._session.connection.send_bytes(json.dumps({"what": "tell", **about}).encode())

    def close(self) -> None:
        """End the session, unless it goes on alone."""
        if self._left:
            self._session.leave()
            return
        self._session.connection.close()
        self._session.kill()
        self._session.wait()


def _ended(error: Exception) -> StoreError:
    return StoreError(f"the process that logs to MLflow ended ({one_line(error) or 'it was killed'})")


class StandingTracker:
    """A tracker whose study is read and logged by the process that stands by; see `Tracker` of the tuning room.

    It tells that process the indices of the configurations, which the study does not hold. Where the process has not
    begun when the result is there, it goes on alone: a mark beside the study tells so until all has arrived.
    """

    def __init__(self, logger: StandingLogger, name: str, run_id: str | None) -> None:
        self._logger, self._name = logger, name
        clear(logger.place, name)
        self._number = logger.send("begin", study=name, run_id=run_id)
        self._begun: dict[str, Any] | None = None
        self._left = False

    @property
    def run_id(self) -> str:
        """See `Tracker`; empty before the process has begun."""
        return str(self._about(0.0).get("run_id", ""))

    @property
    def page(self) -> str:
        """See `Tracker`; empty where the process has not begun with anything soon."""
        return str(self._about(None if self._logger.has_begun else PATIENCE_SECONDS).get("page", ""))

    def _about(self, seconds: float | None) -> dict[str, Any]:
        if self._begun is None:
            self._begun = self._logger.answer(self._number, seconds)
        return self._begun or {}

    def catch_up(self, trials: Iterable[TrialRecord]) -> None:
        """See `Tracker`."""
        self._logger.tell(study=self._name, indices={trial.number: trial.index for trial in trials})

    def log(self, trial: TrialRecord) -> None:
        """See `Tracker`."""
        self.catch_up([trial])

    def note(self, trial: TrialRecord) -> None:
        """See `Tracker`; a journal has one tuner."""
        self.catch_up([trial])

    def adopt(self, trials: Iterable[TrialRecord]) -> None:
        """See `Tracker`."""
        self.catch_up(trials)

    def finish(self, result: StudyResult) -> None:
        """Have all that is in the study logged, and the result, and wait for it unless the process has not begun.

        Raises
        ------
        StoreError
            If something did not arrive.
        """
        indices = {trial.number: trial.index for trial in result.trials}
        self._left = self._begun is None
        if self._left:
            mark(self._logger.place, self._name)
            self._logger.go_on_alone()
        number = self._logger.send("finish", study=self._name, indices=indices, wall=dict(result.wall), left=self._left)
        if not self._left:
            self._logger.answer(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._left:
            return
        try:
            self._logger.ask("end", study=self._name, status="FAILED" if isinstance(error, Exception) else "KILLED")
        except StoreError as failure:
            if error is not None:  # else `finish` had all logged, or has said why not
                error.add_note(str(failure))


class StandingSuite:
    """The run of a suite, logged by the process that stands by; see `SuiteRun`."""

    def __init__(self, logger: StandingLogger, info: SuiteInfo, resume: bool) -> None:
        self._logger = logger
        begun = logger.ask("begin a suite", info=asdict(info), resume=resume)
        self.run_id, self.page = begun["run_id"], begun["page"]

    def log(self, results: Sequence[StudyResult]) -> None:
        """See `SuiteRun`."""
        self._logger.ask("log a suite", studies=[result.info.name for result in results])

    def finish(self, results: Sequence[StudyResult]) -> None:
        """See `SuiteRun`."""
        self._logger.ask("finish a suite", studies=[result.info.name for result in results])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(StoreError):
            self._logger.ask("end a suite", failed=isinstance(error, Exception))
