"""Several tuners on one study, in PostgreSQL and in SQLite: no trial lost, none measured twice."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from tilescout.search.database import Database
from tilescout.search.evaluate.measurement import Measurement, Status, Timing
from tilescout.search.samplers.base import distributions
from tilescout.search.sharing import SharingOptions, SharingTuner
from tilescout.search.studies import joined, result_of, results
from tilescout.search.study import claimed, finished_trials, make_journal, record_outcome, recover
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

SPACE = find_template("gemm_sm90").space(GemmProblem(4096, 4096, 4096), find_device("h200"))
QUICK = SharingOptions(beat=0.4, patience=8)

TUNER = """
import sys, time
from tilescout.experiments.sources import default_table
from tilescout.search.evaluate.replay import ReplayEvaluator
from tilescout.search.loop import Budget
from tilescout.search.sharing import SharingOptions
from tilescout.search.tracking import MlflowTracker
from tilescout.search.tune import TuneOptions, tune
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

class Overlapping(ReplayEvaluator):
    capacity = 3  # so that a tuner that is killed has trials in flight

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.submitted = []

    def submit(self, index, incumbent=None):
        self.submitted.append(index)

    def wait(self):
        time.sleep(0.02)
        super().submit(self.submitted.pop(0))
        return super().wait()

storage, sampler, trials, mlflow = sys.argv[1:]
template, problem = find_template("gemm_sm90"), GemmProblem(4096, 4096, 4096)
sharing = SharingOptions(beat=0.4, patience=8)
trackers = {"make_tracker": lambda info, run_id: MlflowTracker(mlflow, None, info, run_id)} if mlflow else {}
with Overlapping(default_table(template, problem), template, problem) as evaluator:
    options = TuneOptions(sampler, 0, Budget(trials=int(trials), whole=True), storage, resume=True, sharing=sharing)
    print("ready", flush=True)
    sys.stdin.readline()
    shown = lambda trial: print("trial", trial.number, flush=True)
    result = tune(template, evaluator, options, on_trial=shown, **trackers)
assert not result.not_tracked, result.not_tracked
print("tracked", result.info.name, len(result.trials), flush=True)
"""


class Process:
    """A tuner in a process of its own; it starts when told."""

    def __init__(self, storage: str, sampler: str, trials: int, mlflow: str = "") -> None:
        command = [sys.executable, "-c", TUNER, storage, sampler, str(trials), mlflow]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self) -> None:
        assert self.process.stdin is not None
        self.read("ready")
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read(self, word: str) -> list[str]:
        """The next line, which begins with this word."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line[:1] == [word], line
        return line[1:]

    def finish(self) -> int:
        """The number of trials in its result; its process has ended well."""
        output, _ = self.process.communicate(timeout=200)
        assert self.process.returncode == 0
        return int(output.splitlines()[-1].split()[-1])


def the_study(url: str, sampler: str) -> optuna.Study:
    """The only study of this sampler in a database."""
    database = Database(url)
    [name] = [name for name in database.names() if f"-{sampler}-" in name]
    return optuna.load_study(study_name=name, storage=database.storage)


def measured(ratio: float = 1.0) -> Measurement:
    return Measurement(Status.OK, timing=Timing(*[ratio] * 5, library_us=10.0, pairs=3), gpu_seconds=0.5)


def check_whole(study: optuna.Study, space: SearchSpace, trials: int) -> None:
    """Exactly so many configurations were measured, each once, and nothing is left in flight or in the queue."""
    states = [trial.state for trial in study.trials]
    assert TrialState.RUNNING not in states
    assert TrialState.WAITING not in states
    finished = finished_trials(study, space)
    assert len(finished) == trials
    assert len({trial.index for trial in finished}) == trials
    default = find_template("gemm_sm90").default(space.problem, space.device)
    assert [trial.number for trial in finished if trial.configuration == default] == [0]


def test_tuners_that_start_at_once_make_one_study_and_measure_nothing_twice(postgres: str) -> None:
    # In order of the space: each wants the very configurations that the other wants.
    tuners = [Process(postgres.format("studies"), "exhaustive", 30) for _ in range(2)]
    for tuner in tuners:
        tuner.start()
    assert [tuner.finish() for tuner in tuners] == [30, 30]
    study = the_study(postgres.format("studies"), "exhaustive")
    check_whole(study, SPACE, 30)
    by = [trial.user_attrs["tuner"] for trial in study.trials]
    assert min(by.count(name) for name in set(by)) > 3
    assert len(set(by)) == 2


