"""A study of a database that is searched is not deleted, and a search whose study is gone says so."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Thread

import optuna
import pytest
import sqlalchemy
from optuna.samplers import RandomSampler

from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.studies.database import Database
from tilescout.search.studies.sharing import SharingOptions, SharingTuner, is_searched
from tilescout.search.studies.trials import keep_outcome, record_outcome
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


@pytest.mark.parametrize(
    ("name", "beat", "kept"),
    [("died", 7, False), ("died", "left", False), ("died", 8, True), ("new", 1, True), ("new", "left", True)],
)
def test_a_dead_tuner_is_listened_for_without_the_lock_and_who_is_heard_before_it_is_taken_keeps_the_study(
    database: Database, study: optuna.Study, monkeypatch: pytest.MonkeyPatch, name: str, beat: object, kept: bool
) -> None:
    free: list[bool] = []

    def take_lock() -> None:
        with Database(database.url).exclusive("another"):  # as tuners of other studies in the file do
            pass

    def listen(to: optuna.Study) -> bool:
        other = Thread(target=take_lock)
        other.start()
        other.join(5)
        free.append(not other.is_alive())
        found = is_searched(to, QUICK)
        study.set_user_attr(f"beat:{name}", beat)
        return found

    monkeypatch.setattr("tilescout.search.studies.database.is_searched", listen)
    study.set_user_attr("beat:died", 7)
    said = pytest.raises(StoreError, match=r"another process is searching the study study in sqlite")
    with said if kept else nullcontext():
        database.delete("study")
    assert free == [True]
    assert database.names() == (["study"] if kept else [])


@pytest.mark.parametrize(("attribute", "text"), [("info", '{"a": 1'), ("heir:died", "nonsense"), ("beat:died", "NaN")])
def test_a_study_whose_attributes_are_damaged_can_be_deleted(
    database: Database, study: optuna.Study, attribute: str, text: str
) -> None:
    study.set_user_attr(attribute, 0)
    with database._writing.engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE study_user_attributes SET value_json = :text"), {"text": text})
    database.delete("study")
    assert database.names() == []


def test_a_search_whose_study_is_deleted_says_so_and_a_fault_of_its_own_is_told_as_it_is(database: Database) -> None:
    said = r"the study base in sqlite:.* was deleted while it was searched: start a new one"
    with pytest.raises(StoreError, match=said):
        search_deleted(database, "base")
    with (
        pytest.raises(KeyError, match="of its own"),
        database.join("base", False, RandomSampler(seed=0), SPACE, QUICK),
    ):
        raise KeyError("of its own")


@pytest.mark.parametrize("name", ["base", "other"])
def test_who_searched_a_study_that_is_deleted_writes_nothing_into_the_next_one(database: Database, name: str) -> None:
    joined = partial(join, sharing=SharingOptions(beat=1000.0))
    said = pytest.raises(StoreError, match=r"the study base in sqlite:.* was deleted while it was searched: start a")
    with said, joined(Database(database.url), "base") as (stopped, late):
        trial = begin(stopped, late)
        delete_anyway(database, "base")
        with joined(database, name) as (study, tuner):
            other = begin(study, tuner)
            assert (trial._trial_id, stopped._study_id) == (other._trial_id, study._study_id)
            writes: list[Callable[[], object]] = [
                lambda: late._beat(2),
                lambda: late.alone(late.take_over),
                lambda: late.alone(stopped.ask),
                lambda: trial.suggest_int("x", 0, 3),
                lambda: keep_outcome(trial, measured(0.5)),
                lambda: record_outcome(stopped, trial, measured(0.5)),
                lambda: stopped.set_user_attr("result", {}),
                late.look,
            ]
            for write in writes:
                with pytest.raises(StoreError, match="was deleted while it was searched"):
                    write()
            assert record_outcome(study, other, measured(2.0))
            with pytest.raises(StoreError, match="was deleted while it was searched"):
                record_outcome(stopped, trial, measured(0.5))
        record_outcome(stopped, trial, measured(0.5))
    [told], attributes = study.trials, set(study.user_attrs)
    assert (told.value, told.params, attributes) == (20.0, {}, {f"beat:{tuner._name}"})


def test_tuners_of_one_study_have_one_token_and_a_study_without_one_is_searched_on(database: Database) -> None:
    database.open("base", False, RandomSampler(seed=0))  # as an older tilescout makes it
    for _ in range(2):
        with join(database, "base", True) as (study, tuner):
            with join(Database(database.url), "base", True) as (another, second):
                begin(another, second)
            begin(study, tuner)
    assert len(database.load("base").trials) == 4


def search_deleted(database: Database, base: str, replaced: bool = False) -> None:
    """A search whose study is deleted by one that took its tuner for dead, and replaced by one of its name."""
    with database.join(base, False, RandomSampler(seed=0), SPACE, QUICK) as (study, _):
        delete_anyway(database, study.study_name)
        if replaced:
            Database(database.url).open(base, False, RandomSampler(seed=0))
        study.ask()


def delete_anyway(database: Database, name: str) -> None:
    """Delete a study whose tuner is stopped and was taken for dead."""
    optuna.delete_study(study_name=name, storage=Database(database.url).storage)


@contextmanager
def join(
    database: Database, name: str, resume: bool = False, sharing: SharingOptions = QUICK
) -> Iterator[tuple[optuna.Study, SharingTuner]]:
    """Search a study."""
    with database.join(name, resume, RandomSampler(seed=0), SPACE, sharing) as (study, tuner):
        assert isinstance(tuner, SharingTuner)
        yield study, tuner


def begin(study: optuna.Study, tuner: SharingTuner) -> optuna.Trial:
    """Ask for a trial."""
    with tuner.exclusive():
        trial = study.ask()
        tuner.begin(trial)
    return trial


def measured(ratio: float) -> Measurement:
    return Measurement(Status.OK, timing=Timing(ratio, ratio, ratio, ratio, ratio, library_us=10.0, pairs=3))


def test_in_postgresql_too_a_study_that_is_gone_is_told_and_one_that_is_deleted_leaves_no_lock(postgres: str) -> None:
    database = Database(postgres.format("outages"))  # whose other studies are found by their seeds
    for replaced in (False, True):
        with pytest.raises(StoreError, match=r"the study gone in postgresql.* was deleted while it was searched"):
            search_deleted(database, "gone", replaced)
    delete_anyway(database, "gone")
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
