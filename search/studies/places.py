"""Open the studies of a path or an address."""

from pathlib import Path
from typing import Any

from tilescout.search.studies.database import Database
from tilescout.search.studies.journal_folder import SUFFIX, JournalFolder
from tilescout.search.studies.records import StudyResult
from tilescout.search.studies.study_store import StudyStore
from tilescout.spaces.errors import StoreError
from tilescout.spaces.templates import NONE_NAMED, Named


def study_store(place: Path | str) -> StudyStore:
    """The studies of a place. Nothing is opened yet, and nothing made.

    Parameters
    ----------
    place
        A folder, for journals that one tuner each searches, or the URL of a database (``postgresql://...``), whose
        studies several tuners may search together.

    Raises
    ------
    StoreError
        If the URL is malformed, or the text empty, which would mean the working directory.
    """
    if place == "":
        raise StoreError("the place of the studies is empty: name a folder, or the URL of a database")
    if isinstance(place, str) and "://" in place:
        return Database(place)
    return JournalFolder(Path(place))


def read_study(name: str, place: Path | str, named: Named = NONE_NAMED) -> StudyResult:
    """The result of a study, as far as it has come; `name` may also be the path of a journal.

    Parameters
    ----------
    name
        The study's name, or a file.
    place
        Where studies are kept: a folder, or the URL of a database.
    named
        See `StudyStore.read`.

    Raises
    ------
    StoreError
        If there is no such study, or it is damaged or of a tilescout that did not say what a study is about.
    """
    store, name = _found(name, place)
    return store.read(name, named)


def result_of(name: str, place: Path | str) -> dict[str, Any] | None:
    """The evidence that the last finished search of a study stored; `name` may also be the path of a journal.

    Raises
    ------
    StoreError
        If there is no such study, or it can't be read.
    """
    store, name = _found(name, place)
    return store.result(name)


def _found(name: str, place: Path | str) -> tuple[StudyStore, str]:
    """The store that a study is in, and the study's name there."""
    if name.endswith(SUFFIX):
        path = Path(name)
        return JournalFolder(path.parent), path.name.removesuffix(SUFFIX)
    return study_store(place), name
