"""Contests of real kernels, ours and a library's, whose race has the ratios that a test says."""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tilescout.search.autotuning.contest import Candidate, ContestOptions, Entry, decide, enter
from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions, Task, settled_future
from tilescout.search.engines.local import LocalEngine
from tilescout.search.export.decisions import Choice, Outcome
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

PROBLEM = GemmProblem(48, 64, 40)
ALL_RACE = ContestOptions(race=RaceOptions(within=1e6, looks=3))


@pytest.fixture(scope="module")
def engine(host_library: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    options = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0))
    folder, template = tmp_path_factory.mktemp("contest"), host_library.COMPARED
    with LocalEngine(template, folder, ("cpu",), host_library.HOST, options) as engine:
        yield engine


def outcome_of(
    engine: Engine, ours: float, algorithms: float, options: ContestOptions = ALL_RACE, seconds: float = 60.0
) -> Outcome:
    """The outcome of a contest whose race says these times over the library's."""

    def race(gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int) -> Future[Any]:
        raced: Future[Any] = Future()
        ratios = np.array([ours if task.template is None else algorithms for task in tasks])
        noise = np.random.default_rng(seed).normal(1.0, 1e-4, (rounds, len(tasks)))
        raced.set_result(ratios * noise)
        return raced

    def measure(gpu: int, tasks: Sequence[Task]) -> Future[Any]:
        return in_batches(gpu, [replace(task, incumbent=None) for task in tasks])  # no slow one is given up early

    default, in_batches = engine.template.default(PROBLEM, engine.device), engine.measure
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "race", race)
        patch.setattr(engine, "measure", measure)
        found = decide(engine, enter(engine, PROBLEM, [default]), options, time.monotonic() + seconds)
    assert found is not None
    return found


@pytest.mark.slow
def test_the_fastest_is_chosen_whosever_it_is_and_its_algorithm_is_kept(engine: LocalEngine, tmp_path: Path) -> None:
    algorithm, ours = outcome_of(engine, 0.95, 0.9), outcome_of(engine, 0.9, 0.95)

    assert (algorithm.choice, ours.choice) == (Choice.ALGORITHM, Choice.OURS)
    assert (algorithm.space, algorithm.library) == ("host_cublaslt", "13.1.0")
    assert "cuBLASLt's algorithm" in algorithm.evidence.reason
    assert algorithm.evidence.ratio == pytest.approx(0.9, abs=1e-3)
    assert ", cuBLASLt's best of 3 0.9" in ours.evidence.reason  # as it raced
    assert ours.evidence.reason.endswith(" of it")
    store = EvidenceStore(tmp_path / "evidence", {"gpu": "the host"}, engine.template)
    with store.lock(10):
        bundle = store.add([algorithm], ArtifactStore(tmp_path / "artifacts"), "host", "host")
    assert bundle.choice(PROBLEM) is Choice.ALGORITHM
    assert bundle.kernels[bundle.by_problem[PROBLEM].kernel].library == "13.1.0"


@pytest.mark.slow
def test_what_gains_too_little_to_be_told_in_a_model_stays_the_librarys(engine: LocalEngine) -> None:
    level = outcome_of(engine, 0.995, 0.994)

    assert level.choice is Choice.LIBRARY
    assert level.configuration is None
    assert "not proven to gain 1% over torch.mm: 0.9" in level.evidence.reason
    assert outcome_of(engine, 0.995, 0.994, replace(ALL_RACE, margin=0.0)).choice is not Choice.LIBRARY


@pytest.mark.slow
def test_the_librarys_own_take_no_part_where_none_are_asked_for(engine: LocalEngine) -> None:
    assert outcome_of(engine, 0.95, 0.9, replace(ALL_RACE, guesses=0)).choice is Choice.OURS


@pytest.mark.slow
def test_a_budget_may_be_without_end(engine: LocalEngine) -> None:
    assert outcome_of(engine, 0.9, 0.95, seconds=math.inf).choice is Choice.OURS


def test_a_product_of_which_nothing_compiles_is_not_decided() -> None:
    short: Future[Artifact | CompileFailure] = settled_future(CompileFailure("not enough memory to compile"))
    engine = cast(Engine, SimpleNamespace(prepare=lambda gpu, problem: settled_future(1.0)))
    entry = Entry(PROBLEM, [Candidate(Configuration(()), short)] * 2)
    with pytest.raises(CannotMeasureError, match="none of its candidates compiles: not enough memory"):
        decide(engine, entry, ContestOptions(), math.inf)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"candidates": 0}, "0 candidates: the default is always one"),
        ({"others": -1}, "0 leaves them out"),
        ({"guesses": -1}, "0 leaves them out"),
        ({"margin": -0.05}, "allowed are numbers from 0 to below 1"),  # no bundle takes what is proven slower
        ({"margin": math.nan}, "allowed are numbers from 0 to below 1"),
    ],
)
def test_a_contest_that_can_not_be_is_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        ContestOptions(**wrong)


def test_the_gpu_is_set_up_for_a_product_while_its_candidates_are_compiled() -> None:
    asked: list[GemmProblem] = []

    class Compiled(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            assert asked == [PROBLEM]
            return CompileFailure("refused")

    def prepare(gpu: int, problem: GemmProblem) -> Future[float]:
        asked.append(problem)
        return settled_future(1.0)

    engine = cast(Engine, SimpleNamespace(prepare=prepare))
    entry = Entry(PROBLEM, [Candidate(Configuration(()), Compiled())])
    with pytest.raises(CannotMeasureError, match="none of its candidates compiles: refused"):
        decide(engine, entry, ContestOptions(), math.inf)
