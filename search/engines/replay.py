"""The engine that answers from a recorded table: searches and campaigns can be tried where there is no GPU."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import date
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task, failed_future, settled_future
from tilescout.search.engines.jobs import in_words
from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.provenance import Provenance
from tilescout.search.tables.card import TableCard
from tilescout.search.tables.recorded_space import RecordedSpace, recorded_device
from tilescout.search.tables.table import Table
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate


class ReplayEngine(Engine):
    """Hands out recorded measurements, at once, with the seconds that they cost then; nothing is measured.

    The space of a problem holds the configurations that the table has for it, failed ones too. By default a search has
    one configuration in flight: nothing is won by working ahead of a table, and so a sampler has seen every earlier
    outcome when it proposes the next. The same seed gives the same trials, on any machine.

    Parameters
    ----------
    table
        The recorded measurements.
    template
        The kernels that were measured.
    gpus
        Number of GPUs to simulate.
    ahead
        Most configurations in flight; more than one to see what a live search would try, which works ahead.

    Attributes
    ----------
    table
        The recorded measurements.

    Raises
    ------
    TableError
        If the table is of another space or an unknown device.
    """

    measures_anew = False

    def __init__(self, table: Table, template: KernelTemplate, gpus: int = 1, ahead: int = 1) -> None:
        table.check_space(template)
        card = table.card
        self._ahead = ahead
        self.template, self.table, self.gpus, self.compilers = template, table, gpus, 1
        self.device = recorded_device(table, template)
        self.product, self.versions = card.product, {**card.versions, "driver": card.driver}
        self.protocol, self.protocol_text = card.protocol, card.protocol_text
        self.provenance = _provenance(table, template)
        self._recorded = cache(lambda problem: RecordedSpace.of(table, template, problem))

    def recording(self, problem: Problem) -> RecordedSpace:
        """The configurations of a problem that the table has.

        Raises
        ------
        TableError, ProblemError, SpaceError
            See `RecordedSpace.of`.
        """
        return self._recorded(problem)

    def capacity(self, gpus: int) -> int:
        """As many on any number of GPUs."""
        return self._ahead

    @property
    def source_hash(self) -> str:
        return self.table.card.source_hash

    @property
    def recorded(self) -> date:
        return self.table.card.recorded

    def space(self, problem: Problem) -> SearchSpace:
        return self.recording(problem).space

    def library(self, problem: Problem) -> str:
        return self.table.card.library

    def recorded_library_best(self, problem: Problem) -> LibraryBest | None:
        best = self.table.card.baselines[problem].library_best
        # It was compared with the winner of a race that is not replayed.
        return replace(best, over=None, gpu_seconds=0.0) if best is not None else None

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        # The seconds of compiling are part of each recorded measurement.
        return settled_future(Artifact(self.table.path, "", "", None, 0.0))

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        return settled_future(self.recording(problem).library_us)

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        """The recorded measurements, however slow a configuration is."""
        recording = self.recording(tasks[0].problem)
        return settled_future([recording.measurement(recording.space.index(task.configuration)) for task in tasks])

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        return failed_future(CannotMeasureError(f"nothing can be measured anew: {self.provenance.description}"))

    def close(self) -> None:
        """Nothing was started."""


def _protocol(card: TableCard) -> str:
    """How rows were measured, in words; what another tuner measured is in none of our protocols."""
    if not card.is_imported:
        return in_words(card.objective)
    return f" by another tuner: no times, but {card.figure}" if card.figure else " by another tuner"


def _provenance(table: Table, template: KernelTemplate) -> Provenance:
    card = table.card
    origin = f"replayed from {table.path.name}, recorded on {card.product} on {card.recorded}"
    origin += f"{_protocol(card)}; no GPU was used"
    stale = f"; the source of {template.name} has changed since" if table.stale_for(template) else ""
    return Provenance(
        kind="replay",
        description=origin + stale,
        versions={**card.versions, "driver": card.driver, "protocol": card.protocol},
        table=table.dataset,
        objective=card.objective,
    )
