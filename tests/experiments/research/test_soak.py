"""The soak's account of what was lost, leaked and drifted: on the host, with kernels that have each fault."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.search.engines.patient_engine import PatientEngine
from tilescout.experiments.research.benchmarks import soak as benchmark
from tilescout.experiments.research.faulty_kernels import EVERY, FAULTS, KNOWN_BY, FaultyKernels, fault_of
from tilescout.experiments.research.records import Record
from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.studies.records import TrialRecord
from tilescout.search.tuning.budget import Budget
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import of_any_problem

PROBLEM = GemmProblem(64, 64, 64)
KNOWN = {
    "nothing": KNOWN_BY[""],
    "corner": KNOWN_BY["wrong"],
    "behind_output": KNOWN_BY["outside"],
    "abort": KNOWN_BY["crash"],
    "endless": KNOWN_BY["hang"],
}
"""How a kernel of `plain_gemm` must end, by its fault."""


class FewKernels(PatientEngine):
    """An engine of right kernels, and one with each of these faults."""

    def space(self, problem: Problem) -> SearchSpace:
        whole = super().space(problem)
        each = map(whole.__getitem__, range(len(whole)))
        kept = [one["fault"] == "nothing" or (one["fault"] in KNOWN and one["repeats"] == 1) for one in each]
        return whole.subset(np.flatnonzero(kept))


@pytest.fixture(scope="module")
def engine(plain_gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    protocol = ProtocolOptions(Objective.CHAIN, heating_us=1000.0)
    options = LiveOptions(CompileOptions(processes=2), protocol, timeout=60)
    with FewKernels(plain_gemm.TEMPLATE, tmp_path_factory.mktemp("store"), ("cpu",), plain_gemm.HOST, options) as made:
        yield made


@pytest.mark.slow
def test_a_search_over_faulty_kernels_loses_no_trial_and_tells_each_fault(engine: LocalEngine, tmp_path: Path) -> None:
    space = engine.space(PROBLEM)
    asked = {each: KNOWN[str(each["fault"])] for each in map(space.__getitem__, range(len(space)))}

    result = benchmark.soak(
        engine, PROBLEM, tmp_path, asked, lambda each: each["fault"] == "nothing", Budget(trials=len(asked)), repeats=2
    )

    assert result["unlike"] == []
    assert result["trials"] == result["stored"] == result["wanted"] == len(asked) == 7
    Record.of("soak", "a test", result).write(tmp_path / "soak.json")
    assert Record.read(tmp_path / "soak.json").result["ends"] == result["ends"]
    ends = result["ends"]
    assert ends["ok"] + ends.get("pruned", 0) == 3
    assert (ends["wrong"], ends["crash"], ends["timeout"]) == (2, 1, 1)
    assert len(result["default_before"]) == len(result["default_after"]) == 2
    assert math.isfinite(result["default_drift"])
    shown = dict(benchmark.told_of(result | {"processes": 3, "memory_before": 500.0, "memory_after": 500.0}))
    assert shown["trials wanted, had, stored"] == "7, 7, 7"


def test_what_is_lost_doubled_or_ends_otherwise_is_told() -> None:
    first, second, third = (Configuration.of({"number": number}) for number in range(3))
    trial = TrialRecord(0, 0, first, Measurement(Status.OK), 0.0, 1.0)
    expected = dict.fromkeys((first, second, third), KNOWN_BY[""])

    told = benchmark.unlike(
        expected,
        [trial, trial, replace(trial, configuration=third, measurement=Measurement(Status.WRONG, "it differs"))],
    )

    assert told == ["number=0: 2 trials", "number=1: 0 trials", "number=2: wrong (it differs)"]
    assert benchmark.drift([1.0, 1.02, 1.01], [1.0201] * 5) == pytest.approx(0.01)


@pytest.mark.slow
def test_every_tenth_kernel_has_a_fault_and_all_faults_compile(tmp_path: Path) -> None:
    faults = [fault_of(number) for number in range(EVERY * len(FAULTS))]
    assert [fault for fault in faults if fault] == list(FAULTS)
    template = FaultyKernels(len(faults))
    numbers = [0, *(faults.index(fault) for fault in dict.fromkeys(FAULTS))]
    with CompilePool(
        of_any_problem(template), "bf16", "sm_90a", ArtifactStore(tmp_path), CompileOptions(processes=2)
    ) as pool:
        built = [pool.submit(Configuration.of({"number": number})) for number in numbers]
        assert all(isinstance(each.result(), Artifact) for each in built)
