"""Where studies are kept: journals in a folder, for one tuner each, or a database, for several tuners."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from tilescout.search.studies.database import Database, public_address
from tilescout.search.studies.sharing import SharingOptions, SharingTuner, SoleTuner, Tuner
from tilescout.search.studies.store import is_database
from tilescout.search.studies.trials import RESULT, claimed, latest_name, make_journal, open_study, stored_result
from tilescout.spaces.space import SearchSpace


@contextmanager
def joined(
    place: Path | str, base: str, resume: bool, sampler: BaseSampler, space: SearchSpace, sharing: SharingOptions
) -> Iterator[tuple[optuna.Study, Tuner]]:
    """A study to search, and this process's part in it, while the context is open.

    Parameters
    ----------
    place
        A folder, or the URL of a database.
    base
        What the study is named after.
    resume
        Take the newest study of that name, in a database together with the tuners that are at it; else start another.
    sampler, space
        Proposes, and what.
    sharing
        How tuners of one study keep track of each other.

    Raises
    ------
    StoreError
        If the study can't be opened or written, or another process is searching its journal.
    """
    if is_database(place):
        database = Database(str(place))
        with database.translated():
            study = database.open(base, resume, sampler)
            with SharingTuner(study, space, lambda: database.exclusive(study.study_name), sharing) as sharer:
                yield study, sharer
        return
    folder = Path(place)
    path = folder / f"{latest_name(folder, base)}.journal" if resume else make_journal(folder, base)
    with claimed(path):
        study = open_study(path, sampler)
        with SoleTuner(study, space) as sole:
            yield study, sole


def place_name(place: Path | str) -> str:
    """Where studies are kept, as people are told it: without a password."""
    return public_address(str(place)) if is_database(place) else str(place)


def results(place: Path | str) -> dict[str, dict[str, Any] | None]:
    """What the last finished search of each study found, as `StudyResult.evidence` has it; None if none finished.

    Raises
    ------
    StoreError
        If a study can't be read.
    """
    if is_database(place):
        database = Database(str(place))
        return {name: database.attributes(name).get(RESULT) for name in database.names()}
    return {path.stem: stored_result(path) for path in sorted(Path(place).glob("*.journal"))}


def result_of(name: str, place: Path | str) -> dict[str, Any] | None:
    """What the last finished search of one study found; `name` may also be the path of a journal.

    Raises
    ------
    StoreError
        If there is no such study, or it can't be read.
    """
    if name.endswith(".journal"):
        return stored_result(Path(name))
    if is_database(place):
        found: dict[str, Any] | None = Database(str(place)).attributes(name).get(RESULT)
        return found
    return stored_result(Path(place) / f"{name}.journal")
