"""Studies on disk: an optuna study in a journal file that survives any crash."""

import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import optuna
from optuna.exceptions import OptunaError, UpdateFinishedTrialError
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from tilescout.costmodel.estimator import Expected
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.studies.ledger import all_trials, proposed
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.spaces.errors import MALFORMED, StoreError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace

MEASUREMENT = "measurement"  # the user attribute of a trial that holds its outcome
_EXPECTED = "expected"  # the same that holds what a cost model expected of it
INFO = "info"  # the user attribute of a study that says what it is about, readable without its template
_AGAIN = "again"  # the user attribute of a trial that names the interrupted one whose configuration it tries again
_DAMAGE = (*MALFORMED, AssertionError, OptunaError)  # what optuna raises over records that it did not write
RESULT = "result"  # the user attribute of a study that holds what its last run found


class FileLock(JournalFileOpenLock):
    """A lock that the operating system releases when its holder dies; optuna's own would be waited for 30 s."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        self._file = self._path.open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Journal(JournalFileBackend):
    """A journal that waits for the disk once a trial, when it ends; optuna's own waits for each of 13 records.

    A record that is written survives the death of the process. Waiting for the disk (5 ms where this was measured) is
    for power failures, and takes all earlier records along.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        super().__init__(str(path), lock_obj=lock)
        self._path = path
        self._held = lock

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        content = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        try:
            with self._held, self._path.open("ab", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    # A disk that is nearly full takes a part and says so by the number; the next write then fails.
                    written = 0
                    while written < len(content):
                        written += file.write(content[written:])
                except OSError:
                    file.truncate(end)  # whoever writes next must not go on in the middle of a record
                    raise
                if any("datetime_complete" in log for log in logs):
                    os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"can't write the study {self._path}: {error.strerror}; what is finished is in it, make room and go on "
                "with tune --resume"
            ) from error


def open_storage(path: Path) -> JournalStorage:
    """The journal at `path`, made if it does not exist.

    A record that was cut off at the end of the file, by a full disk or a power failure, is removed.

    Raises
    ------
    StoreError
        If the file can't be written, or is damaged before its last record.
    """
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock:
            _drop_torn_record(path)
        return JournalStorage(_Journal(path, lock))
    except OSError as error:
        raise _unwritable(path, error) from error
    except _DAMAGE as error:
        raise _damaged(path, error) from error


def _damaged(what: object, error: Exception) -> StoreError:
    return StoreError(f"the study {what} is damaged ({one_line(repr(error), 200)}); start a new one without --resume")


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"can't write the study {path}: {error.strerror}; choose another folder with --store")


def _drop_torn_record(path: Path) -> None:
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        file.seek(0)
        content = file.read()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def open_study(path: Path, sampler: BaseSampler) -> optuna.Study:
    """The study in the journal at `path`, made if it is new; its name is the file's stem."""
    storage = open_storage(path)
    try:
        return optuna.create_study(
            storage=storage, sampler=sampler, study_name=path.stem, direction="minimize", load_if_exists=True
        )
    except _DAMAGE as error:
        raise _damaged(path, error) from error


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Keep other searches off the study at `path` while the context is open, or until this process dies.

    Raises
    ------
    StoreError
        If another search is at it, or the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise _unwritable(path, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"another process is searching the study {path}: wait for it, start a new study without --resume, or "
                "share one between tuners in a database, with --storage"
            ) from error
        yield


def make_journal(folder: Path, base: str) -> Path:
    """An empty journal in `folder` for a new study that is named after `base`.

    Raises
    ------
    StoreError
        If it can't be made.
    """
    while True:
        path = folder / f"{free_name(folder, base)}.journal"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.open("xb").close()
            return path
        except FileExistsError:
            if not path.is_file():
                raise StoreError(f"can't make the study {path}: something else is there") from None
        except OSError as error:
            raise _unwritable(path, error) from error


def free_name(folder: Path, name: str) -> str:
    """`name`, or `name` with the first number behind it that no study in `folder` has."""
    return unused(_names(folder), name)


def latest_name(folder: Path, name: str) -> str:
    """The newest study that `free_name` named after `name`; `name` itself if there is none."""
    return latest(_names(folder), name)


def unused(names: Collection[str], name: str) -> str:
    """`name`, or `name` with the first number behind it that is not among `names`."""
    numbered = (f"{name}-{number}" for number in range(2, len(names) + 3))
    return next(candidate for candidate in (name, *numbered) if candidate not in names)


def latest(names: Collection[str], name: str) -> str:
    """The one of `names` that `unused` has made of `name` last; `name` itself if there is none."""
    numbered = (f"{name}-{number}" for number in range(len(names) + 1, 1, -1))
    return next((candidate for candidate in (*numbered, name) if candidate in names), name)


