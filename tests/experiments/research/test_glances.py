"""Glances of studies, at kernels that are compiled once."""

import logging
from concurrent.futures import Future

import numpy as np
import pytest

from tests.search.dispatch.invented_gpu import InventedGpu, settled
from tilescout.experiments.research.glances import Glances
from tilescout.experiments.research.studies.default_kernels import kernels_of
from tilescout.experiments.research.studies.default_sweep import Sweep
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import Engine
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

PROBLEM = GemmProblem.parse("512x1024x1024:bf16")


class Compiling(InventedGpu):
    """Its first kernel never compiles, and it keeps account of what it is asked to compile."""

    def __init__(self) -> None:
        super().__init__(PROBLEM.n, PROBLEM.k, 6, noise=0.0, seed=1)
        self.asked: list[tuple[Configuration, str]] = []

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        self.asked.append((configuration, signature))
        if configuration == self.kernels.configurations[0]:
            return settled(CompileFailure("it has no such tile", 0.1))
        return super().compile(configuration, signature)

    def ratio(self, number: int) -> float:
        """The true time of a kernel over the library's."""
        return float(np.exp(self.logs[number, PROBLEM.m - 1] - self.logs[-1, PROBLEM.m - 1]))


@pytest.fixture
def engine() -> Compiling:
    return Compiling()


@pytest.mark.slow
def test_each_kernel_is_compiled_once_and_glanced_at_if_it_compiles(
    engine: Compiling, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = [(0, each) for each in engine.kernels.configurations]
    glances = Glances([engine])
    glances.compile(kernels[:4], "bf16")
    with caplog.at_level(logging.WARNING):
        for rounds in (2, 3):
            library_us, times = glances.at(PROBLEM, kernels, rounds, 0)
            assert library_us > 0
            assert list(times) == kernels[1:]
            assert {len(ratios) for ratios in times.values()} == {rounds}
    assert engine.asked == [(each, "bf16") for _, each in kernels]
    assert times[kernels[3]] == pytest.approx([engine.ratio(3)] * 3)
    assert "it has no such tile" in caplog.text


def test_a_sweep_tells_kernels_of_each_space_by_their_numbers(
    engine: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kernels_of(engine.template, engine.kernels.configurations[:3])
    second = kernels_of(engine.template, engine.kernels.configurations[3:])
    engines: list[Engine] = [engine, engine]
    sweep = Sweep(engines, [first, second], "bf16")
    monkeypatch.setattr(sweep, "_guess", lambda problem: [1, 2])
    found = sweep.at(PROBLEM, [[2, 0], [1]], 7)
    assert found["problem"] == str(PROBLEM)
    assert found["guess"] == [1, 2]
    (of_first, of_second) = found["ratios"]
    assert (list(of_first), list(of_second)) == (["2"], ["1"])
    assert of_first["2"] == pytest.approx([engine.ratio(2)] * 3, abs=1e-4)
    assert of_second["1"] == pytest.approx([engine.ratio(4)] * 3, abs=1e-4)
