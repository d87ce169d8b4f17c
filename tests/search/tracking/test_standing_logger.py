"""The process that stands by with MLflow imported: it logs what a search itself would, and loses nothing."""

import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from tilescout.experiments.commands.doctor import examine
from tilescout.search.api import tune
from tilescout.search.build import standby
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.build.standby import can_stand_by, running
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Provenance
from tilescout.search.measure.race import Estimate, Race
from tilescout.search.studies.folders import studies
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking import PARENT_TAG, TRIAL_TAG
from tilescout.search.tracking.result import TuneResult
from tilescout.search.tracking.standing import logger
from tilescout.search.tracking.standing.desk import _Desk, _serve, with_indices
from tilescout.search.tracking.standing.logger import StandingLogger, wait_for_what_is_under_way
from tilescout.search.tracking.standing.unlogged import clear, mark, unlogged
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

pytestmark = pytest.mark.skipif(not can_stand_by(), reason="needs Linux")

ALONE = LiveOptions(CompileOptions(standby=False))
PROBLEM = "512x512x512:bf16"


@pytest.fixture(scope="module", autouse=True)
def standing() -> Iterator[None]:
    """A folder of sockets for the processes of this module alone; the path of a socket has 107 bytes at most."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(dir="/tmp") as folder:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield
        _kill()


def _kill() -> None:
    """Kill what stands by, once it has started: one that is about to die still takes connections."""
    while any(map(standby.answers, standby._folder().glob("*.socket"))):
        for each in running():
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        time.sleep(0.02)


def _logged(uri: str, page: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The parameters, metrics but for seconds, and files of a study's run; those of its trials' runs, in order."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)

    def known(run: Any) -> dict[str, Any]:
        metrics = {name: value for name, value in run.data.metrics.items() if "seconds" not in name}
        return {"status": run.info.status, "params": run.data.params, "metrics": metrics, "name": run.info.run_name}

    parent = client.get_run(page.partition("/runs/")[2].partition("?")[0])
    children = f"tags.`{PARENT_TAG}` = '{parent.info.run_id}'"
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()], children, max_results=100)
    files = {each.path for each in client.list_artifacts(parent.info.run_id)}
    timed = {name for name in parent.data.metrics if "seconds" in name}
    trials = sorted(runs, key=lambda run: int(run.data.tags[TRIAL_TAG]))
    return known(parent) | {"files": files, "timed": timed}, [known(run) for run in trials]


def _runs(uri: str) -> int:
    """How many runs there are, of studies and of trials."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    return len(client.search_runs([each.experiment_id for each in client.search_experiments()], max_results=1000))


@pytest.mark.slow
def test_it_logs_what_a_search_that_logs_by_itself_does(store: str, tmp_path: Path) -> None:
    apart, alone = (
        tune("gemm_sm90", PROBLEM, sampler="random", budget=12, store=tmp_path / name, mlflow=store, live=live)
        for name, live in (("apart", None), ("alone", ALONE))
    )
    assert [each.what for each in running()] == ["log"]
    assert apart.page
    assert not apart.not_tracked
    assert _logged(store, apart.page) == _logged(store, alone.page)


@pytest.mark.slow
def test_trials_are_logged_while_the_search_goes_on(store: str, tmp_path: Path) -> None:
    before, reached = _runs(store), list[bool]()

    def wait(trial: TrialRecord) -> None:
        """Until the study has its run, in the middle, and until some of its trials have theirs, at the end."""
        awaited = {5: before + 1, 11: before + 6}.get(trial.number, 0)
        deadline = time.monotonic() + 120
        while _runs(store) < awaited and time.monotonic() < deadline:
            time.sleep(0.1)
        reached.append(_runs(store) >= awaited)

    tune("gemm_sm90", PROBLEM, sampler="random", budget=12, store=tmp_path, mlflow=store, on_trial=wait)
    assert reached == [True] * 12


