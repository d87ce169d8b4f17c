"""Tuners of kernels that run on the host: real compilers, a real measuring process, a real store."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search.autotuning.inductor import started
from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.autotuning.tuner import Tuner, TunerOptions
from tilescout.search.build.artifacts import ArtifactKey, ArtifactStore
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.build.making import build
from tilescout.search.engines.engine import Engine, LiveOptions
from tilescout.search.engines.local import LocalEngine
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.gemm import GemmProblem

MakeTuner = Callable[..., Tuner]
SETTING = {"gpu": "the host"}
VERSIONS = {"nvidia-cutlass-dsl": version("nvidia-cutlass-dsl")}
PROVEN = Evidence("autotune", "proven as fast as torch.mm", 0.9, 0.88, 0.92, 12, "a test", VERSIONS, 10.0)
NOT_PROVEN = Evidence("autotune", "not proven as fast as torch.mm", 1.1, 1.08, 1.12, 12, "a test", VERSIONS, 10.0)


def refuse() -> Engine:
    raise AssertionError("nothing had to be decided, and an engine was asked for")


@pytest.fixture
def store(tmp_path: Path, plain_gemm: ModuleType) -> EvidenceStore:
    return EvidenceStore(tmp_path / "evidence", SETTING, plain_gemm.TEMPLATE)


@pytest.fixture
def make_tuner(tmp_path: Path, plain_gemm: ModuleType) -> Iterator[MakeTuner]:
    """A function: a tuner as of a new process, over the same folders; it may tune or, unless `live`, only look up."""
    with ExitStack() as stack:

        def open_engine() -> Engine:
            options = LiveOptions(CompileOptions(processes=1, standby=False), ProtocolOptions(heating_us=1000.0))
            return LocalEngine(plain_gemm.TEMPLATE, tmp_path / "artifacts", ("cpu",), plain_gemm.HOST, options)

        def make_tuner(seconds: float = 60.0, live: bool = False, dependent_launch: bool | None = None) -> Tuner:
            store = EvidenceStore(tmp_path / "evidence", SETTING, plain_gemm.TEMPLATE)
            opened = open_engine if live else refuse
            options = TunerOptions(seconds, dependent_launch=dependent_launch)
            tuner = Tuner(plain_gemm.TEMPLATE, plain_gemm.HOST, store, tmp_path / "artifacts", opened, options)
            stack.callback(tuner.close)
            return started(tuner)

        yield make_tuner


@pytest.fixture
def decide_for(tmp_path: Path, plain_gemm: ModuleType, store: EvidenceStore) -> Callable[..., Bundle]:
    """A function: put decisions into the store, for our kernel on some problems and the library's on others."""

    def decide_for(ours: tuple[str, ...], library: tuple[str, ...] = ()) -> Bundle:
        template, host = plain_gemm.TEMPLATE, plain_gemm.HOST
        artifacts = ArtifactStore(tmp_path / "artifacts")
        configuration = template.default(GemmProblem(64, 64, 64), host)
        key = ArtifactKey.of(template, configuration, "bf16", "host")
        artifacts.find(key) or build(template, key, artifacts)
        outcomes = []
        for text in (*ours, *library):
            problem, ourselves = GemmProblem.parse(text), text in ours
            # The folder makes each bundle another one: of equal bundles a process loads the kernels once.
            evidence = replace(PROVEN if ourselves else NOT_PROVEN, measured_by=str(tmp_path))
            choice = Choice.OURS if ourselves else Choice.LIBRARY
            kernel = configuration if ourselves else None
            outcomes.append(Outcome(problem, template.name, template.source_hash, "host", choice, evidence, kernel))
        with store.lock(10):
            return store.add(outcomes, artifacts, "host", "host")

    return decide_for
