"""The runs that a search leaves in MLflow: written to real SQLite stores, read back through MLflow's own client."""

import csv
import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Provenance
from tilescout.search.measure.race import Estimate, Race
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking.mlflow_hooks import DatabaseRuns
from tilescout.search.tracking.tracker import MlflowTracker
from tilescout.search.tracking.writer import TrackingError, Writer
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.resources import Resources

DEFAULT = Configuration.of({"tile_m": 128, "stages": 4, "raster": "m"})
LIVE = Provenance("live", "NVIDIA H200, driver 580", {"torch": "2.11.0"})
INFO = StudyInfo(
    "study-1", "gemm_sm90", "c0ffee", GemmProblem(4096, 4096, 4096), "h200", "tpe", 7, LIVE, DEFAULT, "torch.mm", 200.0
)


def trial(number: int, ratio: float | None, *, default: bool = False, status: Status = Status.WRONG) -> TrialRecord:
    """A trial that took `ratio` of the library's time; None is one that failed with `status`."""
    configuration = DEFAULT if default else Configuration.of({"tile_m": 64, "stages": number + 5, "raster": "n"})
    resources = Resources(168, 0, 196_608, 920)
    if ratio is None:
        outcome = Measurement(status, "result is off by 3.1", relative_error=0.9)
    else:
        timing = Timing(ratio, ratio * 0.99, ratio * 1.02, ratio * 0.995, ratio * 1.01, INFO.library_us, 40)
        outcome = Measurement(Status.OK, timing=timing, pilot_us=timing.time_us * 1.1, relative_error=0.0021)
    measurement = replace(outcome, resources=resources, compile_seconds=1.5, gpu_seconds=0.25, verify_seconds=0.125)
    return TrialRecord(number, 1000 + number, configuration, measurement, 1e9 + number, 1e9 + number + 0.5)


def pruned(number: int, pilot_us: float) -> TrialRecord:
    """A trial that ended after its pilot launch."""
    record = trial(number, None, status=Status.PRUNED)
    measurement = replace(record.measurement, error="", pilot_us=pilot_us, relative_error=0.0021)
    return replace(record, measurement=measurement)


def a_search(trials: int) -> list[TrialRecord]:
    """Trial 0 is the default, every seventh fails, the rest get faster."""
    rest = (trial(n, None if n % 7 == 3 else 2 - n / trials) for n in range(1, trials))
    return [trial(0, 1.25, default=True), *rest]


@pytest.fixture
def own_store(copy_store: Callable[[Path], str], tmp_path: Path) -> str:
    """A store for one test to damage."""
    return copy_store(tmp_path)


def file_of(uri: str) -> str:
    return uri.removeprefix("sqlite:///")


def tracker(uri: str, run_id: str | None = None, **options: Any) -> MlflowTracker:
    return MlflowTracker(uri, None, INFO, run_id, **options)


def client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def children(uri: str, run_id: str) -> dict[int, Any]:
    """The children of a run by their trial's number; fails if a trial has two."""
    runs = client(uri).search_runs(["1", "2"], f"tags.mlflow.parentRunId = '{run_id}'", max_results=5000)
    found = {int(run.data.tags["tilescout.trial"]): run for run in runs}
    assert len(found) == len(runs)
    return found


def written(uri: str, run_id: str) -> int:
    """How many children a run has."""
    with closing(sqlite3.connect(file_of(uri))) as connection:
        parents = "SELECT count(*) FROM tags WHERE key = 'mlflow.parentRunId' AND value = ?"
        return int(connection.execute(parents, [run_id]).fetchone()[0])


def history(uri: str, run_id: str, metric: str) -> list[tuple[int, float]]:
    return sorted((point.step, point.value) for point in client(uri).get_metric_history(run_id, metric))


