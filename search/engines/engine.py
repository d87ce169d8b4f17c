"""The interface between what is to be measured and who compiles and measures it: this machine, or many."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact
from tilescout.search.build.closing import Closing
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.evaluator import Provenance
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.worker import Job
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import DeviceError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.workloads import find_workload


@dataclass(frozen=True)
class LiveOptions:
    """How compiling and measuring are organised.

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


@dataclass(frozen=True)
class Task:
    """A compiled configuration to measure on a problem.

    Attributes
    ----------
    configuration, artifact
        The configuration, and what it was compiled to.
    problem
        The problem.
    library_us
        The vendor library's steady time on it, in µs.
    incumbent
        The best ratio to the library so far, infinite if there is none: what is clearly slower may be given up early.
        None measures in full.
    """

    configuration: Configuration
    artifact: Artifact
    problem: Problem
    library_us: float
    incumbent: float | None = None


class Engine(Closing):
    """Compiles configurations of one template and measures them on one or more GPUs of one kind.

    Calls return at once; what they return is settled as soon as it is known, in threads of the engine's own. A GPU
    does one thing at a time; two batches in flight keep it busy. A failure of a
    configuration is an outcome, never an exception. A future raises `DeviceError` if the GPU is lost for good.

    Attributes
    ----------
    template
        What is compiled and measured.
    device
        The GPUs, which are alike.
    product, versions
        What the driver calls them, and the versions of what matters, the driver's among them.
    provenance
        Where the measurements come from.
    protocol, protocol_text
        By what they measure: its version, and in prose.
    gpus
        How many there are; they are numbered from 0.
    compilers
        Configurations that are compiled at the same time.
    measures_anew
        Whether it can `race`.
    """

    template: KernelTemplate
    device: Device
    product: str
    versions: Mapping[str, str]
    provenance: Provenance
    protocol: str
    protocol_text: str
    gpus: int
    compilers: int
    measures_anew = True

    @property
    def source_hash(self) -> str:
        """The hash of the source of the kernels that are measured."""
        return self.template.source_hash

    @property
    def recorded(self) -> date:
        """The day of the measurements: today."""
        return date.today()

    def space(self, problem: Problem) -> SearchSpace:
        """The configurations that can be tried on a problem.

        Raises
        ------
        ProblemError, SpaceError
            If the template can't compute the problem, or not on this device.
        """
        return self.template.space(problem, self.device)

    @abstractmethod
    def library(self, problem: Problem) -> str:
        """What the library's kernel is called through."""

    @abstractmethod
    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | Measurement]":
        """Compile a configuration for the problems of a signature, unless the artifact store has it."""

    @abstractmethod
    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        """Set a problem up on a GPU and take the library's steady time, in µs."""

    @abstractmethod
    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        """Measure a batch, all of one problem, in this order; what is fast prunes what comes after it."""

    @abstractmethod
    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        """Measure configurations that are right once more, in interleaved rounds: ratios of shape [rounds, tasks].

        Raises
        ------
        CannotMeasureError
            By the future, if the engine can't measure anew, or one of the kernels took the measuring process down.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop everything; what is not settled is cancelled."""


def make_job(
    template: KernelTemplate,
    configuration: Configuration,
    artifact: Artifact,
    problem: Problem,
    library_us: float,
    options: ProtocolOptions,
) -> Job:
    """The job, for a measuring process, of measuring a compiled configuration on a problem in full."""
    verified = (problem, find_workload(template.workload).edge_problem(problem))
    return Job(
        library=str(artifact.path),
        sha256=artifact.sha256,
        function=artifact.function,
        workload=template.workload,
        problem=str(problem),
        blocks_per_cluster=template.blocks_per_cluster(configuration),
        library_us=library_us,
        options=options,
        scratch_bytes=max(template.scratch_bytes(configuration, each) for each in verified),
    )


def job_of(template: KernelTemplate, task: Task, options: ProtocolOptions) -> Job:
    """The job, for a measuring process, that a task is."""
    job = make_job(template, task.configuration, task.artifact, task.problem, task.library_us, options)
    known = task.incumbent is not None and np.isfinite(task.incumbent)
    return replace(job, incumbent=task.incumbent) if known else job


def complete(measured: Measurement, artifact: Artifact) -> Measurement:
    """A measurement with what is known from compiling."""
    return replace(measured, resources=artifact.resources, compile_seconds=artifact.compile_seconds)


def measure_batch(process: MeasuringProcess, jobs: Sequence[Job], prunable: Sequence[bool]) -> list[Measurement]:
    """Measure jobs of one problem one after the other; `prunable` says whose incumbent the earlier ones may lower."""
    measured, best = [], np.inf
    for job, may_prune in zip(jobs, prunable, strict=True):
        if may_prune and best < (job.incumbent or np.inf):
            job = replace(job, incumbent=best)
        outcome = process.measure(job)
        if outcome.timing is not None:
            best = min(best, outcome.timing.ratio)
        measured.append(outcome)
    return measured


def device_of(product: str, given: Device | None = None) -> Device:
    """The device that a driver's name for a GPU means; `given` overrules it."""
    return given or find_device(product)


def describe_gpus(names: Sequence[str]) -> str:
    """The name that all GPUs have.

    Raises
    ------
    DeviceError
        If they are not alike, or there is none.
    """
    kinds = sorted(set(names))
    if len(kinds) != 1:
        found = ", ".join(f"{names.count(kind)} {kind}" for kind in kinds) or "none"
        raise DeviceError(f"a search or campaign needs GPUs of one kind, found {found}")
    return kinds[0]


def at_work(product: str, gpus: int, where: str = "") -> str:
    """Where measurements come from, in a line."""
    return f"measured on {f'{gpus} ' if gpus > 1 else ''}{product}{where}"


def failed_future(error: BaseException) -> "Future[Any]":
    """A future that raises."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