def _names(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.journal")}


def codes(space: SearchSpace, params: dict[str, Any]) -> list[int]:
    """A trial's parameters as a row of codes."""
    return [params[knob.name] for knob in space.knobs]


def record_expected(trial: optuna.Trial, expected: Expected) -> None:
    """Store what is expected of a trial that is about to be tried."""
    trial.set_user_attr(_EXPECTED, asdict(expected))


def record_outcome(study: optuna.Study, trial: int | optuna.Trial, measurement: Measurement) -> bool:
    """Store an outcome and finish its trial: complete with the time in µs, or failed.

    Returns
    -------
    bool
        False if the trial is finished already: another tuner has settled it.
    """
    if not isinstance(trial, optuna.Trial):
        trial = optuna.Trial(study, trial)
    try:
        trial.set_user_attr(MEASUREMENT, measurement.to_dict())
        _tell(study, trial, measurement)
    except UpdateFinishedTrialError:
        return False
    return True


def _tell(study: optuna.Study, trial: optuna.Trial, measurement: Measurement) -> None:
    if measurement.ok:
        study.tell(trial, measurement.time_us, skip_if_finished=True)
    elif measurement.pilot_us is not None and not measurement.failed:
        # Of a pruned trial samplers learn the pilot: it is slow, and about how slow.
        trial.report(measurement.pilot_us, step=0)
        study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
    else:
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)


def recover(study: optuna.Study, space: SearchSpace, lost: Callable[[FrozenTrial], bool] = lambda trial: True) -> int:
    """Settle the trials that a killed search left running; return how many are to be tried again.

    A trial whose outcome was stored is finished with it. Any other is marked interrupted and its configuration queued
    again, if it had one. A process that is killed in here leaves nothing undone that another call does not do.

    Parameters
    ----------
    study, space
        The study.
    lost
        Which running trials nobody is at any more.
    """
    again = 0
    trials = all_trials(study)
    queued = {trial.user_attrs.get(_AGAIN) for trial in trials}
    for frozen in trials:
        if frozen.state is not TrialState.RUNNING or not lost(frozen):
            continue
        trial = optuna.Trial(study, frozen._trial_id)
        if MEASUREMENT in frozen.user_attrs:
            _tell(study, trial, _outcome(frozen))
            continue
        params = proposed(frozen, space)
        if params is not None:
            if frozen.number not in queued:
                study.enqueue_trial(params, user_attrs={_AGAIN: frozen.number})
            again += 1
        record_outcome(study, trial, Measurement(Status.INTERRUPTED, "the search ended before this trial did"))
    return again


def outcome(frozen: FrozenTrial) -> Measurement | None:
    """The outcome of a finished trial; None if it has none, or was interrupted."""
    if MEASUREMENT not in frozen.user_attrs or not frozen.state.is_finished():
        return None
    measurement = _outcome(frozen)
    return measurement if measurement.status is not Status.INTERRUPTED else None


def trial_record(frozen: FrozenTrial, space: SearchSpace) -> TrialRecord | None:
    """What a finished trial found; None if it has no outcome, or was interrupted."""
    measurement = outcome(frozen)
    if measurement is None:
        return None
    try:
        index = int(space.find(codes(space, frozen.params)))
    except MALFORMED as error:
        raise _damaged(f"with trial {frozen.number}", error) from error
    if index < 0:
        raise StoreError(
            f"trial {frozen.number} holds a configuration that the space no longer has; "
            "start a new study without --resume"
        )
    return as_record(frozen, index, space[index], measurement)


def as_record(frozen: FrozenTrial, index: int, configuration: Configuration, measurement: Measurement) -> TrialRecord:
    """The record of a finished trial."""
    if frozen.datetime_start is None or frozen.datetime_complete is None:
        raise _damaged(f"with trial {frozen.number}", ValueError("it has no times"))
    return TrialRecord(
        number=frozen.number,
        index=index,
        configuration=configuration,
        measurement=measurement,
        started=frozen.datetime_start.timestamp(),
        finished=frozen.datetime_complete.timestamp(),
        expected=Expected(**expected) if (expected := frozen.user_attrs.get(_EXPECTED)) else None,
    )


def _outcome(frozen: FrozenTrial) -> Measurement:
    try:
        return Measurement.from_dict(frozen.user_attrs[MEASUREMENT])
    except MALFORMED as error:
        raise _damaged(f"with trial {frozen.number}", error) from error


def finished_trials(study: optuna.Study, space: SearchSpace) -> Sequence[TrialRecord]:
    """The finished trials of a study, in the order of their numbers."""
    records = (trial_record(frozen, space) for frozen in study.get_trials(deepcopy=False))
    return [record for record in records if record is not None]


def record_info(study: optuna.Study, info: StudyInfo) -> None:
    """Store what a study is about, so that it can be read without its template."""
    described = info.to_dict()
    if study.user_attrs.get(INFO) != described:
        study.set_user_attr(INFO, described)


def record_result(study: optuna.Study, result: StudyResult) -> None:
    """Store what a search found, its race included: the trials alone don't tell."""
    study.set_user_attr(RESULT, result.evidence())


def stored_result(path: Path) -> dict[str, Any] | None:
    """What the last finished search of a study found, as `StudyResult.evidence` has it; None if none finished.

    Raises
    ------
    StoreError
        If there is no such study, or it is damaged.
    """
    if not path.is_file():
        raise StoreError(f"there is no study {path}")
    storage = open_storage(path)
    if path.stem not in (study.study_name for study in storage.get_all_studies()):
        raise StoreError(f"{path} holds no study {path.stem}: was the file renamed?")
    found = storage.get_study_user_attrs(storage.get_study_id_from_name(path.stem))
    result: dict[str, Any] | None = found.get(RESULT)
    return result