@pytest.fixture
def mlflow_server(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an MLflow server that keeps its runs in PostgreSQL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", postgres.format("mlflow")]
    command += ["--artifacts-destination", str(tmp_path), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "NO_PROXY": "127.0.0.1"}
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, env=os.environ | quiet, start_new_session=True, stderr=subprocess.PIPE) as process:
        try:
            wait_for(lambda: answers(f"{address}/health"))
            yield address
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


def test_a_tuner_killed_midway_loses_nothing_and_mlflow_has_the_trials_of_both_under_one_run(
    postgres: str, mlflow_server: str
) -> None:
    from mlflow import MlflowClient

    storage = postgres.format("studies")
    tuners = [Process(storage, "random", 24, mlflow_server) for _ in range(2)]
    for tuner in tuners:
        tuner.start()
    for _ in range(8):
        tuners[0].read("trial")
    tuners[0].process.kill()
    assert tuners[1].finish() == 24

    study = the_study(storage, "random")
    check_whole(study, SPACE, 24)
    interrupted = [trial for trial in study.trials if is_interrupted(trial)]
    assert 1 <= len(interrupted) <= 4  # what was in flight when it was killed, each tried again by the other one
    assert len({trial.user_attrs["tuner"] for trial in interrupted}) == 1
    client = MlflowClient(mlflow_server)
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=1000)
    [parent] = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert parent.info.status == "FINISHED"
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    numbers = sorted(trial.number for trial in finished_trials(study, SPACE))
    assert sorted(int(run.data.tags["tilescout.trial"]) for run in children) == numbers
    assert "RUNNING" not in {run.info.status for run in children}
    assert parent.data.metrics["trials"] == 24


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


def test_taking_over_that_was_itself_killed_queues_nothing_twice(database: Database, study: optuna.Study) -> None:
    queue(study, 5)
    trial = study.ask(distributions(SPACE))
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


def test_new_studies_of_one_name_are_numbered_and_results_are_found_by_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    found = []
    for resume in (False, False, True):
        with joined(url, "base", resume, RandomSampler(seed=0), SPACE, QUICK) as (study, _):
            found.append(study.study_name)
            study.set_user_attr("result", {"study": study.study_name})
    assert found == ["base", "base-2", "base-2"]
    assert results(url) == {"base": {"study": "base"}, "base-2": {"study": "base-2"}}
    assert result_of("base-2", url) == {"study": "base-2"}
    with pytest.raises(StoreError, match="there is no study other in sqlite"):
        result_of("other", url)


@pytest.mark.parametrize(
    ("url", "answer"),
    [
        ("postgresql://somebody:secret@127.0.0.1:1/studies", r"somebody:\*\*\*@127.0.0.1:1/studies failed \(.*refused"),
        ("sqlite://", "is no file"),
        ("sqlite:////nowhere/at/all.db", "unable to open database file"),
        ("nonsense://host/name", "nonsense"),
        ("postgresql://host:port/name", "malformed address"),
        ("oracle+oracledb://host/name", "driver that is not installed"),
    ],
)
def test_a_database_that_can_not_be_used_is_one_clear_line_without_its_password(url: str, answer: str) -> None:
    with pytest.raises(StoreError, match=answer) as failure:
        Database(url)
    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_a_journal_is_searched_by_one_process_at_a_time_and_freed_by_its_death(tmp_path: Path) -> None:
    path = make_journal(tmp_path, "base")
    code = f"import pathlib, time, tilescout.search.study as s\nwith s.claimed(pathlib.Path({str(path)!r})):\n"
    code += " print('in', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(StoreError, match="another process is searching the study"), claimed(path):
            pass
        assert make_journal(tmp_path, "base").name == "base-2.journal"
        other.kill()
    with claimed(path):
        pass


def test_searches_that_start_at_once_in_one_folder_get_studies_of_their_own(tmp_path: Path) -> None:
    code = f"import pathlib, sys, tilescout.search.study as s\nsys.stdin.readline()\n"
    code += f"print(*(s.make_journal(pathlib.Path({str(tmp_path)!r}), 'base').name for _ in range(20)))"
    searches = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names: Sequence[str] = " ".join(search.communicate("\n")[0] for search in searches).split()
    assert len(set(names)) == len(names) == 40
