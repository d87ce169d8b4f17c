"""A search whose PostgreSQL server is killed in its middle goes on when the server is back, and loses nothing."""

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.database import Database
from tilescout.search.studies.reconnecting import Reconnection
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.sharing import SharingOptions
from tilescout.search.studies.trials import finished_trials
from tilescout.search.tables.shipped import default_table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import SearchInterrupted, TuneOptions, run_study
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ResumableError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

if TYPE_CHECKING:
    from search.conftest import PostgresServer  # type: ignore[import-not-found]

TEMPLATE, PROBLEM = find_template("gemm_sm90"), GemmProblem(4096, 4096, 4096)
SPACE = TEMPLATE.space(PROBLEM, find_device("h200"))
QUICK = SharingOptions(beat=0.4, patience=8)
TRIALS = 24


def search(
    storage: str, seed: int, on_trial: Callable[[TrialRecord], None], sharing: SharingOptions = QUICK
) -> list[TrialRecord]:
    options = TuneOptions("exhaustive", seed, Budget(trials=TRIALS), storage, resume=True, sharing=sharing)
    with Evaluator(ReplayEngine(default_table(TEMPLATE, PROBLEM), TEMPLATE), PROBLEM) as evaluator:
        return list(run_study(evaluator, options, on_trial=on_trial).trials)


def the_study(url: str, seed: int) -> optuna.Study:
    database = Database(url)
    [name] = [name for name in database.names() if name.endswith(f"-s{seed}")]
    return optuna.load_study(study_name=name, storage=database.storage)


def test_a_thread_that_finds_the_database_back_leaves_one_that_just_lost_it_trying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reconnection, calls = Reconnection("of a test", 10.0), count(1)

    class Log:
        def warning(self, text: str, *_: object) -> None:
            if text.startswith("lost"):  # between this thread's failure and its pause
                beat = threading.Thread(target=reconnection.insist, args=(lambda: None,))
                beat.start()
                beat.join(10)

    def action() -> int:
        if (number := next(calls)) == 1:
            raise OperationalError("SELECT 1", {}, Exception("the server closed the connection"))
        return number

    monkeypatch.setattr("tilescout.search.studies.reconnecting._LOG", Log())
    assert reconnection.insist(action) == 2


@pytest.mark.slow
def test_two_tuners_go_on_after_their_server_was_killed_twice(
    postgres_server: "PostgresServer", caplog: pytest.LogCaptureFixture
) -> None:
    url, seed = postgres_server.address.format("outages"), 100
    together = threading.Barrier(3)
    outcomes: list[list[TrialRecord]] = []

    def tuner() -> None:
        seen = count(1)

        def on_trial(trial: TrialRecord) -> None:
            if next(seen) in (7, 14):  # each trial is seen by both
                together.wait(120)

        outcomes.append(search(url, seed, on_trial))

    tuners = [threading.Thread(target=tuner) for _ in range(2)]
    for thread in tuners:
        thread.start()
    with caplog.at_level(logging.WARNING):
        for outage in (1, 2):
            together.wait(120)  # neither has finished
            postgres_server.kill()
            deadline = time.monotonic() + 60
            while told(caplog, "trying again") < 2 * outage:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            postgres_server.start()
        for thread in tuners:
            thread.join(120)

    assert len(outcomes) == 2
    study = the_study(url, seed)
    assert {trial.state for trial in study.trials} <= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    found = finished_trials(study, SPACE)
    assert len(found) == len({trial.index for trial in found}) == TRIALS
    for seen in outcomes:
        assert [trial.configuration for trial in seen] == [trial.configuration for trial in found]
    assert told(caplog, "is back") == told(caplog, "trying again") == 4
    assert not told(caplog, "tester:")


def told(caplog: pytest.LogCaptureFixture, what: str) -> int:
    """How many warnings of the database say so."""
    said = [record.getMessage() for record in caplog.records]
    return sum("the database" in line and what in line for line in said)


@pytest.mark.slow
def test_a_server_that_stays_away_ends_the_search_in_time_and_the_search_goes_on_later(
    postgres_server: "PostgresServer",
) -> None:
    url, seed, seen = postgres_server.address.format("outages"), 101, list[int]()

    def kill_after_nine(trial: TrialRecord) -> None:
        seen.append(trial.number)
        if len(seen) == 9:
            postgres_server.kill()

    began = time.monotonic()
    with pytest.raises(ResumableError, match="what is finished is kept there, go on"):
        search(url, seed, kill_after_nine, replace(QUICK, reconnect=0.5))
    assert time.monotonic() - began < 200  # others wait for 600 s
    postgres_server.start()

    assert len(finished_trials(the_study(url, seed), SPACE)) == 9
    assert len(search(url, seed, lambda trial: None)) == TRIALS


@pytest.mark.slow
def test_who_interrupts_a_search_that_waits_for_its_server_has_the_trials(
    postgres_server: "PostgresServer",
) -> None:
    url, seed, seen = postgres_server.address.format("outages"), 102, list[int]()

    def kill_after_nine(trial: TrialRecord) -> None:
        seen.append(trial.number)
        if len(seen) == 9:
            postgres_server.kill()
            threading.Timer(1.0, signal.raise_signal, [signal.SIGINT]).start()

    began = time.monotonic()
    with pytest.raises(SearchInterrupted) as ended:
        search(url, seed, kill_after_nine)
    assert time.monotonic() - began < 200  # it would wait for 600 s
    postgres_server.start()

    assert [trial.number for trial in ended.value.result.trials] == seen


def test_a_server_that_never_answers_is_told_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(StoreError, match="timeout"):
            Database(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/studies").check()
        assert time.monotonic() - began < 60  # psycopg would wait for 130 s
