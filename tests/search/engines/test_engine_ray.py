"""A real Ray on this machine, with kernels of the host: artifacts travel, workers die, nothing is lost."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType
from typing import Any

import pytest

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.build.waiting import Shared
from tilescout.search.campaigns.campaign import CampaignOptions, Progress
from tilescout.search.campaigns.collection import collect, journal_path
from tilescout.search.campaigns.plan import make_plan
from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions, Task
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.ray import RayEngine, RayOptions
from tilescout.search.engines.ray_worker import save_shared_object
from tilescout.search.engines.testing import EngineConformance
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.journal import Journal
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.errors import ArtifactError, BuildError, DeviceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.subspace import parse_restrictions

PROBLEM = GemmProblem(64, 64, 64)
OPTIONS = LiveOptions(
    CompileOptions(processes=1, timeout=60), ProtocolOptions(Objective.CHAIN, heating_us=1000.0), timeout=60
)


def rays() -> set[int]:
    """Processes of Ray on this machine, and measuring processes, that this one's session started."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/environ"):
        try:
            if MARK.encode() in status.read_bytes():
                found.add(int(status.parent.name))
        except OSError:  # it has just ended, or is another user's
            continue
    return found - {os.getpid()}


MARK = f"TILESCOUT_TEST_OF={os.getpid()}"