def test_a_study_is_a_parent_run_with_a_child_for_each_trial(store: str) -> None:
    trials = [*a_search(9), trial(9, None, status=Status.INTERRUPTED)]
    with tracker(store) as log:
        for record in trials:
            log.log(record)
        log.finish(StudyResult(INFO, trials, 12.5))
    found = children(store, log.run_id)
    assert sorted(found) == list(range(10))
    for record in trials:
        run = found[record.number]
        assert run.info.run_name == f"trial {record.number}"
        assert (run.info.start_time, run.info.end_time) == (record.started * 1000, record.finished * 1000)
        assert run.data.params == {
            "space_index": str(record.index), **{k: str(v) for k, v in record.configuration.items()}
        }  # fmt: skip
        assert run.data.metrics["compile_seconds"] == 1.5
        assert run.data.metrics["gpu_seconds"] == 0.25
        assert run.data.metrics["registers"] == 168
        assert run.data.tags["status"] == record.measurement.status
        assert run.data.tags["device"] == "h200"
        assert run.data.tags["version.torch"] == "2.11.0"
        assert run.data.tags["space_hash"] == "c0ffee"
        assert run.data.tags["measured_by"] == "NVIDIA H200, driver 580"
    assert [found[n].info.status for n in (0, 3, 9)] == ["FINISHED", "FAILED", "KILLED"]
    assert "time_us" not in found[3].data.metrics
    assert found[3].data.metrics["relative_error"] == 0.9
    assert found[3].data.tags["error"] == "result is off by 3.1"
    metrics = found[8].data.metrics
    assert metrics["time_us"] == pytest.approx(200 * (2 - 8 / 9))
    assert metrics["tflops"] == pytest.approx(2 * 4096**3 / (metrics["time_us"] * 1e-6) / 1e12)
    assert metrics["speedup_over_library"] == pytest.approx(200 / metrics["time_us"])
    assert metrics["speedup_over_default"] == pytest.approx(250 / metrics["time_us"])


@pytest.mark.slow
def test_finalists_say_what_the_race_cost_beside_their_trial(store: str, tmp_path: Path) -> None:
    trials = a_search(9)
    ratios = {trials[number].index: Estimate(1.0, 0.99, 1.01) for number in (0, 7, 8)}
    ran = dict(zip(ratios, (30, 12, 30), strict=True))
    race = Race(trials[8].index, trials[8].index, ratios, Estimate(0.9, 0.89, 0.91), 0.9, 30, ran, gpu_seconds=3.6)
    result = StudyResult(INFO, trials, 12.5, race=race)
    with tracker(store) as log:
        log.finish(result)

    found = {number: run.data.metrics for number, run in children(store, log.run_id).items()}
    spent = {number: metrics["race_seconds"] for number, metrics in found.items() if "race_seconds" in metrics}
    assert spent == pytest.approx({0: 1.5, 7: 0.6, 8: 1.5})
    assert all(metrics["gpu_seconds"] == 0.25 for metrics in found.values())
    parent = client(store).get_run(log.run_id)
    assert parent.data.metrics["cost_race_seconds"] == 3.6
    with Path(client(store).download_artifacts(log.run_id, "trials.csv", str(tmp_path))).open() as file:
        spent = {int(row["trial"]): float(row["race_seconds"]) for row in csv.DictReader(file) if row["race_seconds"]}
    assert spent == pytest.approx({0: 1.5, 7: 0.6, 8: 1.5})


@pytest.mark.slow
def test_the_best_of_the_parent_is_in_the_end_what_the_race_answers(store: str) -> None:
    trials = a_search(9)
    ratios = {trials[number].index: Estimate(value, value, value) for number, value in ((0, 1.2), (8, 1.1))}
    race = Race(trials[8].index, trials[0].index, ratios, Estimate(0.99, 0.9, 1.1), 0.6, 30, dict.fromkeys(ratios, 30))
    result = StudyResult(INFO, trials, 12.5, race=race)
    with tracker(store) as log:
        for record in trials:
            log.log(record)
        log.finish(result)
    metrics = client(store).get_run(log.run_id).data.metrics
    assert metrics["best_time_us"] == 1.2 * 200  # of the default: nothing was proven as fast
    assert metrics["best_speedup_over_library"] == 1 / 1.2
    assert metrics["best_speedup_over_default"] == 1
    assert history(store, log.run_id, "best_time_us")[-1] == (9, metrics["best_time_us"])


@pytest.mark.slow
def test_a_pruned_trial_shows_its_pilot_and_is_no_failure(store: str, tmp_path: Path) -> None:
    trials = [trial(0, 1.25, default=True), pruned(1, 900.0), trial(2, None), trial(3, 1.0)]
    with tracker(store) as log:
        for record in trials:
            log.log(record)
        log.finish(StudyResult(INFO, trials, 12.5))
    run = children(store, log.run_id)[1]
    assert run.info.status == "FINISHED"
    assert run.data.tags["status"] == "pruned"
    assert "error" not in run.data.tags
    assert run.data.metrics["pilot_us"] == 900
    assert run.data.metrics["verify_seconds"] == 0.125
    assert not {"time_us", "speedup_over_default"} & set(run.data.metrics)
    assert history(store, log.run_id, "failed_trials") == [(1, 0), (2, 0), (3, 1), (4, 1)]
    assert history(store, log.run_id, "best_time_us")[-1] == (4, 200)
    note = client(store).get_run(log.run_id).data.tags["mlflow.note.content"]
    assert "4 trials, 1 of them failed, 1 pruned" in note
    folder = Path(client(store).download_artifacts(log.run_id, "", str(tmp_path)))
    with (folder / "trials.csv").open() as file:
        row = list(csv.DictReader(file))[1]
    assert (row["status"], row["time_us"], float(row["pilot_us"])) == ("pruned", "", 900)
    described = json.loads((folder / "best_configuration.json").read_text())
    assert (described["failed_trials"], described["pruned_trials"]) == (1, 1)
    assert described["account"]["verify"] == 0.5


