"""A study of a database that is searched is not deleted, and a search whose study is gone says so."""

import logging
import time
from pathlib import Path
from threading import Thread

import optuna
import pytest
import sqlalchemy
from optuna.samplers import RandomSampler

from tilescout.search.studies.database import Database
from tilescout.search.studies.sharing import SharingOptions, SharingTuner, is_searched
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

SPACE = find_template("gemm_sm90").space(GemmProblem(4096, 4096, 4096), find_device("h200"))
QUICK = SharingOptions(beat=0.1, patience=4)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path}/studies.db")


@pytest.fixture
def study(database: Database) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return database.open("study", False, RandomSampler(seed=0))


def tuner_of(database: Database, study: optuna.Study) -> SharingTuner:
    return SharingTuner(study, SPACE, lambda: database.exclusive(study.study_name), QUICK)


def test_a_study_is_not_deleted_as_long_as_a_tuner_searches_it(database: Database, study: optuna.Study) -> None:
    with (
        tuner_of(database, study),
        pytest.raises(StoreError, match=r"another process is searching the study study in sqlite.*: wait for it, or"),
    ):
        database.delete("study")
    assert database.names() == ["study"]
    database.delete("study")
    assert database.names() == []


def test_a_tuner_that_died_without_leaving_searches_no_more_once_it_was_silent_for_long(
    study: optuna.Study, caplog: pytest.LogCaptureFixture
) -> None:
    study.set_user_attr("beat:died", 7)
    with caplog.at_level(logging.INFO, "tilescout"):
        began = time.monotonic()
        assert not is_searched(study, QUICK)
        assert time.monotonic() - began >= QUICK.patience * QUICK.beat
        assert caplog.messages == ["a tuner of the study study has not left: it is given 0 s to show that it lives"]
        study.set_user_attr("heir:died", "left since")
        study.set_user_attr("beat:left since", "left")
        assert not is_searched(study, SharingOptions())  # and nothing is waited for
    assert len(caplog.messages) == 1


def test_a_tuner_that_comes_or_beats_while_a_dead_one_is_listened_for_is_heard(
    database: Database, study: optuna.Study
) -> None:
    study.set_user_attr("beat:died", 7)
    patient = SharingOptions(beat=0.1, patience=600)
    with tuner_of(database, study):
        assert is_searched(study, patient)
    heard: list[bool] = []
    listening = Thread(target=lambda: heard.append(is_searched(study, patient)))
    listening.start()
    with tuner_of(database, study):
        listening.join(60)
    assert heard == [True]


def test_a_search_whose_study_is_deleted_says_so_and_a_fault_of_its_own_is_told_as_it_is(database: Database) -> None:
    said = r"the study base in sqlite:.* was deleted while it was searched: start a new one"
    with pytest.raises(StoreError, match=said):
        search_deleted(database, "base")
    with (
        pytest.raises(KeyError, match="of its own"),
        database.join("base", False, RandomSampler(seed=0), SPACE, QUICK),
    ):
        raise KeyError("of its own")


def search_deleted(database: Database, base: str) -> None:
    """A search whose study is deleted by one that took its tuner for dead."""
    with database.join(base, False, RandomSampler(seed=0), SPACE, QUICK) as (study, _):
        optuna.delete_study(study_name=study.study_name, storage=Database(database.url).storage)
        study.ask()


def test_in_postgresql_too_a_study_that_is_gone_is_told_and_one_that_is_deleted_leaves_no_lock(postgres: str) -> None:
    database = Database(postgres.format("outages"))  # whose other studies are found by their seeds
    with pytest.raises(StoreError, match=r"the study gone in postgresql.* was deleted while it was searched"):
        search_deleted(database, "gone")
    with database.join("base", False, RandomSampler(seed=0), SPACE, QUICK) as (_, tuner):
        with tuner.exclusive():
            assert "base" in locks_of(database)
        with pytest.raises(StoreError, match="another process is searching the study base"):
            database.delete("base")
    database.delete("base")
    assert "base" not in database.names()
    assert "base" not in locks_of(database)


def test_who_waits_for_a_lock_that_is_deleted_meanwhile_locks_a_new_one(postgres: str) -> None:
    database = Database(postgres.format("outages"))
    held: list[list[str]] = []

    def delete() -> None:
        with database._writing.engine.begin() as connection:
            connection.execute(sqlalchemy.text("DELETE FROM tilescout_locks WHERE study = 'lock'"))

    def lock() -> None:
        with Database(database.url).exclusive("lock"):
            held.append(locks_of(database))

    threads = [Thread(target=delete), Thread(target=lock)]
    with database.exclusive("lock"):
        for number, thread in enumerate(threads, start=1):
            thread.start()
            wait_for_waiting(database, number)
    for thread in threads:
        thread.join(60)
    assert ["lock" in locks for locks in held] == [True]
    delete()


def locks_of(database: Database) -> list[str]:
    """The studies whose locks are there."""
    with database._writing.engine.connect() as connection:
        return list(connection.execute(sqlalchemy.text("SELECT study FROM tilescout_locks")).scalars())


def wait_for_waiting(database: Database, count: int) -> None:
    """Wait until so many wait for a lock."""
    asked = sqlalchemy.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    deadline = time.monotonic() + 60
    with database._writing.engine.connect() as connection:
        while connection.execute(asked).scalar() != count:
            connection.rollback()
            assert time.monotonic() < deadline, "nobody waits"
            time.sleep(0.05)
