"""Several tuners on one study, in PostgreSQL and in SQLite: no trial lost, none measured twice."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from threading import Event, Thread

import optuna
import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.studies.database import Database
from tilescout.search.studies.journal_folder import make_journal, open_study
from tilescout.search.studies.places import result_of, study_store
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.studies.sharing import SharingOptions, SharingTuner
from tilescout.search.studies.trials import finished_trials, record_outcome, recover
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table
from tilescout.search.tracking import MlflowTracker
from tilescout.search.tuning import loop
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TEMPLATE, PROBLEM = find_template("gemm_sm90"), GemmProblem(4096, 4096, 4096)
SPACE = TEMPLATE.space(PROBLEM, find_device("h200"))
QUICK = SharingOptions(beat=0.4, patience=8)


class Overlapping(Evaluator):
    """Has three configurations in flight, and takes a while for each."""

    def __init__(self, table: Table) -> None:
        super().__init__(ReplayEngine(table, TEMPLATE), PROBLEM)
        self.capacity = 3
        self.submitted: list[int] = []

    def submit(self, index: int, incumbent: float | None = None) -> None:
        self.submitted.append(index)

    def wait(self) -> list[tuple[int, Measurement]]:
        time.sleep(0.02)
        super().submit(self.submitted.pop(0))
        return super().wait()


def search_together(storage: str, mlflow: str, trials: int, on_trial: Callable[[TrialRecord], None]) -> StudyResult:
    """Join a study, or make it, and search until it has so many trials.

    In order of the space: each tuner wants the very configurations that the other one wants.
    """
    options = TuneOptions("exhaustive", 0, Budget(trials=trials), storage, resume=True, sharing=QUICK)
    with Overlapping(default_table(TEMPLATE, PROBLEM)) as evaluator:
        return run_study(evaluator, options, partial(MlflowTracker, mlflow, None), on_trial)


VICTIM = """
import sys
sys.path.insert(0, {here!r})
from test_sharing import search_together
import mlflow
print("ready", flush=True)
sys.stdin.readline()
search_together({storage!r}, {mlflow!r}, {trials}, lambda trial: print(trial.number, flush=True))
"""


def the_study(url: str) -> optuna.Study:
    """The only study in a database."""
    database = Database(url)
    [name] = database.names()
    return optuna.load_study(study_name=name, storage=database.storage)


def measured(ratio: float = 1.0) -> Measurement:
    return Measurement(
        Status.OK, timing=Timing(ratio, ratio, ratio, ratio, ratio, library_us=10.0, pairs=3), gpu_seconds=0.5
    )


@pytest.fixture
def mlflow_server(
    postgres: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held_port: Callable[[], AbstractContextManager[int]],
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """An MLflow server that keeps its runs in PostgreSQL: its address, and its process, which leads a group."""
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", postgres.format("mlflow")]
    command += ["--artifacts-destination", str(tmp_path), "--host", "127.0.0.1"]
    command += ["--workers", "1", "--uvicorn-opts", "--log-level warning", "--port"]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "NO_PROXY": "127.0.0.1"}
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with (
        held_port() as port,
        subprocess.Popen(
            [*command, str(port)], env=os.environ | quiet, start_new_session=True, stderr=subprocess.PIPE
        ) as process,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(lambda: answers(f"{address}/health"))
            yield address, process
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


def answers(address: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.1)


@pytest.mark.slow
def test_of_two_tuners_one_is_killed_and_no_trial_is_lost_or_measured_twice_or_missing_in_mlflow(
    postgres: str, mlflow_server: tuple[str, "subprocess.Popen[bytes]"]
) -> None:
    from mlflow import MlflowClient

    mlflow, server = mlflow_server
    storage, trials, killed = postgres.format("studies"), 24, Event()
    code = VICTIM.format(here=str(Path(__file__).parent), storage=storage, mlflow=mlflow, trials=trials)
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as victim:
        assert victim.stdin is not None
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        victim.stdin.write("go\n")  # so that both make the study at once
        victim.stdin.flush()

        def kill() -> None:
            assert victim.stdout is not None
            for _ in range(8):
                victim.stdout.readline()
            victim.kill()
            os.killpg(server.pid, signal.SIGSTOP)  # a server that is slow: the search goes on meanwhile
            killed.set()
            time.sleep(1)
            os.killpg(server.pid, signal.SIGCONT)

        killer = Thread(target=kill)
        killer.start()
        # The last trials are left for after the kill, so that there is something to do.
        result = search_together(storage, mlflow, trials, lambda trial: wait_near_the_end(trial, killed))
        killer.join()
    assert not result.not_tracked

    study = the_study(storage)
    states = [trial.state for trial in study.trials]
    assert TrialState.RUNNING not in states
    assert TrialState.WAITING not in states
    finished = finished_trials(study, SPACE)
    assert len(result.trials) == len(finished) == len({trial.index for trial in finished}) == trials
    assert [trial.number for trial in finished if trial.configuration == result.info.default] == [0]
    assert len({trial.user_attrs["tuner"] for trial in study.trials}) == 2
    interrupted = [trial for trial in study.trials if is_interrupted(trial)]
    assert 1 <= len(interrupted) <= 4  # what was in flight when it was killed, each tried again by the other one
    assert len({trial.user_attrs["tuner"] for trial in interrupted}) == 1

    client = MlflowClient(mlflow)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=1000)
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(int(run.data.tags["tilescout.trial"]) for run in children) == [trial.number for trial in finished]
    assert "RUNNING" not in {run.info.status for run in children}
    assert parent.data.metrics["trials"] == trials


def wait_near_the_end(trial: TrialRecord, event: Event) -> None:
    if trial.number >= 16:
        assert event.wait(200)


def is_interrupted(trial: optuna.trial.FrozenTrial) -> bool:
    return bool(trial.user_attrs["measurement"]["status"] == Status.INTERRUPTED)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(f"sqlite:///{tmp_path}/studies.db")


@pytest.fixture
def study(database: Database) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return database.open("study", False, RandomSampler(seed=0))


def another(database: Database, study: optuna.Study) -> optuna.Study:
    """The same study as another process has it."""
    return optuna.load_study(study_name=study.study_name, storage=Database(database.url).storage)


def queue(study: optuna.Study, *indices: int) -> None:
    for index in indices:
        study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[index]), strict=True)))


def begin(tuner: SharingTuner, study: optuna.Study) -> optuna.Trial:
    with tuner.exclusive():
        trial = study.ask()
        tuner.begin(trial)
    for name, knob in distributions(SPACE).items():
        trial.suggest_int(name, knob.low, knob.high)
    return trial


def tuner_of(database: Database, study: optuna.Study, options: SharingOptions = QUICK) -> SharingTuner:
    return SharingTuner(study, SPACE, lambda: database.exclusive(study.study_name), options)


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


def test_what_a_tuner_that_left_had_in_flight_is_queued_again_once(database: Database, study: optuna.Study) -> None:
    queue(study, 3, 4)
    with tuner_of(database, study) as first:
        record_outcome(study, begin(first, study), measured())
        begin(first, study)
        with tuner_of(database, another(database, study)) as second:
            second.take_over()
            assert second.look()[1] == 1
    with tuner_of(database, study) as third, tuner_of(database, study) as fourth:
        for tuner in (third, fourth):
            with tuner.exclusive():
                tuner.take_over()
        assert states(study) == ["COMPLETE", "FAIL", "WAITING"]
        trial = begin(fourth, study)
        assert int(SPACE.find([trial.params[knob.name] for knob in SPACE.knobs])) == 4
        for tuner in (third, fourth):
            tuner.look()
        assert [third.inherits(number) for number in range(4)] == [True, True, False, False]
        assert not any(fourth.inherits(number) for number in range(4))
        assert fourth.owns(trial.number)


def test_a_tuner_that_died_between_asking_and_saying_so_loses_nothing(database: Database, study: optuna.Study) -> None:
    queue(study, 7)
    study.ask()  # takes the queued configuration, and dies
    with tuner_of(database, study) as tuner:
        with tuner.exclusive():
            tuner.take_over()
        assert states(study) == ["FAIL", "WAITING"]
        begin(tuner, study)
    assert study.trials[1].params == study.trials[0].system_attrs["fixed_params"]


def test_taking_over_that_was_itself_killed_queues_nothing_twice(study: optuna.Study) -> None:
    queue(study, 5)
    trial = study.ask({**distributions(SPACE)})
    study.enqueue_trial(trial.params, user_attrs={"again": trial.number})  # and killed before the trial was settled
    assert recover(study, SPACE) == 1
    assert recover(study, SPACE) == 0
    assert states(study) == ["FAIL", "WAITING"]


def test_a_tuner_that_is_silent_for_long_is_taken_over_and_its_late_outcome_dropped(
    database: Database, study: optuna.Study
) -> None:
    queue(study, 5, 6)
    sleeping, awake = (
        tuner_of(database, another(database, study), SharingOptions(beat, patience=4)) for beat in (1000.0, 0.05)
    )
    with sleeping:
        late = begin(sleeping, sleeping._study)
        with awake:
            wait_for(lambda: taken_over(awake, study))
            assert states(study) == ["FAIL", "WAITING", "WAITING"]
            assert not record_outcome(sleeping._study, late, measured())
            assert states(study) == ["FAIL", "WAITING", "WAITING"]
            with sleeping.exclusive():
                sleeping.take_over()  # it notices, and goes on under another name
            begin(sleeping, sleeping._study)
            with awake.exclusive():
                awake.take_over()
            assert states(study) == ["FAIL", "RUNNING", "WAITING"]


def taken_over(tuner: SharingTuner, study: optuna.Study) -> bool:
    with tuner.exclusive():
        tuner.take_over()
    return "RUNNING" not in states(study)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the search", "while it takes account"])
def test_what_another_tuner_finishes_between_two_looks_is_shown_once(
    database: Database, study: optuna.Study, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with (
        Overlapping(default_table(TEMPLATE, PROBLEM)) as evaluator,
        tuner_of(database, study) as own,
        tuner_of(database, another(database, study)) as other,
    ):
        study.sampler = make_sampler("random", evaluator.space, 0)

        def finish() -> None:
            queue(other._study, int(SPACE.find(evaluator.space.codes[0])))
            record_outcome(other._study, begin(other, other._study), measured())

        def finish_and_list(lane: Lane) -> Sequence[TrialRecord]:
            monkeypatch.undo()
            finish()
            return lane.finished()

        own.look()
        if when == "before the search":
            finish()
        else:
            monkeypatch.setattr(Lane, "finished", finish_and_list)
        shown: list[int] = []
        loop.run(study, evaluator, Budget(trials=3), 1.0, lambda trial: shown.append(trial.number), tuner=own)
        assert sorted(shown) == [0, 1, 2]


def test_what_a_look_that_meets_a_damaged_trial_has_found_is_found_again(
    database: Database, study: optuna.Study
) -> None:
    replaced = sqlalchemy.text(
        "UPDATE trial_user_attributes SET value_json = replace(value_json, :old, :new) "
        "WHERE key = 'measurement' AND trial_id = (SELECT trial_id FROM trials WHERE number = 1)"
    )
    with tuner_of(database, study) as own, tuner_of(database, another(database, study)) as other:
        queue(study, 3, 4, 5)
        for _ in range(3):
            record_outcome(other._study, begin(other, other._study), measured())
        with database._writing.engine.begin() as connection:
            connection.execute(replaced, {"old": '"ok"', "new": '"lost"'})
        with pytest.raises(StoreError, match="trial 1 of the study is damaged"):
            own.look()
        with database._writing.engine.begin() as connection:
            connection.execute(replaced, {"old": '"lost"', "new": '"ok"'})
        own._study = another(database, study)  # the other one keeps finished trials in memory
        for numbers in ([0, 1, 2], []):
            assert [record.number for record in own.look()[0]] == numbers


def test_new_studies_of_one_name_are_numbered_and_results_are_found_by_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    found = []
    for resume in (False, False, True):
        with study_store(url).join("base", resume, RandomSampler(seed=0), SPACE, QUICK) as (study, _):
            found.append(study.study_name)
            study.set_user_attr("result", {"study": study.study_name})
    assert found == ["base", "base-2", "base-2"]
    assert study_store(url).results() == {"base": {"study": "base"}, "base-2": {"study": "base-2"}}
    assert result_of("base-2", url) == {"study": "base-2"}
    with pytest.raises(StoreError, match="there is no study other in sqlite"):
        result_of("other", url)


def test_studies_in_postgresql_are_read_in_transactions_that_may_not_write(postgres: str) -> None:
    url = postgres.format("postgres")  # the server's own database, in which no other test makes tables
    with pytest.raises(StoreError, match="failed"):
        study_store(url).names()
    with study_store(url).join("base", False, RandomSampler(seed=0), SPACE, QUICK) as (study, _):
        study.set_user_attr("result", {"study": study.study_name})
    database = Database(url)
    assert database.results() == {"base": {"study": "base"}}
    with pytest.raises(StorageInternalError):
        database.load("base").set_user_attr("result", None)
    assert result_of("base", url) == {"study": "base"}


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("postgresql://somebody:secret@127.0.0.1:1/studies", r"somebody:\*\*\*@127.0.0.1:1/studies failed \(.*refused"),
        ("sqlite://", "is no file"),
        ("sqlite:////nowhere/at/all.db", "unable to open database file"),
        ("nonsense://host/name", "is called 'nonsense': expected postgresql://"),
        ("postgresql://host:port/name", "malformed address"),
        ("oracle+oracledb://host/name", "driver that is not installed"),
    ],
)
def test_a_database_that_can_not_be_used_is_one_clear_line_without_its_password(url: str, answer: str) -> None:
    with pytest.raises(StoreError, match=answer) as failure:
        Database(url).check()
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_journal_is_searched_by_one_process_at_a_time_and_freed_by_its_death(tmp_path: Path) -> None:
    path = make_journal(tmp_path, "base")
    code = "import pathlib, time, tilescout.search.studies.journal_folder as s\n"
    code += f"with s.open_study(pathlib.Path({str(path)!r}), None):\n print('in', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with (
            pytest.raises(StoreError, match="another process is searching the study"),
            open_study(path, RandomSampler()),
        ):
            pass
        assert make_journal(tmp_path, "base").name == "base-2.journal"
        other.kill()
    with open_study(path, RandomSampler()):
        pass


def test_searches_that_start_at_once_in_one_folder_get_studies_of_their_own(tmp_path: Path) -> None:
    code = "import pathlib, sys, tilescout.search.studies.journal_folder as s\nsys.stdin.readline()\n"
    code += f"print(*(s.make_journal(pathlib.Path({str(tmp_path)!r}), 'base').name for _ in range(20)))"
    searches = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names: Sequence[str] = " ".join(search.communicate("\n")[0] for search in searches).split()
    assert len(set(names)) == len(names) == 40
