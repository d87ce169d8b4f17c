"""An invented GPU, whose times over m are known everywhere: staircases, with noise in what is measured of them."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.analytic import AnalyticModel, shipped_calibration
from tilescout.costmodel.arrays import Floats
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.dispatch.kernels import Kernels, portfolio_of
from tilescout.search.dispatch.steps import Steps
from tilescout.search.engines.engine import Engine, Task
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Provenance
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template

MOST = 2048
COLD = 0.97
CLIFF = range(1217, 1249)


def settled(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class InventedGpu(Engine):
    """Kernels whose time is that of their waves and tiles, and a library that is a slower kernel of its own.

    A kernel that is timed alone, on a device that is not yet hot, seems faster than it is; a race tells the truth.

    Attributes
    ----------
    kernels
        All that it has times of.
    logs
        Log of the true time in µs of each, and last of the library, at 1, 2, … rows.
    """

    template = find_template("gemm_sm90")
    device = DEVICES["h200"]
    product, protocol, protocol_text = "an invented GPU", "invented", ""
    provenance = Provenance("live", "measured on an invented GPU")
    gpus = compilers = 1

    def __init__(self, n: int, k: int, count: int, noise: float, seed: int, cliff: Sequence[int] = ()) -> None:
        generator = np.random.default_rng(seed)
        whole = portfolio_of(self.template, GemmProblem(1, n, k), self.device)
        always = [row for row in range(len(whole)) if whole.legal(1)[row] and whole.legal(MOST)[row]]
        others = generator.permutation([row for row in range(len(whole)) if row not in always])[: count - len(always)]
        self.kernels: Kernels = whole.take([*always, *others.tolist()])
        calibration = shipped_calibration("h200")
        assert calibration is not None
        sizes = np.arange(1, MOST + 1)
        steps = Steps.of(self.kernels)
        work = 0.6 * steps.waves(sizes) + 0.4 * steps.units(sizes) / steps.at_once[:, None]
        full = np.nan_to_num(self.kernels.predict({self.template.name: AnalyticModel(calibration)}, [MOST]), nan=9.0)
        start = 3.0 + k * n * 2e-6 / 4.8
        logs = np.log(start + np.exp(full) * work / work[:, -1:])
        self.legal = np.stack([self.kernels.legal(m) for m in sizes.tolist()], axis=1)
        library = np.log(start + np.exp(full.min() + 0.05) * sizes / MOST)
        library[[m - 1 for m in cliff]] += 0.4  # there the library chooses badly
        self.logs: Floats = np.vstack([np.where(self.legal, logs, np.inf), library])
        self.versions, self.cliff = {"torch": "2.11.0"}, cliff
        self.noise, self.generator, self.measured, self.glanced = noise, generator, 0, 0

    def library(self, problem: Problem) -> str:
        return "an invented library"

    def named(
        self, gpu: int, template: KernelTemplate, problems: Sequence[Problem]
    ) -> "Future[list[Sequence[int | str]]]":
        """One kernel of the library, and another one at the cliff."""
        wide, tall = ([1, 66, tile, 35, 1, 0, 0, 0, 5, 7] for tile in (502, 209))
        sizes = [problem.m for problem in problems if isinstance(problem, GemmProblem)]
        return settled([tall if m in self.cliff else wide for m in sizes])

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        return settled(Artifact(Path("invented"), "", "", None, 0.1))

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        assert isinstance(problem, GemmProblem)
        off = self.generator.normal(0, self.noise)
        return settled(float(np.exp(self.logs[-1, problem.m - 1] + off)))

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        best, found = np.inf, []
        for task in tasks:
            self.measured += 1
            ratio = self._ratio(task, self.noise / 5) * COLD
            if ratio > 1.15 * best:
                found.append(Measurement(Status.PRUNED, pilot_us=self._ratio(task, self.noise) * task.library_us))
                continue
            best = min(best, ratio)
            timing = Timing(ratio, ratio, ratio, ratio * 0.995, ratio * 1.005, task.library_us, 6)
            found.append(Measurement(Status.OK, timing=timing))
        return settled(found)

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        return settled(np.array([[self._ratio(task, self.noise / 5) for task in tasks] for _ in range(rounds)]))

    def glances(
        self, gpu: int, groups: Sequence[Sequence[Task]], rounds: int, seed: int
    ) -> "Future[list[tuple[float, NDArray[np.float64]]]]":
        self.glanced += len(groups)

        def found(tasks: Sequence[Task]) -> tuple[float, NDArray[np.float64]]:
            library_us = self.prepare(gpu, tasks[0].problem).result()
            return library_us, np.array([[self._ratio(task, self.noise / 2) for task in tasks] for _ in range(rounds)])

        return settled([found(tasks) for tasks in groups])

    def close(self) -> None:
        """Nothing runs."""

    def true_regret(self, row: int, m: int) -> float:
        """The share by which a row of `logs` is slower than the best at m."""
        return float(np.expm1(self.logs[row, m - 1] - self.logs[:, m - 1].min()))

    def _ratio(self, task: Task, noise: float) -> float:
        assert isinstance(task.problem, GemmProblem)
        row = list(self.kernels.configurations).index(task.configuration)
        at = task.problem.m - 1
        return float(np.exp(self.logs[row, at] - self.logs[-1, at] + self.generator.normal(0, noise)))