@pytest.mark.slow
def test_what_a_killed_process_did_not_log_is_logged_by_a_resumed_search(store: str, tmp_path: Path) -> None:
    def search(resume: bool = False, **more: Any) -> TuneResult:
        return tune(
            "gemm_sm90", PROBLEM, sampler="random", budget=12, store=tmp_path, mlflow=store, resume=resume, **more
        )

    killed = search(on_result=lambda result: _kill())
    assert "the process that logs to MLflow ended" in killed.not_tracked
    assert len(killed.trials) == 12

    resumed = search(resume=True, live=ALONE)
    assert not resumed.not_tracked
    about, trials = _logged(store, resumed.page)
    assert about["status"] == "FINISHED"
    assert len(trials) == 12


@pytest.mark.slow
def test_where_the_process_has_to_start_the_search_does_not_wait_and_all_arrives(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "PATIENCE_SECONDS", 0.0)
    _kill()
    left = tune("gemm_sm90", PROBLEM, sampler="random", budget=3, store=tmp_path, mlflow=store)
    assert (left.page, left.not_tracked) == ("", "")
    assert [each.name for each in _marks(tmp_path)] == [f"{left.info.name}.unlogged"]
    assert unlogged(studies(tmp_path)) == {}  # it is under way

    deadline = time.monotonic() + 120
    while _marks(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not _marks(tmp_path)
    resumed = tune(
        "gemm_sm90", PROBLEM, sampler="random", budget=4, store=tmp_path, mlflow=store, resume=True, live=ALONE
    )
    about, trials = _logged(store, resumed.page)  # one run, of both
    assert about["status"] == "FINISHED"
    assert len(trials) == 4


@pytest.mark.slow
def test_a_search_that_is_resumed_while_a_process_logs_it_alone_goes_on_with_the_same_run(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logger, "PATIENCE_SECONDS", 0.0)
    _kill()
    before = _runs(store)
    tune("gemm_sm90", PROBLEM, sampler="random", budget=3, store=tmp_path, mlflow=store)
    with caplog.at_level(logging.INFO, "tilescout"):
        resumed = tune(
            "gemm_sm90", PROBLEM, sampler="random", budget=4, store=tmp_path, mlflow=store, resume=True, live=ALONE
        )

    assert "waiting until the last search is logged" in caplog.text
    about, trials = _logged(store, resumed.page)
    assert about["status"] == "FINISHED"
    assert len(trials) == 4
    assert _runs(store) == before + 5  # of the study, and of its trials
    assert not _marks(tmp_path)


def test_a_resumed_search_waits_only_while_a_process_logs_and_gives_up_what_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = False
    monkeypatch.setattr(logger, "_stands_by", lambda: standing)
    wait_for_what_is_under_way(tmp_path / "absent")
    mark(tmp_path, "failed", "why")
    mark(tmp_path, "left")
    wait_for_what_is_under_way(tmp_path)  # nothing logs
    standing = True
    arriving = Timer(0.2, clear, (tmp_path, "left"))
    arriving.start()
    wait_for_what_is_under_way(tmp_path)
    assert unlogged(tmp_path) == {"failed": "why"}
    assert not (tmp_path / "left.unlogged").exists()
    mark(tmp_path, "killed")
    monkeypatch.setattr("tilescout.search.tracking.standing.unlogged._UNDER_WAY", 0.2)
    wait_for_what_is_under_way(tmp_path)
    assert list(unlogged(tmp_path)) == ["failed", "killed"]


def test_a_mark_of_before_the_clock_was_set_back_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "_stands_by", lambda: True)
    mark(tmp_path, "killed")
    tomorrow = time.time() + 86_400
    os.utime(tmp_path / "killed.unlogged", (tomorrow, tomorrow))
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it is waited for"))

    wait_for_what_is_under_way(tmp_path)

    assert list(unlogged(tmp_path)) == ["killed"]


