"""All problems of a suite together, on the shipped table, in a real MLflow store."""

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tilescout.costmodel.posterior import Observed
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import FEWEST, Task
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement
from tilescout.search.samplers.guided.prior import Prior
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table
from tilescout.search.tracking import MlflowTracker, SuiteInfo, SuiteRun
from tilescout.search.tuning import suite
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.search.tuning.suite import SuiteInterrupted, tune_suite
from tilescout.search.tuning.trackers import NoTracker
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
PROBLEMS = (GemmProblem(512, 512, 512), GemmProblem(16, 4096, 4096), GemmProblem(1024, 1024, 1024))


@pytest.fixture(scope="module")
def table() -> Table:
    return default_table(TEMPLATE, PROBLEMS[0])


def search(
    table: Table, studies: Path, sampler: str = "random", gpus: int = 1, resume: bool = False, **budget: float
) -> list[StudyResult]:
    options = TuneOptions(sampler, 0, Budget(**budget), studies, resume)  # type: ignore[arg-type]

    return tune_suite(ReplayEngine(table, TEMPLATE, gpus), PROBLEMS, options, slice=5)


class Noting(ReplayEngine):
    """Notes when something is compiled, and when a problem is set up on the GPU."""

    measures_anew = True

    def __init__(self, table: Table) -> None:
        super().__init__(table, TEMPLATE)
        self.asked: list[str] = []

    def capacity(self, gpus: int) -> int:
        return FEWEST

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        self.asked.append("compile")
        return super().compile(configuration, signature)

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        self.asked.append(str(problem))
        return super().prepare(gpu, problem)


def test_a_problem_is_set_up_at_once_or_has_what_it_tries_first_compiled_while_it_waits_for_the_gpu(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "SEATS", len(PROBLEMS) - 1)
    engine = Noting(table)
    tune_suite(engine, PROBLEMS, TuneOptions("guided", 0, Budget(trials=30), tmp_path), slice=5)

    first = sorted(engine.asked.index(str(problem)) for problem in PROBLEMS)  # who is ready first is served first
    before = [engine.asked[:at].count("compile") for at in first]
    assert before[0] == 0
    assert before[-1] >= 5 * len(PROBLEMS)


