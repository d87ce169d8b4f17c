"""The referee, who measures for all tuners: one GPU, one thing at a time, and the account of what each search cost."""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.compare.asking import Racing, Trying
from tilescout.experiments.research.field.playing import Sent
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import Engine, Task
from tilescout.search.measure.measurement import Measurement
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace

BATCH = 16  # tasks in one request when everything is measured

Kernels = Mapping[Configuration, "Future[Artifact | CompileFailure]"]


@dataclass(frozen=True, eq=False)
class Field:
    """A problem, the part of its space that is searched, and what every configuration of it is worth.

    Attributes
    ----------
    space
        The part.
    default
        Its default.
    library_us
        The library's steady time, in µs.
    ratios
        Time over the library's of each configuration, of shape [configurations]; NaN where it was not timed.
    pilots
        What a launch or two told of each, over the library's steady time, of the same shape; NaN where it failed.
    gpu_seconds
        Seconds of the GPU in which all were measured.
    """

    space: SearchSpace
    default: Configuration
    library_us: float
    ratios: NDArray[np.float64]
    pilots: NDArray[np.float64]
    gpu_seconds: float

    def sent(self) -> Sent:
        """The part, for a process that plays."""
        return Sent(str(self.space.problem), self.space.codes, self.default, self.library_us)


@dataclass
class Account:
    """The cost of a search.

    Attributes
    ----------
    tried
        The configurations, by problem and index.
    gpu_seconds
        Seconds of the GPU.
    """

    tried: set[tuple[str, int]] = field(default_factory=set)
    gpu_seconds: float = 0.0


class Referee:
    """Measures what tuners ask for.

    Parameters
    ----------
    engine
        Compiles and measures.
    kernels
        What was asked of its compilers.
    gpu
        The number of its GPU among the engine's.
    """

    def __init__(self, engine: Engine, kernels: Kernels, gpu: int = 0) -> None:
        self._engine, self._kernels, self._gpu = engine, kernels, gpu
        self._lock = threading.Lock()
        self._fields: dict[str, tuple[SearchSpace, float]] = {}

    def survey(self, space: SearchSpace, default: Configuration) -> Field:
        """Measure all of a problem's part, and leave out what fails."""
        library_us = self._engine.prepare(self._gpu, space.problem).result()
        begun = time.monotonic()
        found, best = [], float("inf")
        for start in range(0, len(space), BATCH):
            tasks = [
                self._task(space[index], space.problem, library_us, best)
                for index in range(start, min(start + BATCH, len(space)))
            ]
            found += self._measured(tasks)
            best = min([best, *(each.timing.ratio for each in found if each.timing is not None)])
        seconds = time.monotonic() - begun
        right = np.array([not each.failed for each in found])
        kept = [each for each in found if not each.failed]
        part = space.subset(np.flatnonzero(right))
        self._fields[str(space.problem)] = (part, library_us)
        ratios = np.array([each.timing.ratio if each.timing else np.nan for each in kept])
        pilots = np.array([each.pilot_us / library_us if each.pilot_us is not None else np.nan for each in kept])
        return Field(part, default, library_us, ratios, pilots, seconds)

    def bucket(self, field: Field, problem: Problem, space: SearchSpace) -> Field:
        """The same configurations at another m, as far as they are legal there; nothing is measured."""
        library_us = self._engine.prepare(self._gpu, problem).result()
        places = space.find(field.space.codes)
        part = space.subset(places[places >= 0])
        self._fields[str(problem)] = (part, library_us)
        unknown = np.full(len(part), np.nan)
        default = field.default if field.default in part else part[0]
        return Field(part, default, library_us, unknown, unknown, 0.0)

    def answer(self, request: Trying | Racing, account: Account) -> Any:
        """Do what a search asks for, and charge it: a measurement, or ratios of shape [rounds, indices]."""
        space, library_us = self._fields[request.problem]
        indices = (request.index,) if isinstance(request, Trying) else request.indices
        incumbent = request.incumbent if isinstance(request, Trying) else None
        tasks = [self._task(space[index], space.problem, library_us, incumbent) for index in indices]
        account.tried |= {(request.problem, index) for index in indices}
        with self._lock:
            begun = time.monotonic()
            if isinstance(request, Trying):
                result: Any = self._measured(tasks)[0]
            else:
                result = self._raced([task for task in tasks if task], request.rounds, request.pairs, request.seed)
            account.gpu_seconds += time.monotonic() - begun
        return result

    def race(self, field: Field, indices: Sequence[int], heats: int, rounds: int) -> NDArray[np.float64]:
        """Logarithms of ratios to the library of configurations, measured anew: of shape [heats, rounds, indices]."""
        self._engine.prepare(self._gpu, field.space.problem).result()
        tasks = [self._task(field.space[index], field.space.problem, field.library_us, None) for index in indices]
        racing = [task for task in tasks if task is not None]
        return np.log(np.stack([self._raced(racing, rounds, 1, heat) for heat in range(heats)]))

    def _raced(self, tasks: Sequence[Task], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Ratios to the library, of shape [rounds, tasks]."""
        return self._engine.race(self._gpu, tasks, rounds, pairs, seed).result()

    def _task(
        self, configuration: Configuration, problem: Problem, library_us: float, incumbent: float | None
    ) -> Task | None:
        """The task of measuring a configuration; None if it has no kernel."""
        built = self._kernels[configuration].result()
        return Task(configuration, built, problem, library_us, incumbent) if isinstance(built, Artifact) else None

    def _measured(self, tasks: Sequence[Task | None]) -> list[Measurement]:
        done = iter(self._engine.measure(self._gpu, [task for task in tasks if task is not None]).result())
        failure = Measurement.of_failure(CompileFailure("it did not compile", 0.0))
        return [failure if task is None else next(done) for task in tasks]
