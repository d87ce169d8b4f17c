"""Which study a search goes on with."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.samplers import RandomSampler

from tilescout.search.studies.database import Database
from tilescout.search.studies.journal import Journal, never
from tilescout.search.studies.journal_folder import FORM, JournalFolder, open_study
from tilescout.search.studies.optuna_hooks import study_key
from tilescout.search.studies.places import study_store
from tilescout.search.studies.study_store import latest, newest_like, resumed, unused
from tilescout.search.tracking.standing.unlogged import unlogged
from tilescout.spaces.errors import StoreError

LONG = "a" * 300
"""The name of a file that no file system takes, which stands for any that can't be looked at."""


def test_a_search_that_has_nothing_to_go_on_with_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tilescout"):
        assert resumed(["search-s0", "search-s0-2"], "search-s0", resume=True) == "search-s0-2"
        assert not caplog.messages
        assert resumed(["search-s0"], "search-s1", resume=True) == "search-s1"
    assert caplog.messages == ["there is no study search-s1 to continue: starting it"]


@pytest.mark.parametrize(
    ("left", "newest", "new"),
    [
        (["s0-5"], "s0-5", "s0-6"),
        (["s0-2", "s0-10"], "s0-10", "s0-11"),
        (["s0", "s0-3"], "s0-3", "s0-4"),
        (["s0"], "s0", "s0-2"),
        (["s00", "s0-x", "s0-2-3", "as0-9"], "s0", "s0"),
        (["s0-1", "s0-0", "s0-07", "s0-\u0663", "s0-"], "s0", "s0"),
        (["s0", "s0-1", "s0-07"], "s0", "s0-2"),
        ([], "s0", "s0"),
    ],
)
def test_what_was_deleted_before_the_newest_study_leaves_it_the_newest(left: list[str], newest: str, new: str) -> None:
    assert latest(left, "s0") == newest
    assert unused(left, "s0") == new
    assert latest([*left, new], "s0") == new
    assert resumed([*left, new], "s0", resume=True) == new


@pytest.mark.parametrize(
    ("name", "newest"),
    [("a-s0", "a-s0-10"), ("a-s0-2", "a-s0-10"), ("a-s0-10", "a-s0-10"), ("a-s1", "a-s1"), ("b-7", "b-7-2")],
)
def test_the_newest_study_of_a_kind_is_found_by_any_of_its_names(name: str, newest: str) -> None:
    assert newest_like(["a-s0", "a-s0-10", "a-s0-2", "a-s1", "b-7", "b-7-2"], name) == newest


def test_a_name_with_a_number_that_no_study_is_given_is_of_a_kind_of_its_own() -> None:
    assert newest_like(["b", "b-1", "b-2"], "b-1") == "b-1"


@pytest.mark.parametrize("name", ["s0-1", "s0-02", "s0-x", "s01"])
def test_a_study_that_is_named_otherwise_is_not_gone_on_with(name: str) -> None:
    assert resumed(["s0", "s0-2", "s0-10", name], "s0", resume="s0-10") == "s0-10"
    with pytest.raises(StoreError, match=f"the study {name} is of another .*: studies of this search are named s0$"):
        resumed(["s0", name], "s0", resume=name)


def test_the_names_of_studies_in_a_database_are_sorted(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/studies.db")
    for name in ("b", "c-2", "a"):
        database.open(name, False, RandomSampler(seed=0))
    assert database.names() == ["a", "b", "c-2"]


@pytest.mark.parametrize("place", ["/tmp/{}", "/tmp/{}/studies", "sqlite:////tmp/{}.db"])
def test_a_place_that_can_not_be_looked_at_is_told_in_a_line(place: str) -> None:
    store = study_store(place.format(LONG))
    for use in (store.names, lambda: store.load("x"), store.results, lambda: store.delete("x"), store.check):
        with pytest.raises(StoreError, match=r"File name too long|unable to open database file"):
            use()
    assert unlogged(f"/tmp/{LONG}") == {}


def test_what_lies_in_the_place_of_a_databases_lock_is_told_and_never_waited_for(tmp_path: Path) -> None:
    database, lock = Database(f"sqlite:///{tmp_path}/a.db"), tmp_path / "a.db.lock"
    lock.mkdir()
    with pytest.raises(StoreError, match=r"can't lock .*: Is a directory"), database.exclusive("a"):
        pass
    lock.rmdir()
    os.mkfifo(lock)
    with database.exclusive("a"):  # opened for writing alone, a pipe without a reader is waited for
        pass


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_deleting_a_link_to_a_study_leaves_the_study(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    [recorded] = (Path(__file__).parent / "recorded").glob("*-random-s0.journal")
    original, folder = Path(shutil.copy(recorded, tmp_path)), tmp_path / "studies"
    folder.mkdir()
    link(original, folder / original.name)
    JournalFolder(folder).delete(original.stem)
    assert JournalFolder(folder).names() == []
    assert original.read_bytes() == recorded.read_bytes()


def test_a_journal_that_was_renamed_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    renamed = make_study(tmp_path, "a").rename(tmp_path / "b.journal")
    before = renamed.read_bytes()
    said = pytest.raises(StoreError, match=r"b\.journal holds no study b, but a: give the file its name again")
    with said, open_study(renamed, RandomSampler(seed=0)):
        pass
    with said:
        JournalFolder(tmp_path).load("b")
    assert renamed.read_bytes() == before
    with open_study(renamed.rename(tmp_path / "a.journal"), RandomSampler(seed=0)) as study:
        assert [trial.value for trial in study.trials] == [1.0]


def test_a_journal_is_of_one_study_also_behind_what_was_read_before(tmp_path: Path) -> None:
    path = make_study(tmp_path, "a")
    with open_study(path, RandomSampler(seed=0)) as study:
        storage, _ = study_key(study)
        with pytest.raises(ValueError, match="it has records of several studies"):
            storage.create_new_study(study.directions, "b")
        study.tell(study.ask(), 2.0)
    assert [trial.value for trial in JournalFolder(tmp_path).load("a").trials] == [1.0, 2.0]
    with Journal(path, FORM, never) as journal:
        journal.append([{**next(journal.read()), "study_name": "b"}])
    for use in (JournalFolder(tmp_path).load, lambda _: open_study(path, RandomSampler(seed=0)).__enter__()):
        with pytest.raises(StoreError, match=r"is damaged .*it has records of several studies"):
            use("a")


def make_study(folder: Path, name: str) -> Path:
    """A journal with a study of one trial."""
    path = folder / f"{name}.journal"
    with open_study(path, RandomSampler(seed=0)) as study:
        study.tell(study.ask(), 1.0)
    return path
