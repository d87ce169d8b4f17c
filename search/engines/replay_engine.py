"""An engine that answers from a recorded table: campaigns can be tried, and cut short, where there is no GPU."""

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import date
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact
from tilescout.search.engines.engine import Engine, Task, failed_future
from tilescout.search.engines.evaluator import CannotMeasureError
from tilescout.search.engines.replay import ReplayEvaluator
from tilescout.search.measure.measurement import Measurement
from tilescout.search.tables.table import Table
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate

Result = TypeVar("Result")


class ReplayEngine(Engine):
    """Hands out recorded measurements, as many GPUs as one likes; nothing is compiled and nothing measured.

    Parameters
    ----------
    table
        The recorded measurements.
    template
        The kernels that were measured.
    gpus
        GPUs to pretend.

    Raises
    ------
    TableError
        If the table is of another space or an unknown device.
    """

    measures_anew = False

    def __init__(self, table: Table, template: KernelTemplate, gpus: int = 1) -> None:
        card = table.card
        self.template, self.table, self.gpus, self.compilers = template, table, gpus, 1
        self._evaluators = cache(lambda problem: ReplayEvaluator(table, template, problem))
        first = self._evaluators(table.problems[0])
        self.device, self.provenance = first.device, first.provenance
        self.product, self.versions = card.product, {**card.versions, "driver": card.driver}
        self.protocol, self.protocol_text = card.protocol, card.protocol_text

    @property
    def source_hash(self) -> str:
        return self.table.card.source_hash

    @property
    def recorded(self) -> date:
        return self.table.card.recorded

    def space(self, problem: Problem) -> SearchSpace:
        return self._evaluators(problem).space

    def library(self, problem: Problem) -> str:
        return self.table.card.library

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | Measurement]":
        return _settled(Artifact(self.table.path, "", "", None, 0.0))  # what compiling found is with each measurement

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        return _settled(self._evaluators(problem).library_us())

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        evaluator = self._evaluators(tasks[0].problem)
        rows = [evaluator.rows[evaluator.space.index(task.configuration)] for task in tasks]
        return _settled([self.table.measurement(int(row)) for row in rows])

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        return failed_future(CannotMeasureError(f"nothing can be measured anew: {self.provenance.description}"))

    def close(self) -> None:
        """Nothing was started."""


def _settled(result: Result) -> "Future[Result]":
    future: Future[Result] = Future()
    future.set_result(result)
    return future