def test_the_parent_shows_the_best_so_far_at_every_trial(store: str) -> None:
    trials = [trial(1, 3.0), trial(2, None), trial(0, 1.25, default=True), trial(3, 1.0)]
    with tracker(store) as log:
        for record in trials:
            log.log(record)
        log.finish(StudyResult(INFO, trials, 12.5))
    assert history(store, log.run_id, "best_time_us") == [(1, 600), (2, 600), (3, 250), (4, 200)]
    assert history(store, log.run_id, "failed_trials") == [(1, 0), (2, 1), (3, 1), (4, 1)]
    assert history(store, log.run_id, "total_gpu_seconds") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    parent = client(store).get_run(log.run_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["best_speedup_over_library"] == 1.0
    assert parent.data.metrics["best_speedup_over_default"] == 1.25
    assert parent.data.params["problem"] == "4096x4096x4096:bf16"
    assert parent.data.params["default_configuration"] == "tile_m=128 stages=4 raster=m"
    assert client(store).get_experiment(parent.info.experiment_id).name == "tilescout/gemm_sm90"


@pytest.mark.slow
def test_trials_that_finish_before_the_default_get_their_speedup_over_it_later(store: str) -> None:
    trials = [trial(1, 2.5), trial(2, None), trial(3, 0.625), trial(0, 1.25, default=True)]
    with tracker(store) as log:
        for record in trials:
            log.log(record)
        log.finish(StudyResult(INFO, sorted(trials, key=lambda t: t.number), 1.0))
    speedups = {n: run.data.metrics.get("speedup_over_default") for n, run in children(store, log.run_id).items()}
    assert speedups == {0: 1.0, 1: 0.5, 2: None, 3: 2.0}


def test_without_a_default_that_works_no_speedup_over_it_is_claimed(store: str) -> None:
    failed = replace(trial(0, None), configuration=DEFAULT)
    with tracker(store) as log:
        log.log(failed)
        log.log(trial(1, 1.0))
        log.finish(StudyResult(INFO, [failed, trial(1, 1.0)], 1.0))
    assert "speedup_over_default" not in children(store, log.run_id)[1].data.metrics
    parent = client(store).get_run(log.run_id)
    assert "best_speedup_over_default" not in parent.data.metrics
    assert re.search(r"\| default, trial 0&emsp;\| wrong&emsp;\|", parent.data.tags["mlflow.note.content"])


@pytest.mark.slow
def test_the_result_is_attached_as_json_table_and_picture(store: str, tmp_path: Path) -> None:
    from PIL import Image

    trials = a_search(20)
    result = StudyResult(INFO, trials, 12.5)
    with tracker(store) as log:
        log.finish(result)
    folder = Path(client(store).download_artifacts(log.run_id, "", str(tmp_path)))
    assert json.loads((folder / "best_configuration.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["trial"]) for row in rows] == list(range(20))
    assert [row["time_us"] == "" for row in rows] == [not t.measurement.ok for t in trials]
    assert float(rows[19]["speedup_over_default"]) == pytest.approx(1.25 / trials[19].measurement.timing.ratio)  # type: ignore[union-attr]
    with Image.open(folder / "convergence.png") as picture:
        picture.load()
        assert picture.size == (860, 560)
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 50  # something is drawn
    note = client(store).get_run(log.run_id).data.tags["mlflow.note.content"]
    works = [run for run in children(store, log.run_id).values() if run.info.status == "FINISHED"]
    assert "4096x4096x4096:bf16" in note
    assert "best, trial 19" in note
    assert "#/compare-runs?runs=[%22" in note
    assert "&experiments=[%222%22]" in note
    assert all(run.info.run_id in note for run in works)


@pytest.mark.parametrize("trials", [[], [trial(0, None)]], ids=["no trials", "only failures"])
def test_a_study_without_a_working_trial_ends_as_failed_and_says_so(store: str, trials: list[TrialRecord]) -> None:
    with tracker(store) as log:
        log.finish(StudyResult(INFO, trials, 1.0))
    parent = client(store).get_run(log.run_id)
    assert parent.info.status == "FAILED"
    assert "No trial worked" in parent.data.tags["mlflow.note.content"]
    assert {file.path for file in client(store).list_artifacts(log.run_id)} >= {"convergence.png", "trials.csv"}


@pytest.mark.slow
def test_logging_returns_at_once_while_the_store_is_locked(own_store: str) -> None:
    trials = a_search(10)
    with tracker(own_store) as log, closing(sqlite3.connect(file_of(own_store))) as other:
        other.execute("BEGIN IMMEDIATE")
        before = time.perf_counter()
        for record in trials:
            log.log(record)
        assert time.perf_counter() - before < 4  # SQLite would wait for 5 s for the lock
        time.sleep(0.5)
        assert children(own_store, log.run_id) == {}  # while it is locked: right behind that the writer may be first
        other.execute("ROLLBACK")
        log.finish(StudyResult(INFO, trials, 1.0))
    assert len(children(own_store, log.run_id)) == 10


def rename_runs(uri: str, old: str, new: str) -> None:
    with closing(sqlite3.connect(file_of(uri), timeout=20)) as connection:
        connection.execute("PRAGMA legacy_alter_table = ON")  # leaves the foreign keys of other tables alone
        connection.execute(f"ALTER TABLE {old} RENAME TO {new}")


@pytest.mark.slow
def test_an_outage_is_waited_out_and_nothing_is_lost_or_written_twice(own_store: str) -> None:
    trials = a_search(12)
    with tracker(own_store) as log:
        log.log(trials[0])
        rename_runs(own_store, "runs", "gone")
        log.catch_up(trials)
        time.sleep(0.4)
        rename_runs(own_store, "gone", "runs")
        log.finish(StudyResult(INFO, trials, 1.0))
    assert len(children(own_store, log.run_id)) == 12
    assert [step for step, _ in history(own_store, log.run_id, "total_gpu_seconds")] == list(range(1, 13))


@pytest.mark.slow
def test_a_run_that_a_server_makes_after_we_gave_up_on_it_is_no_second_one(
    own_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr(DatabaseRuns, "of", lambda *given: None)  # as with a server: one call after the other
    create, late = MlflowClient.create_run, list[Any]()

    def create_run(self: MlflowClient, *given: Any) -> Any:
        if not late:
            late.append(partial(create, self, *given))
            raise ConnectionError("timed out")
        made = create(self, *given)
        if len(late) == 1:  # only now the server comes to it
            late.append(late[0]())
        return made

    trials = a_search(3)
    with tracker(own_store) as log:
        monkeypatch.setattr(MlflowClient, "create_run", create_run)
        log.finish(StudyResult(INFO, trials, 1.0))
    assert len(late) == 2
    assert {run.info.status for run in children(own_store, log.run_id).values()} == {"FINISHED"}


@pytest.mark.slow
def test_what_a_dead_store_did_not_take_is_named_after_a_bounded_time(
    own_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain, began = Writer.drain, list[float]()

    def watched(writer: Writer, patience: float) -> None:
        began.append(time.perf_counter())  # the pictures are drawn by now
        drain(writer, patience)

    monkeypatch.setattr(Writer, "drain", watched)
    log = tracker(own_store, patience=3)
    rename_runs(own_store, "runs", "gone")
    with pytest.raises(TrackingError, match=r"trial 0, trial 1, the summary \(.*no such table: runs") as failure:
        log.finish(StudyResult(INFO, a_search(2), 1.0))
    assert time.perf_counter() - began[0] < 25  # the patience of others is 30 s
    assert failure.value.undelivered == ("trial 0", "trial 1", "the summary")
    log.close()  # has nothing left to say


def test_a_trial_that_mlflow_refuses_does_not_hold_up_the_others(store: str) -> None:
    odd = trial(1, 1.0)
    odd = replace(odd, measurement=replace(odd.measurement, relative_error="small"))  # type: ignore[arg-type]
    log = tracker(store)
    with pytest.raises(TrackingError) as failure:
        log.finish(StudyResult(INFO, [trial(0, 1.25, default=True), odd, trial(2, 1.5)], 1.0))
    assert failure.value.undelivered == ("trial 1",)
    found = children(store, log.run_id)
    assert [found[n].info.status for n in (0, 2)] == ["FINISHED", "FINISHED"]


def test_text_that_no_database_takes_is_written_as_escapes(store: str) -> None:
    nasty = "a\ud800\x00"
    info = replace(INFO, name=nasty, space=nasty, sampler=nasty, default=Configuration.of({nasty: nasty}))
    trials = [replace(each, configuration=Configuration.of({nasty: each.number, "b": nasty})) for each in a_search(4)]
    trials[3] = replace(trials[3], measurement=Measurement(Status.WRONG, nasty))
    with MlflowTracker(store, None, info) as log:
        for record in trials:
            log.log(record)
        log.finish(StudyResult(info, trials, 1.0, not_raced=nasty))

    found = client(store).search_runs(["1", "2", "3", "4"], f"tags.mlflow.parentRunId = '{log.run_id}'")
    assert len(found) == len(trials)
    assert {run.data.params["b"] for run in found} == {"a\\ud800\\x00"}


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("broken"), "FAILED"), (KeyboardInterrupt(), "KILLED")], ids=["error", "Ctrl-C"]
)
def test_a_search_that_breaks_off_delivers_what_it_has(store: str, error: BaseException, status: str) -> None:
    def search() -> None:
        with tracker(store) as log:
            run_ids.append(log.run_id)
            log.log(trial(0, 1.25, default=True))
            raise error

    run_ids: list[str] = []
    with pytest.raises(type(error)):
        search()
    assert client(store).get_run(run_ids[0]).info.status == status
    assert children(store, run_ids[0])[0].info.status == "FINISHED"


@pytest.mark.slow
def test_a_resumed_study_delivers_what_is_missing_or_half_written_and_nothing_twice(store: str) -> None:
    trials = a_search(9)
    with tracker(store) as log:
        log.catch_up(trials[:4])
    half = client(store).create_run("2", tags={"mlflow.parentRunId": log.run_id, "tilescout.trial": "4"})
    with tracker(store, log.run_id) as again:
        assert again.run_id == log.run_id
        assert client(store).get_run(log.run_id).info.status == "RUNNING"
        again.catch_up(trials[:8])
        again.log(trials[7])
        again.log(trials[8])
        again.finish(StudyResult(INFO, trials, 1.0))
    found = children(store, log.run_id)
    assert sorted(found) == list(range(9))
    assert found[4].info.run_id == half.info.run_id
    assert found[4].data.params["stages"] == "9"
    assert all(run.info.status in ("FINISHED", "FAILED") for run in found.values())
    assert [step for step, _ in history(store, log.run_id, "failed_trials")] == list(range(1, 10))


KILLED = """
import sys, time
sys.path.insert(0, {here!r})
from test_tracking import trial, tracker
log = tracker({uri!r})
print(log.run_id, flush=True)
log.catch_up(trial(n, 1.25 + n / 1000, default=n == 0) for n in range(400))
time.sleep(60)
"""


@pytest.mark.slow
def test_resuming_after_kill_9_in_the_middle_of_writing_completes_the_study(store: str) -> None:
    script = KILLED.format(here=str(Path(__file__).parent), uri=store)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        wait_for(lambda: written(store, run_id) >= 3)
        process.kill()
    trials = [trial(n, 1.25 + n / 1000, default=n == 0) for n in range(len(children(store, run_id)) + 5)]
    with tracker(store, run_id) as log:
        log.catch_up(trials)
        log.finish(StudyResult(INFO, trials, 1.0))
    found = children(store, run_id)
    assert sorted(found) == [t.number for t in trials]
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    assert all("speedup_over_default" in run.data.metrics for run in found.values())
    assert history(store, run_id, "total_gpu_seconds") == [(n, n / 4) for n in range(1, len(trials) + 1)]


def test_resuming_the_run_of_another_store_or_study_is_refused(store: str) -> None:
    with pytest.raises(StoreError, match="has no run 0123456789abcdef of study study-1"):
        tracker(store, "0123456789abcdef")
    with tracker(store) as log:
        run_id = log.run_id
    with pytest.raises(StoreError, match="sampler"):
        MlflowTracker(store, None, replace(INFO, sampler="random"), run_id)
    client(store).delete_run(run_id)
    with pytest.raises(StoreError, match="was deleted"):
        tracker(store, run_id)


def test_a_deleted_experiment_is_named_with_the_way_back(own_store: str) -> None:
    tracker(own_store).close()
    client(own_store).delete_experiment("1")
    with pytest.raises(StoreError, match="mlflow experiments restore -x 1"):
        tracker(own_store)


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.1)