def test_a_study_that_another_search_went_on_with_ends_its_run_and_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    found = SimpleNamespace(trials=[SimpleNamespace(number=number) for number in range(2)])
    monkeypatch.setattr("tilescout.search.tracking.standing.desk.read_study", lambda *asked: found)
    monkeypatch.setattr("tilescout.search.tracking.standing.desk.replace", lambda what, **more: what)
    desk: Any = _Desk("", None, tmp_path, None)  # type: ignore[arg-type]
    desk._trackers["a"] = SimpleNamespace(close=ended.append, catch_up=lambda trials: None)
    (tmp_path / "a.journal").touch()

    with pytest.raises(StoreError, match="another search went on with it"):
        desk.do("finish", study="a", indices={"0": 7}, wall={}, left=True)

    assert ended == ["KILLED"]
    assert not desk.open
    assert unlogged(tmp_path) == {"a": "another search went on with it before all was logged"}


@pytest.mark.slow
def test_what_a_process_that_goes_on_alone_could_not_log_is_told_by_the_next_search_and_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logger, "PATIENCE_SECONDS", 0.0)
    _kill()
    nowhere = "http://127.0.0.1:9"
    left = tune("gemm_sm90", PROBLEM, sampler="random", budget=3, store=tmp_path, mlflow=nowhere)
    deadline = time.monotonic() + 120
    while not (told := unlogged(studies(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.2)

    assert list(told) == [left.info.name]
    assert "127.0.0.1:9" in told[left.info.name]
    findings = {each.what: each for each in examine(tmp_path)}
    assert findings[f"study {left.info.name}"].state == "missing"
    with caplog.at_level(logging.WARNING, "tilescout"):
        tune("gemm_sm90", PROBLEM, sampler="random", budget=3, store=tmp_path, resume=True, live=ALONE)
    assert f"study {left.info.name} is not in MLflow" in caplog.text
    assert unlogged(studies(tmp_path)) == {}  # delivered to another store


def test_what_is_in_the_place_of_a_mark_is_told_and_never_written(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    for name, plant in {
        "pipe": os.mkfifo,
        "folder": os.mkdir,
        "link": lambda path: path.symlink_to(other),
        "large": lambda path: path.write_bytes(b"x" * (2 << 20)),
        "text": lambda path: path.write_text("\x1b[2Ja\nb"),
    }.items():
        plant(tmp_path / f"{name}.unlogged")

    told = unlogged(tmp_path)

    assert sorted(told) == ["folder", "large", "link", "pipe", "text"]
    assert told["text"] == r"\x1b[2Ja b"
    assert all(text.isprintable() for text in told.values())
    mark(tmp_path, "link", "why")
    assert other.read_text() == "mine"
    assert (tmp_path / "link.unlogged").read_text() == "why"
    clear(tmp_path, "pipe")
    for change in (mark, clear):
        with pytest.raises(StoreError, match="move away"):
            change(tmp_path, "folder")


def test_whatever_mlflow_raises_is_told_and_noted_where_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> object:
        raise ValueError("Invalid IPv6 URL")

    monkeypatch.setattr("tilescout.search.tracking.standing.desk.read_study", refuse)
    ours, theirs = Pipe()
    desk: Any = _Desk("http://[::", None, tmp_path, None)  # type: ignore[arg-type]
    serving = Thread(target=_serve, args=(theirs, desk))
    serving.start()
    answers = []
    (tmp_path / "a.journal").touch()
    for study in ("a", "deleted"):
        for asked in ({"what": "begin", "run_id": None}, {"what": "finish", "indices": {}, "wall": {}, "left": True}):
            ours.send_bytes(json.dumps({"study": study, **asked}).encode())
            answers.append(json.loads(ours.recv_bytes()))
    ours.close()
    serving.join()

    told = "can't log to MLflow: ValueError: Invalid IPv6 URL"
    assert [each["error"].split(" (")[0] for each in answers] == [told] * 4
    assert unlogged(tmp_path)["a"].startswith(told)
    assert [*unlogged(tmp_path)] == ["a"]  # nobody could deliver a study that is gone


def test_why_a_study_could_not_begin_is_told_to_whoever_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Pipe()
    session = SimpleNamespace(connection=ours, kill=lambda: None, wait=lambda: None)
    monkeypatch.setattr(logger, "open_session", lambda *asked: session)
    with logger.StandingLogger("odd://", None, tmp_path) as standing:
        tracker = standing.study("a", None)
        theirs.send_bytes(json.dumps({"error": "can't use it"}).encode())
        for _ in range(2):
            with pytest.raises(StoreError, match="can't use it"):
                _ = tracker.run_id
        other = standing.study("b", None)
        theirs.close()
        for _ in range(2):
            with pytest.raises(StoreError, match="the process that logs to MLflow ended"):
                _ = other.run_id


@pytest.fixture
def standing_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StandingLogger, Connection]]:
    """A session, and the end of its connection at which a test stands in for the process that logs."""
    ours, theirs = Pipe()
    session = SimpleNamespace(connection=ours, kill=lambda: None, wait=lambda: None)
    monkeypatch.setattr(logger, "open_session", lambda *asked: session)
    with StandingLogger("odd://", None, tmp_path) as standing, theirs:
        yield standing, theirs


def _finishing(standing: StandingLogger, pool: ThreadPoolExecutor, study: str) -> "Future[Any]":
    """A search that waits until its study is finished."""
    number = standing.send("finish", study=study)
    waiting = pool.submit(standing.answer, number)
    while not standing._is_polled:
        time.sleep(0.001)
    return waiting


def test_a_search_that_waits_until_its_study_is_logged_holds_up_no_other(
    standing_apart: tuple[StandingLogger, Connection],
) -> None:
    standing, theirs = standing_apart
    with ThreadPoolExecutor() as pool, theirs:
        early = standing.send("begin", study="other")
        first = _finishing(standing, pool, "one")
        pool.submit(standing.tell, study="other", indices={1: 5}).result(timeout=30)
        late = pool.submit(standing.send, "begin", study="third").result(timeout=30)
        assert standing.answer(late, 0.0) is None  # and whoever does not wait is told at once
        begun = pool.submit(standing.answer, early)
        theirs.send_bytes(b'{"run_id": "of the other"}')
        assert begun.result(timeout=30) == {"run_id": "of the other"}
        assert not first.done()
        for _ in range(2):
            theirs.send_bytes(b"{}")
        assert first.result(timeout=30) == standing.answer(late) == {}


def test_whoever_waits_behind_another_for_an_answer_gets_it_or_is_told_of_the_end(
    standing_apart: tuple[StandingLogger, Connection],
) -> None:
    standing, theirs = standing_apart
    with ThreadPoolExecutor() as pool, theirs:
        first = _finishing(standing, pool, "one")
        behind = [pool.submit(standing.answer, standing.send("finish", study=str(study))) for study in range(3)]
        theirs.send_bytes(b'{"of": "one"}')
        theirs.send_bytes(b'{"of": 0}')
        assert [first.result(timeout=30), behind[0].result(timeout=30)] == [{"of": "one"}, {"of": 0}]
        theirs.close()
        for waiting in behind[1:]:
            with pytest.raises(StoreError, match="the process that logs to MLflow ended"):
                waiting.result(timeout=30)


def _marks(store: Path) -> list[Path]:
    return sorted(Path(studies(store)).glob("*.unlogged"))


def test_what_a_study_numbers_gets_the_indices_of_the_space_in_the_race_too() -> None:
    timing = Timing(1.0, 1.0, 1.0, 0.9, 1.1, 10.0, 20)
    trials = [
        TrialRecord(number, number, Configuration.of({"knob": number}), Measurement(Status.OK, timing=timing), 0.0, 1.0)
        for number in (0, 2)
    ]
    equal = Estimate(1.0, 0.9, 1.1)
    race = Race(2, 0, {0: equal, 2: equal}, equal, 0.5, 6, {0: 6, 2: 6})
    provenance, problem = Provenance("live", "", {}), GemmProblem(64, 64, 64)
    info = StudyInfo("s", "g", "", problem, "h200", "tpe", 0, provenance, trials[0].configuration, "torch.mm", 10.0)

    found = with_indices(StudyResult(info, trials, 1.0, race=race), {0: 70, 2: 50})

    assert [trial.index for trial in found.trials] == [70, 50]
    assert found.race == Race(50, 70, {70: equal, 50: equal}, equal, 0.5, 6, {70: 6, 50: 6})
    assert found.best == replace(trials[0], index=70)
