"""A folder of journals, one a study, each searched by one process at a time."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import OptunaError
from optuna.samplers import BaseSampler
from optuna.storages.journal import BaseJournalBackend

from tilescout.search.studies.journal import BusyError, Journal, JournalForm, at_key, read_records, remove_journal
from tilescout.search.studies.optuna_hooks import MAKES_STUDY, OPERATION, LongJournal
from tilescout.search.studies.sharing import SharingOptions, SoleTuner, Tuner
from tilescout.search.studies.study_store import StudyStore, resumed, unused
from tilescout.spaces.errors import MALFORMED, ResumableError, StoreError, one_line
from tilescout.spaces.space import SearchSpace

SUFFIX = ".journal"

FORM = JournalForm("the study", OPERATION, sums=True)
"""Optuna's own form: `JournalFileBackend` reads it."""

_DAMAGE = (*MALFORMED, AssertionError, OptunaError)  # what optuna raises over records that it did not write


class NotBegunError(StoreError):
    """A study's file is there, and nothing is in it."""


class JournalFolder(StudyStore):
    """The studies of a folder. It is made when a study is searched."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder

    @contextmanager
    def join(
        self, base: str, resume: bool | str, sampler: BaseSampler, space: SearchSpace, sharing: SharingOptions
    ) -> Iterator[tuple[optuna.Study, Tuner]]:
        path = self._path(resumed(self.names(), base, resume)) if resume else make_journal(self._folder, base)
        with open_study(path, sampler) as study, SoleTuner(study, space) as sole:
            yield study, sole

    def check(self) -> None:
        try:
            existing = next(folder for folder in (self._folder, *self._folder.absolute().parents) if folder.exists())
        except OSError as error:  # a folder on the way may not be entered, or a name is too long
            raise StoreError(f"can't write studies to {self._folder}: {error.strerror}") from error
        if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
            raise StoreError(f"can't write studies to {self._folder}: {existing} is no folder that may be written")

    def names(self) -> list[str]:
        try:
            files = os.listdir(self._folder)
        except (FileNotFoundError, NotADirectoryError):  # it is made when a study is searched
            return []
        except OSError as error:
            raise StoreError(f"can't read the studies in {self._folder}: {error.strerror}") from error
        return sorted(name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX))

    def load(self, name: str) -> optuna.Study:
        path = self._path(name)
        if not os.path.lexists(path):
            raise self.missing(name)
        try:
            storage = LongJournal(_Reading(path))
            if not _has_begun(storage, path):
                raise NotBegunError(f"the study {path} is empty: no search of it has begun")
            return optuna.load_study(study_name=name, storage=storage)
        except _DAMAGE as error:
            raise _damaged(path, error) from error

    def delete(self, name: str) -> None:
        path = self._path(name)
        if name not in self.names():
            raise self.missing(name)
        try:
            remove_journal(path, FORM)
        except BusyError as error:
            raise StoreError(f"another process is searching the study {path}: wait for it, or end it") from error

    def result(self, name: str) -> dict[str, Any] | None:
        try:
            return super().result(name)
        except NotBegunError:  # a search made the file and was killed, or is about to begin
            return None

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"


@contextmanager
def open_study(path: Path, sampler: BaseSampler) -> Iterator[optuna.Study]:
    """The study in the journal at `path`, for this process alone while the context is open, or until it dies.

    It is made if it is new; its name is the file's, without the suffix. A record that was cut off at the end, by a full
    disk or a power failure, is removed.

    Raises
    ------
    StoreError
        If another search is at it, or the file can't be written, was renamed, is something else, or is damaged before
        its last record.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        journal = Journal(path, FORM, at_key("datetime_complete"))  # once a trial, when it ends: 5 ms
    except BusyError as error:
        raise StoreError(
            f"another process is searching the study {path}: wait for it, start a new study, or share one between "
            "tuners in a database"
        ) from error
    with journal:
        try:
            storage = LongJournal(_Writing(journal))
            _has_begun(storage, path)  # optuna would write another study into it
            study = optuna.create_study(
                storage=storage,
                sampler=sampler,
                study_name=path.name.removesuffix(SUFFIX),
                direction="minimize",
                load_if_exists=True,
            )
        except _DAMAGE as error:
            raise _damaged(path, error) from error
        yield study


def make_journal(folder: Path, base: str) -> Path:
    """An empty journal in `folder` for a new study that is named after `base`.

    Raises
    ------
    StoreError
        If it can't be made.
    """
    while True:
        path = folder / f"{unused(JournalFolder(folder).names(), base)}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.open("xb").close()
            return path
        except FileExistsError:
            if not path.is_file():
                raise StoreError(f"can't make the study {path}: something else is there") from None
        except OSError as error:
            raise _unwritable(path, error) from error


def _has_begun(storage: LongJournal, path: Path) -> bool:
    """Whether a journal holds its study yet.

    Raises
    ------
    StoreError
        If it holds one of another name.
    """
    held = [study.study_name for study in storage.get_all_studies()]
    name = path.name.removesuffix(SUFFIX)
    if held and held != [name]:
        raise StoreError(f"{path} holds no study {name}, but {one_line(held[0], 200)}: give the file its name again")
    return bool(held)


class _OfOneStudy(BaseJournalBackend):
    """The records of a journal, which is of one study: optuna compares the name of each with those of all before."""

    _name: Any = None

    def _checked(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for record in records:
            if record.get(OPERATION) == MAKES_STUDY:
                self._name = record["study_name"] if self._name is None else self._name
                if record["study_name"] != self._name:
                    raise ValueError("it has records of several studies")
            yield record


class _Writing(_OfOneStudy):
    """Optuna's records in a journal that this process writes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        return self._checked(self._journal.read(log_number_from))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            self._journal.append(self._checked(logs))
        except StoreError as error:
            raise ResumableError(f"{error}; what is finished is in it, make room and go on") from error


class _Reading(_OfOneStudy):
    """The records that a journal holds when it is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        return self._checked(read_records(self._path, FORM)) if log_number_from == 0 else iter(())

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        raise StoreError(f"the study {self._path} is open for reading only")


def _damaged(what: object, error: Exception) -> StoreError:
    return StoreError(f"the study {what} is damaged ({one_line(repr(error), 200)}); start a new one")


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"can't write the study {path}: {error.strerror}; choose another folder")
