"""Try configurations for real: compile them on the CPU, measure them on the GPU, both at the same time."""

import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilescout.search.evaluate import protocol
from tilescout.search.evaluate.artifacts import Artifact, ArtifactStore
from tilescout.search.evaluate.compile import CompileOptions, CompilePool
from tilescout.search.evaluate.evaluator import CannotMeasureError, Evaluator, Provenance
from tilescout.search.evaluate.host import MeasuringProcess, WorkerLostError
from tilescout.search.evaluate.measurement import Measurement
from tilescout.search.evaluate.protocol import ProtocolOptions
from tilescout.search.evaluate.worker import Job
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate


@dataclass(frozen=True)
class LiveOptions:
    """How live evaluation is organised.

    Attributes
    ----------
    compile
        The compiler processes.
    protocol
        The numbers of the measuring protocol.
    timeout
        Seconds a kernel may take to be verified and timed before it is killed. A right one takes well under a second;
        setting a problem up again in a replaced process takes a few.
    """

    compile: CompileOptions = field(default_factory=CompileOptions)
    protocol: ProtocolOptions = field(default_factory=ProtocolOptions)
    timeout: float = 30.0


def make_job(
    template: KernelTemplate,
    configuration: Configuration,
    artifact: Artifact,
    problem: Problem,
    library_us: float,
    options: ProtocolOptions,
) -> Job:
    """The job of measuring a compiled configuration on a problem, in full."""
    return Job(
        library=str(artifact.path),
        sha256=artifact.sha256,
        function=artifact.function,
        workload=template.workload,
        problem=str(problem),
        blocks_per_cluster=template.blocks_per_cluster(configuration),
        library_us=library_us,
        options=options,
    )


def measure_artifact(process: MeasuringProcess, job: Job, artifact: Artifact) -> Measurement:
    """Measure a compiled configuration; the measurement includes what is known from compiling."""
    return replace(process.measure(job), resources=artifact.resources, compile_seconds=artifact.compile_seconds)


class LiveEvaluator(Evaluator):
    """Compiles in a pool of processes and measures in a process of its own, one configuration at a time.

    Compiling runs ahead: as many configurations are in flight as there are compilers, plus one that is measured and one
    that waits, so that the GPU never waits for a compiler that could have run.

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

    measures_anew = True

    def __init__(
        self,
        template: KernelTemplate,
        problem: Problem,
        store: Path,
        gpu: str = "cuda",
        device: Device | None = None,
        options: LiveOptions | None = None,
    ) -> None:
        self.template, self.problem = template, problem
        self.options = options or LiveOptions()
        template.check(problem)
        artifacts = ArtifactStore(store)
        self._process = MeasuringProcess(gpu, self.options.timeout)
        try:
            described = self._process.describe()
            self.device = device or find_device(described["name"])
            self.space = template.space(problem, self.device)
            self._library_us = self._process.prepare(template.workload, str(problem), self.options.protocol)
        except BaseException:
            self._process.close()
            raise
        versions = {**described["versions"], "nvidia-cutlass-dsl": version("nvidia-cutlass-dsl")}
        self.provenance = Provenance(
            "live", f"measured on {described['name']}", {**versions, "protocol": protocol.VERSION}
        )
        self.capacity = self.options.compile.processes + 2
        self._pool = CompilePool(template, problem.signature, self.device.arch, artifacts, self.options.compile)
        self._compiled: queue.SimpleQueue[tuple[int, bool, Future[Artifact | Measurement]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, Measurement] | BaseException] = queue.SimpleQueue()
        self._closing = False
        self._incumbent = math.inf
        self._thread = threading.Thread(target=self._measure_all, name="measure", daemon=True)
        self._thread.start()

    def submit(self, index: int, incumbent: float | None = None) -> None:
        # Compiling takes a while: by the time the kernel is measured, a better incumbent may be known.
        if incumbent is not None:
            self._incumbent = min(self._incumbent, incumbent)
        self._pool.submit(self.space[index]).add_done_callback(self._hand_over(index, incumbent is not None))

    def _hand_over(self, index: int, prunable: bool) -> Callable[["Future[Artifact | Measurement]"], None]:
        return lambda compiled: self._compiled.put((index, prunable, compiled))

    def race(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        compiled = [self._pool.submit(self.space[index]).result() for index in indices]
        jobs = []
        for index, artifact in zip(indices, compiled, strict=True):
            if isinstance(artifact, Measurement):
                raise CannotMeasureError(f"a candidate of the race does not compile any more: {artifact.error}")
            jobs.append(self._job(index, artifact))
        try:
            return self._process.race(jobs, rounds, pairs, seed)
        except WorkerLostError as lost:
            raise CannotMeasureError(f"the race ended early: {lost}") from lost

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

    def close(self) -> None:
        self._closing = True
        self._pool.close()
        self._process.interrupt()
        self._compiled.put(None)
        self._thread.join()
        self._process.close()

    def _measure_all(self) -> None:
        while (task := self._compiled.get()) is not None:
            index, prunable, compiled = task
            if self._closing or compiled.cancelled():
                continue
            try:
                result = compiled.result()
                outcome = result if isinstance(result, Measurement) else self._measure(index, prunable, result)
            except BaseException as error:  # the caller of wait() must hear of it, whatever it is
                self._done.put(error)
                return
            self._done.put((index, outcome))

    def _measure(self, index: int, prunable: bool, artifact: Artifact) -> Measurement:
        job = self._job(index, artifact)
        if prunable and math.isfinite(self._incumbent):
            job = replace(job, incumbent=self._incumbent)
        measured = measure_artifact(self._process, job, artifact)
        if measured.timing is not None:
            self._incumbent = min(self._incumbent, measured.timing.ratio)
        return measured

    def _job(self, index: int, artifact: Artifact) -> Job:
        options = self.options.protocol
        return make_job(self.template, self.space[index], artifact, self.problem, self._library_us, options)
