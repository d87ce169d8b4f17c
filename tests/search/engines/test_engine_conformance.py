"""The local and the replay engine pass the conformance suite of engines, and engines with faults do not."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import Engine, LiveOptions, Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.engines.testing import EngineConformance
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.tables.table import Table
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

RECORDED = GemmProblem(16, 4096, 4096)
OPTIONS = LiveOptions(CompileOptions(processes=2, timeout=60), ProtocolOptions(heating_us=1000.0), timeout=60)


class TestLocalEngine(EngineConformance):
    problem = GemmProblem(64, 64, 64)
    right = tuple({"fault": "nothing", "repeats": repeats} for repeats in (1, 2))
    wrong = tuple({"fault": fault, "repeats": 1} for fault in ("corner", "exception"))
    refused = ({"fault": "compiler_refuses", "repeats": 1},)
    impossible = GemmProblem(64, 64, 64, dtype="fp16")

    @pytest.fixture(autouse=True)
    def _kernels(self, plain_gemm: ModuleType, tmp_path: Path) -> None:
        self.kernels, self.store = plain_gemm, tmp_path / "store"

    def open_engine(self) -> Engine:
        return LocalEngine(self.kernels.TEMPLATE, self.store, ["cpu"], self.kernels.HOST, OPTIONS)


class TestReplayEngine(EngineConformance):
    problem = RECORDED
    impossible = GemmProblem(64, 64, 64)

    @pytest.fixture(autouse=True)
    def _table(self, invented_table: Table) -> None:
        self.table = invented_table
        recording = ReplayEngine(invented_table, find_template("gemm_sm90")).recording(RECORDED)
        outcomes = [(recording.space[index], recording.measurement(index)) for index in range(len(recording.space))]
        self.right = [configuration for configuration, outcome in outcomes if outcome.ok][:5]
        self.wrong = [configuration for configuration, outcome in outcomes if outcome.failed][:3]

    def open_engine(self) -> Engine:
        return ReplayEngine(self.table, find_template("gemm_sm90"), gpus=2)


class Unsettled(ReplayEngine):
    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        return Future()


class Unlike(ReplayEngine):
    def space(self, problem: Problem) -> SearchSpace:
        space = super().space(problem)
        return space.subset(np.random.default_rng().choice(len(space), len(space) // 2, replace=False))


class Anonymous(ReplayEngine):
    protocol = ""

    @property
    def product(self) -> str:
        return ""

    @product.setter
    def product(self, value: str) -> None:
        pass


class Raising(ReplayEngine):
    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        measured = super().measure(gpu, tasks).result()
        answer: Future[list[Measurement]] = Future()
        if any(each.failed for each in measured):
            answer.set_exception(RuntimeError("a kernel is wrong"))
        else:
            answer.set_result(measured)
        return answer


class Reversed(ReplayEngine):
    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        return super().measure(gpu, tasks[::-1])


class Deaf(ReplayEngine):
    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        return super().measure(0, tasks if gpu == 0 else [])


class Eager(ReplayEngine):
    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        answer: Future[list[Measurement]] = Future()
        measured = super().measure(gpu, tasks).result()
        answer.set_result([replace(each, timing=None, pilot_us=None) for each in measured])
        return answer


class Racing(ReplayEngine):
    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        answer: Future[NDArray[np.float64]] = Future()
        answer.set_result(np.ones((rounds, len(tasks))))
        return answer


class Glancing(ReplayEngine):
    def glances(
        self, gpu: int, groups: Sequence[Sequence[Task]], rounds: int, seed: int
    ) -> "Future[list[tuple[float, NDArray[np.float64]]]]":
        answer: Future[list[tuple[float, NDArray[np.float64]]]] = Future()
        answer.set_result([(1.0, np.ones(rounds)) for _ in groups])
        return answer


FAULTS = {
    "test_it_says_what_measures": Anonymous,
    "test_a_space_is_of_the_problem_and_the_device": Unlike,
    "test_compiling_gives_an_artifact_or_says_why_there_is_none": Unsettled,
    "test_every_gpu_is_prepared_and_measures": Deaf,
    "test_a_batch_is_answered_in_order_and_what_fails_stops_nothing": Reversed,
    "test_an_incumbent_may_prune_and_without_one_nothing_is_pruned": Eager,
    "test_a_race_gives_ratios_or_is_refused": Racing,
    "test_a_glance_gives_ratios_or_is_refused": Glancing,
    "test_an_evaluator_gets_every_outcome_once": Raising,
    "test_closing_settles_what_is_in_flight_and_can_be_repeated": Unsettled,
}


def test_every_check_is_failed_by_some_fault() -> None:
    assert set(FAULTS) == {name for name in dir(EngineConformance) if name.startswith("test_")}


@pytest.mark.parametrize(("check", "faulty"), FAULTS.items())
def test_a_check_fails_where_its_rule_is_broken(
    check: str, faulty: Callable[..., Engine], invented_table: Table
) -> None:
    template = find_template("gemm_sm90")
    recording = ReplayEngine(invented_table, template).recording(RECORDED)
    outcomes = [(recording.space[index], recording.measurement(index)) for index in range(len(recording.space))]

    class Checked(EngineConformance):
        problem = RECORDED
        right = [configuration for configuration, outcome in outcomes if outcome.ok][:5]
        wrong = [configuration for configuration, outcome in outcomes if outcome.failed][:3]
        patience = 0.5

        def open_engine(self) -> Engine:
            return faulty(invented_table, template, 2)

    with pytest.raises((AssertionError, RuntimeError, TimeoutError, IndexError)):
        getattr(Checked(), check)()
