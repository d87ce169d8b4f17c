"""Try configurations for real: compile them on CPUs, measure them on GPUs, both at the same time."""

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact
from tilescout.search.engines.engine import Engine, LiveOptions, Task, make_job
from tilescout.search.engines.evaluator import CannotMeasureError, Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Measurement
from tilescout.spaces.devices import Device
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate

__all__ = ["EngineEvaluator", "LiveEvaluator", "LiveOptions", "make_job"]


class EngineEvaluator(Evaluator):
    """Tries configurations on one problem by an engine, on one or more of its GPUs.

    Compiling runs ahead: as many configurations are in flight as there are compilers, plus one that is measured and one
    that waits on every GPU, so that none waits for a compiler that could have run. The engine is not closed with it:
    the evaluators of several problems may share one.

    Parameters
    ----------
    engine
        Compiles and measures.
    problem
        What is tuned.
    gpus
        Numbers of the GPUs to use; None takes all.

    Raises
    ------
    DeviceError
        If the problem can't be set up.
    ProblemError, SpaceError
        If the template can't compute the problem, or not on this device.
    """

    def __init__(self, engine: Engine, problem: Problem, gpus: Sequence[int] | None = None) -> None:
        self.engine, self.template, self.problem = engine, engine.template, problem
        self.device, self.provenance = engine.device, engine.provenance
        self.space = engine.space(problem)
        self.library, self.measures_anew = engine.library(problem), engine.measures_anew
        self._in_flight = dict.fromkeys(range(engine.gpus) if gpus is None else gpus, 0)
        self.capacity = engine.compilers + 2 * len(self._in_flight)
        self._library_us = engine.prepare(next(iter(self._in_flight)), problem).result()
        self._compiled: deque[tuple[int, bool, Artifact]] = deque()
        self._done: queue.SimpleQueue[tuple[int, Measurement] | BaseException] = queue.SimpleQueue()
        self._incumbent = math.inf
        self._lock = threading.RLock()  # an outcome may be there at once, and hands over the next
        self._closed = False

    def submit(self, index: int, incumbent: float | None = None) -> None:
        # Compiling takes a while: by the time the kernel is measured, a better incumbent may be known.
        if incumbent is not None:
            self._incumbent = min(self._incumbent, incumbent)
        compiled = self.engine.compile(self.space[index], self.problem.signature)
        compiled.add_done_callback(self._heard(lambda: self._take(index, incumbent is not None, compiled.result())))

    def wait(self) -> list[tuple[int, Measurement]]:
        outcomes = [self._done.get()]
        while not self._done.empty():
            outcomes.append(self._done.get())
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    def library_us(self) -> float:
        return self._library_us

    def move(self, gpu: int) -> None:
        self._in_flight = {gpu: 0}

    def race(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        compiled = [self.engine.compile(self.space[index], self.problem.signature) for index in indices]
        tasks = []
        for index, future in zip(indices, compiled, strict=True):
            artifact = future.result()
            if isinstance(artifact, Measurement):
                raise CannotMeasureError(f"a candidate of the race does not compile any more: {artifact.error}")
            tasks.append(self._task(index, artifact))
        return self.engine.race(next(iter(self._in_flight)), tasks, rounds, pairs, seed).result()

    def close(self) -> None:
        """Drop what is not measured yet; what is being measured then comes to nothing."""
        with self._lock:
            self._closed = True
            self._compiled.clear()

    def _heard(self, act: Callable[[], None]) -> "Callable[[Future[Any]], None]":
        """A callback for a future that acts on its outcome; the caller of `wait` hears of any error."""

        def heard(future: "Future[Any]") -> None:
            try:
                act()
            except CancelledError:  # the engine was closed
                pass
            except BaseException as error:  # whatever it is
                self._done.put(error)

        return heard

    def _take(self, index: int, prunable: bool, compiled: Artifact | Measurement) -> None:
        if isinstance(compiled, Measurement):
            self._done.put((index, compiled))
            return
        with self._lock:
            self._compiled.append((index, prunable, compiled))
            self._feed()

    def _feed(self) -> None:
        """Hand compiled configurations to the GPUs: one that is measured and one that waits on each."""
        while self._compiled and not self._closed:
            gpu = min(self._in_flight, key=lambda each: self._in_flight[each])
            if self._in_flight[gpu] == 2:
                return
            index, prunable, artifact = self._compiled.popleft()
            self._in_flight[gpu] += 1
            task = self._task(index, artifact, self._incumbent if prunable else None)
            measured = self.engine.measure(gpu, [task])
            measured.add_done_callback(self._heard(self._returned(gpu, index, measured)))

    def _returned(self, gpu: int, index: int, measured: "Future[list[Measurement]]") -> Callable[[], None]:
        def returned() -> None:
            [measurement] = measured.result()
            with self._lock:
                if measurement.timing is not None:
                    self._incumbent = min(self._incumbent, measurement.timing.ratio)
                self._in_flight[gpu] -= 1
                self._feed()
            self._done.put((index, measurement))

        return returned

    def _task(self, index: int, artifact: Artifact, incumbent: float | None = None) -> Task:
        return Task(self.space[index], artifact, self.problem, self._library_us, incumbent)


class LiveEvaluator(EngineEvaluator):
    """Compiles in a pool of processes and measures in a process of its own, on one GPU of this machine.

    Parameters
    ----------
    template, problem
        What is tuned.
    store
        Folder of the artifact store.
    gpu
        ``cuda`` or ``cuda:N``; ``cpu`` measures kernels that were built for the host, on the facts of `device`.
    device
        The device whose rules hold; None takes the one that the GPU says it is.
    options
        See `LiveOptions`.

    Raises
    ------
    DeviceError
        If the GPU can't be used or is unknown.
    ProblemError, SpaceError
        If the template can't compute the problem, or not on this device.
    StoreError
        If the store can't be written.
    """

    def __init__(
        self,
        template: KernelTemplate,
        problem: Problem,
        store: Path,
        gpu: str = "cuda",
        device: Device | None = None,
        options: LiveOptions | None = None,
    ) -> None:
        template.check(problem)
        engine = LocalEngine(template, store, [gpu], device, options)
        try:
            super().__init__(engine, problem)
        except BaseException:
            engine.close()
            raise

    def close(self) -> None:
        """End the processes; unfinished configurations are dropped."""
        super().close()
        self.engine.close()