@pytest.fixture(scope="module")
def engine(plain_gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayEngine]:
    """An engine on a Ray that is started for this module, and shut down fully."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        name, value = MARK.split("=")
        patch.setenv(name, value)  # the processes that are started from here inherit it
        patch.setenv("PYTHONPATH", str(Path(plain_gemm.__file__ or "").parents[1]), prepend=os.pathsep)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")  # type: ignore[arg-type]
        try:
            store = tmp_path_factory.mktemp("ray")
            cluster = RayOptions(gpu="cpu")
            with RayEngine(plain_gemm.TEMPLATE, store, cluster, plain_gemm.HOST, OPTIONS) as engine:
                yield engine
        finally:
            ray.shutdown()
        deadline = time.monotonic() + 60
        while rays() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not rays()
        assert not list(Path(gettempdir()).glob(f"tilescout-{engine._session}*"))


def configuration(fault: str = "nothing", repeats: int = 1) -> Configuration:
    return Configuration.of({"fault": fault, "repeats": repeats})


def actor_pid(engine: RayEngine) -> int:
    return int(engine._lanes[0].start()["pid"])


@pytest.mark.slow
def test_what_compilers_and_kernels_do_becomes_a_measurement(engine: RayEngine) -> None:
    faults = ("nothing", "compiler_refuses", "compiler_aborts", "abort")
    built = {fault: engine.compile(configuration(fault), "bf16").result() for fault in faults}
    for fault in ("compiler_refuses", "compiler_aborts"):
        outcome = built.pop(fault)
        assert isinstance(outcome, CompileFailure)
        assert not outcome.timed_out
    library_us = engine.prepare(0, PROBLEM).result()
    tasks = []
    for fault in ("nothing", "abort", "nothing"):
        artifact = built[fault]
        assert isinstance(artifact, Artifact)
        assert artifact.path.is_relative_to(engine._store.root)  # an export finds it
        tasks.append(Task(configuration(fault), artifact, PROBLEM, library_us))
    measured = engine.measure(0, tasks).result()
    assert [each.status for each in measured] == [Status.OK, Status.CRASH, Status.OK]
    assert measured[0].compile_seconds == tasks[0].artifact.compile_seconds > 0
    ratios = engine.race(0, [tasks[0], tasks[2]], rounds=2, pairs=2, seed=0).result()
    assert ratios.shape == (2, 2)


def test_a_damaged_artifact_fails_alone(engine: RayEngine, tmp_path: Path) -> None:
    right = engine.compile(configuration(), "bf16").result()
    assert isinstance(right, Artifact)
    damaged = replace(right, path=tmp_path / "kernel.so", sha256="0" * 64)
    damaged.path.write_bytes(b"anything")
    library_us = engine.prepare(0, PROBLEM).result()
    tasks = [Task(configuration(), artifact, PROBLEM, library_us) for artifact in (damaged, right)]
    assert [each.status for each in engine.measure(0, tasks).result()] == [Status.LOAD_ERROR, Status.OK]
    with pytest.raises(CannotMeasureError, match="is damaged"):
        engine.race(0, tasks, rounds=2, pairs=2, seed=0).result()


def test_an_engine_beside_it_measures_other_kernels_and_closing_that_ends_nothing(
    engine: RayEngine, plain_gemm: ModuleType
) -> None:
    with engine.beside(plain_gemm.SCRATCH) as other:
        measured = [on(other, configuration()), on(engine, configuration())]
    assert [each.status for each in (*measured, on(engine, configuration()))] == [Status.OK] * 3


def on(engine: Engine, tried: Configuration) -> Measurement:
    """The measurement of a configuration by an engine."""
    artifact = engine.compile(tried, PROBLEM.signature).result()
    assert isinstance(artifact, Artifact)
    [measured] = engine.measure(0, [Task(tried, artifact, PROBLEM, engine.prepare(0, PROBLEM).result())]).result()
    return measured


@pytest.mark.slow
def test_a_campaign_whose_actor_is_killed_midway_loses_nothing_and_records_nothing_twice(
    engine: RayEngine, plain_gemm: ModuleType, tmp_path: Path
) -> None:
    problems = [PROBLEM, GemmProblem(32, 64, 32)]
    spaces = [engine.space(problem) for problem in problems]
    default = plain_gemm.TEMPLATE.default(PROBLEM, engine.device)
    some = parse_restrictions(["fault=nothing,corner"], spaces[0].knobs)
    plan = make_plan(spaces, [default] * 2, None, 0, some)
    first = actor_pid(engine)
    killed = threading.Event()

    def kill(progress: Progress) -> None:
        if 0 < progress.rows < progress.total and not killed.is_set():
            killed.set()
            os.kill(first, signal.SIGKILL)

    out = tmp_path / "t.parquet"
    rows: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        remove = Journal.remove

        def keep(journal: Journal) -> None:
            records = [json.loads(line) for line in journal_path(out).read_text().splitlines()]
            rows.extend(tuple(record["row"]) for record in records if "row" in record)
            remove(journal)

        patch.setattr(Journal, "remove", keep)
        race = RaceOptions(within=10.0, look=2, looks=1, pairs=2)
        table = collect(engine, plan, out, CampaignOptions(prune=None, batch=1, race=race), kill)

    assert killed.is_set()
    assert actor_pid(engine) != first
    assert len(rows) == len(set(rows)) == len(table) == plan.rows
    for row in range(len(table)):
        right = table.configuration(row)["fault"] == "nothing"
        assert table.measurement(row).status is (Status.OK if right else Status.WRONG)
    assert "On 2 of 2 problems" in table.card.selection
    assert table.card.versions["ray"]


def test_a_search_can_not_tell_it_from_a_local_one(engine: RayEngine, tmp_path: Path) -> None:
    with Evaluator(engine, PROBLEM) as evaluator:
        wanted = [evaluator.space.index(configuration("nothing", repeats)) for repeats in (1, 2, 4)]
        evaluator.space = evaluator.space.subset(wanted)
        result = run_study(evaluator, TuneOptions("random", 0, Budget(trials=3), tmp_path))
    assert [trial.measurement.ok for trial in result.trials].count(True) >= 1
    assert result.race is not None
    assert result.info.provenance.description == "measured on CPU of a Ray cluster, in chains"


@pytest.mark.slow
class TestRayEngine(EngineConformance):
    problem = PROBLEM
    right = tuple({"fault": "nothing", "repeats": repeats} for repeats in (1, 2))
    wrong = ({"fault": "corner", "repeats": 1},)
    refused = ({"fault": "compiler_refuses", "repeats": 1},)
    impossible = GemmProblem(64, 64, 64, dtype="fp16")

    @pytest.fixture(autouse=True)
    def _shared(self, engine: RayEngine, tmp_path: Path) -> None:
        self.shared, self.store = engine, tmp_path / "store"

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        yield self.shared

    def open_engine(self) -> Engine:
        # Its actor takes the last core: what it compiles waits for one until it is closed.
        shared = self.shared
        return RayEngine(shared.template, self.store, shared.cluster, shared.device, OPTIONS)


@pytest.mark.slow
def test_a_machine_that_would_compile_something_else_is_named(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(engine.template), "source_hash", "another")  # here, and not in the workers
    with pytest.raises(BuildError, match="of the Ray cluster has another source of plain_gemm"):
        engine.compile(configuration(repeats=4), "bf16").result()


def test_bytes_that_are_not_what_the_record_says_are_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="came damaged"):
        save_shared_object(tmp_path / "a.so", "0" * 64, b"anything")
    assert not list(tmp_path.iterdir())


def test_a_cluster_without_a_gpu_is_refused(engine: RayEngine, plain_gemm: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="has no GPU: start it where there is one"):
        RayEngine(plain_gemm.TEMPLATE, tmp_path, RayOptions(), plain_gemm.HOST, OPTIONS)


def test_work_that_is_asked_for_again_while_it_is_forgotten_stays_known() -> None:
    engine = object.__new__(RayEngine)  # a cluster is not needed
    engine._lock = threading.Lock()
    given_up, again = Shared[Artifact | CompileFailure](Future()), Shared[Artifact | CompileFailure](Future())

    def ask_again() -> None:
        with engine._lock:  # as `compile` does
            compiling["digest"] = again

    class Slow(dict[str, Shared[Artifact | CompileFailure]]):
        def get(self, key: str, default: Any = None) -> Any:
            found = super().get(key, default)
            asking.start()
            asking.join(0.2)  # long enough to come in between, if it can
            return found

    compiling = engine._compiling = Slow({"digest": given_up})
    asking = threading.Thread(target=ask_again)
    engine._forget("digest", given_up)
    asking.join()
    assert compiling == {"digest": again}