class Slow(Noting):
    """Compiles nothing for the search that asks first until another one has been measured."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.measured, self.slow = threading.Event(), list[threading.Thread]()

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        compiled = super().compile(configuration, signature)
        self.slow = self.slow or [threading.current_thread()]
        if threading.current_thread() is not self.slow[0]:
            return compiled
        held: Future[Artifact | CompileFailure] = Future()

        def hold() -> None:
            if self.measured.wait(120):
                held.set_result(compiled.result())
            else:
                held.set_exception(AssertionError("no other problem was measured"))

        threading.Thread(target=hold).start()
        return held

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        self.measured.set()  # what is not compiled is not measured: it is of another problem
        return super().measure(gpu, tasks)


def test_the_gpu_measures_for_another_problem_while_one_waits_for_its_compilers(table: Table, tmp_path: Path) -> None:
    engine = Slow(table)
    results = tune_suite(engine, PROBLEMS, TuneOptions("guided", 0, Budget(trials=30), tmp_path), slice=5)
    assert engine.measured.is_set()
    assert sum(len(result.trials) for result in results) == 30


def indices(results: list[StudyResult]) -> list[list[int]]:
    return [[trial.index for trial in result.trials] for result in results]


def test_ctrl_c_in_mid_suite_hands_out_what_is_finished_and_ends_within_a_trial(table: Table, tmp_path: Path) -> None:
    shown = count(1)

    def interrupt(problem: Problem, trial: TrialRecord) -> None:
        if next(shown) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    options = TuneOptions("random", 0, Budget(trials=30), tmp_path)
    with pytest.raises(SuiteInterrupted) as ended:
        tune_suite(ReplayEngine(table, TEMPLATE), PROBLEMS, options, on_trial=interrupt, slice=5)

    found = ended.value.results
    assert [result.info.problem for result in found] == list(PROBLEMS[: len(found)])
    assert 7 <= sum(len(result.trials) for result in found) < 30
    assert not ended.value.complete
    resumed = search(table, tmp_path, resume=True, trials=30)
    assert indices(resumed) == indices(search(table, tmp_path / "whole", trials=30))


def test_ctrl_c_once_all_results_are_handed_out_says_that_they_are_whole(table: Table, tmp_path: Path) -> None:
    told: list[list[StudyResult]] = []

    class Interrupted(NoTracker):
        def finish(self, result: StudyResult) -> None:
            raise KeyboardInterrupt

    options = TuneOptions("random", 0, Budget(trials=6), tmp_path)
    with pytest.raises(SuiteInterrupted) as ended:
        tune_suite(
            ReplayEngine(table, TEMPLATE), PROBLEMS, options, lambda info, run_id: Interrupted(), on_results=told.append
        )

    assert ended.value.complete
    assert told == [ended.value.results]
    assert len(ended.value.results) == len(PROBLEMS)


class Endless(ReplayEngine):
    """Measures nothing before it is closed."""

    def __init__(self, table: Table) -> None:
        super().__init__(table, TEMPLATE)
        self.begun, self.measured = threading.Event(), Future[list[Measurement]]()

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        self.begun.set()
        return self.measured

    def close(self) -> None:
        self.measured.set_exception(StoreError("it was closed"))


def test_a_second_ctrl_c_waits_for_no_trial(table: Table, tmp_path: Path) -> None:
    pressed = list[float]()

    def press() -> None:
        engine.begun.wait(60)
        for _ in range(2):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
        pressed.append(time.monotonic())
        if not ended.wait(20):
            engine.close()

    ended = threading.Event()
    with Endless(table) as engine:
        threading.Thread(target=press).start()
        with pytest.raises(KeyboardInterrupt) as told:
            tune_suite(engine, PROBLEMS[:1], TuneOptions("random", 0, Budget(trials=3), tmp_path))
        took = time.monotonic() - pressed[0]
        ended.set()

    assert not isinstance(told.value, SuiteInterrupted)
    assert took < 5


def test_all_problems_share_one_budget_and_each_starts_with_its_default(table: Table, tmp_path: Path) -> None:
    results = search(table, tmp_path, trials=47)
    assert [result.info.problem for result in results] == list(PROBLEMS)
    assert sum(len(result.trials) for result in results) == 47
    for result in results:
        assert result.trials[0].configuration == result.info.default
        assert len({trial.index for trial in result.trials}) == len(result.trials)
    # Nothing is known of what random search will gain: the problems share the GPU's time evenly, but for a turn.
    spent = [result.gpu_seconds for result in results]
    turn = max(sum(t.measurement.gpu_seconds for t in result.trials[:5]) for result in results)
    assert max(spent) - min(spent) <= 3 * turn


def test_the_results_are_handed_out_before_any_of_them_is_logged(table: Table, tmp_path: Path) -> None:
    told: list[list[StudyResult]] = []

    class Noted(NoTracker):
        def finish(self, result: StudyResult) -> None:
            told.append([result])

    options = TuneOptions("random", 0, Budget(trials=6), tmp_path)
    tune_suite(ReplayEngine(table, TEMPLATE), PROBLEMS, options, lambda info, run_id: Noted(), on_results=told.append)

    first, *logged = told
    assert [result.info.problem for result in first] == list(PROBLEMS)
    assert len(logged) == len(PROBLEMS)


@pytest.mark.parametrize("trials", [1, 3, 4])
def test_a_small_budget_starves_no_problem(table: Table, tmp_path: Path, trials: int) -> None:
    results = search(table, tmp_path, trials=trials)
    assert sum(len(result.trials) for result in results) == max(trials, len(PROBLEMS))
    assert all(result.default is not None for result in results)


def test_an_outcome_is_read_as_often_however_many_turns_a_search_has(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def noted(record: dict[str, Any]) -> Measurement:
        read.append(1)
        return from_dict(record)

    from_dict = Measurement.from_dict
    monkeypatch.setattr(Measurement, "from_dict", noted)
    assert sum(len(result.trials) for result in search(table, tmp_path, trials=90)) == 90
    assert len(read) <= 2 * 90  # as it is told, and for the result


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trials_and_several_gpus_no_fewer(table: Table, tmp_path: Path) -> None:
    first, second = (search(table, tmp_path / name, "guided-cold", trials=60) for name in "ab")
    assert indices(first) == indices(second)
    many = search(table, tmp_path / "c", gpus=3, trials=60)
    assert sum(map(len, indices(many))) == 60


@pytest.mark.slow
def test_gpu_time_goes_where_the_most_is_expected_and_searches_end_by_themselves(table: Table, tmp_path: Path) -> None:
    results = search(table, tmp_path, "guided")  # no limit at all
    assert all(result.stopped for result in results)
    assert all(len(result.trials) < len(table.rows(result.info.problem)) // 2 for result in results)


@pytest.mark.slow
def test_a_guided_search_of_a_suite_has_the_trials_of_the_other_problems(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[Problem, set[Problem]] = {}
    elsewhere = Prior.elsewhere

    def noted(prior: Prior) -> Observed | None:
        assert prior.others is not None
        others = {other.space.problem for other in prior.others()}
        asked.setdefault(prior.space.problem, set()).update(others)
        return elsewhere(prior)

    monkeypatch.setattr(Prior, "elsewhere", noted)
    search(table, tmp_path, "guided", trials=40)
    for problem in PROBLEMS[1:]:
        assert asked[problem]
        assert asked[problem] < set(PROBLEMS)  # never its own
        assert problem not in asked[problem]


@pytest.mark.parametrize("at", range(len(PROBLEMS)))
def test_a_suite_that_goes_on_counts_what_one_of_its_problems_had_before(table: Table, tmp_path: Path, at: int) -> None:
    alone = TuneOptions("random", 0, Budget(trials=20), tmp_path)
    with Evaluator(ReplayEngine(table, TEMPLATE), PROBLEMS[at]) as evaluator:
        run_study(evaluator, alone)

    found = search(table, tmp_path, resume=True, trials=25)

    trials = [len(result.trials) for result in found]
    assert trials[at] == 20
    assert sorted(trials) == [2, 3, 20]


def test_a_resumed_suite_goes_on_where_it_ended(table: Table, tmp_path: Path) -> None:
    first = search(table, tmp_path, trials=21)
    whole = search(table, tmp_path, resume=True, trials=45)
    assert sum(map(len, indices(whole))) == 45
    for before, after in zip(first, whole, strict=True):
        assert list(after.trials[: len(before.trials)]) == list(before.trials)


class Anew(ReplayEngine):
    """Several searches share its GPU, as where something is measured."""

    measures_anew = True


def test_searches_that_share_a_gpu_keep_to_the_gpu_seconds_that_all_have(table: Table, tmp_path: Path) -> None:
    options = TuneOptions("random", 0, Budget(gpu_seconds=1.0), tmp_path)
    results = tune_suite(Anew(table, TEMPLATE), PROBLEMS, options, complement=False)
    assert (
        1.0 <= sum(result.gpu_seconds for result in results) < 1.1
    )  # the last trial of each turn ends beyond its part


def test_an_error_in_one_search_is_raised_once_the_others_are_done_and_told(table: Table, tmp_path: Path) -> None:
    class NoRoom(ReplayEngine):
        def space(self, problem: Problem) -> SearchSpace:
            if problem == PROBLEMS[1]:
                raise StoreError("no room")
            return super().space(problem)

    options = TuneOptions("random", 0, Budget(trials=20), tmp_path)
    told: list[list[StudyResult]] = []
    with pytest.raises(StoreError, match="no room"):
        tune_suite(NoRoom(table, TEMPLATE), PROBLEMS, options, slice=5, on_results=told.append)
    assert [[result.info.problem for result in results] for results in told] == [[PROBLEMS[0], PROBLEMS[2]]]
    assert len(list(tmp_path.glob("*.journal"))) == 2


def test_where_searches_fail_for_several_reasons_each_is_told(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(ReplayEngine):
        def space(self, problem: Problem) -> SearchSpace:
            raise StoreError("damaged" if problem == PROBLEMS[1] else "no room")

    options = TuneOptions("random", 0, Budget(trials=20), tmp_path)
    with pytest.raises(StoreError, match="no room"):
        tune_suite(Failing(table, TEMPLATE), PROBLEMS, options)
    assert [record.getMessage() for record in caplog.records] == [
        f"the search of {PROBLEMS[0]}, {PROBLEMS[2]} failed: no room",
        f"the search of {PROBLEMS[1]} failed: damaged",
    ]


@pytest.mark.slow
def test_mlflow_has_one_run_of_the_suite_with_a_child_for_each_study(table: Table, tmp_path: Path, store: str) -> None:
    from mlflow import MlflowClient

    uri = store
    info = SuiteInfo("three", TEMPLATE.name, "h200", "random", 0, 3, "replayed")

    def run(resume: bool, trials: int) -> str:
        options = TuneOptions("random", 0, Budget(trials=trials), tmp_path / "studies", resume)
        with SuiteRun(uri, None, info, resume) as suite:

            def make_tracker(about: StudyInfo, run_id: str | None) -> MlflowTracker:
                return MlflowTracker(uri, None, about, run_id, suite=suite.run_id)

            suite.finish(tune_suite(ReplayEngine(table, TEMPLATE), PROBLEMS, options, make_tracker, slice=2))
        return suite.run_id

    parent = run(resume=False, trials=6)
    assert run(resume=True, trials=9) == parent
    client = MlflowClient(tracking_uri=uri)
    whole = client.get_run(parent)
    assert whole.info.status == "FINISHED"
    assert whole.data.metrics["trials"] == 9
    assert whole.data.metrics["least_speedup_over_default"] >= 1
    for column in ("library", "library_best", "default"):
        found = whole.data.metrics[f"best_speedup_over_{column}"]
        assert found == whole.data.metrics[f"mean_speedup_over_{column}"]
    assert "| 512x512x512:bf16 |" in whole.data.tags["mlflow.note.content"]
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, max_results=100)
    studies = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent]
    assert {run.data.params["problem"] for run in studies} == set(map(str, PROBLEMS))
    assert len(studies) == 3
    trials = [run for run in runs if run.data.tags.get("mlflow.parentRunId") in {each.info.run_id for each in studies}]
    assert len(trials) == 9
