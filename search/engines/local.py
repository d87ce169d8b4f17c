"""The engine of one machine: a pool of compiler processes, and a measuring process for each GPU."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompilePool
from tilescout.search.build.making import described_artifact
from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions, Task
from tilescout.search.engines.gpus import products_of
from tilescout.search.engines.jobs import complete, describe_gpus, device_of, job_of, measure_batch, provenance_of
from tilescout.search.engines.listings import ListingKey, ListingStore
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.process import MeasuringProcess, WorkerLostError
from tilescout.search.measure.protocol import Objective, protocol_of
from tilescout.search.measure.provenance import Provenance
from tilescout.spaces.devices import Device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import Listing
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.workloads import load_workload

Result = TypeVar("Result")


class LocalEngine(Engine):
    """Compiles and measures on this machine.

    A measuring process takes seconds to start. Kernels can be compiled meanwhile; what needs the process waits for it.

    Parameters
    ----------
    template
        The kernels that are compiled and measured.
    store
        Folder of the artifact store.
    gpus
        ``cuda`` or ``cuda:N``, one for each GPU; ``cpu`` measures kernels that were built for the host.
    device
        The device whose rules hold; None takes the one that the GPUs say they are.
    options
        See `LiveOptions`.

    Raises
    ------
    DeviceError
        If a GPU is unknown, or they are not alike.
    StoreError
        If the store can't be written.
    """

    def __init__(
        self,
        template: KernelTemplate,
        store: Path,
        gpus: Sequence[str] = ("cuda",),
        device: Device | None = None,
        options: LiveOptions | None = None,
    ) -> None:
        self.template, self.options = template, options or LiveOptions()
        artifacts, self._listings = ArtifactStore(store), ListingStore(store)

        def compilers(arch: str) -> CompilePool:
            return CompilePool(template, "", arch, artifacts, self.options.compile)

        # The compiler is imported while the measuring processes start, where its target is known.
        targets = template.archs if device is None else (device.arch,)
        self._pool = compilers(targets[0])
        if len(targets) == 1:
            self._pool.start()
        self._processes = [
            MeasuringProcess(gpu, self.options.timeout, standby=self.options.compile.standby) for gpu in gpus
        ]
        self._threads = [ThreadPoolExecutor(1, f"measure-{gpu}") for gpu in gpus]
        self._set_up: dict[tuple[str, Problem], Future[float]] = {}
        self._described = [self._on(gpu, MeasuringProcess.describe) for gpu in range(len(gpus))]
        try:
            self.product = describe_gpus(products_of(gpus) or [self._name_of(gpu) for gpu in range(len(gpus))])
            self.device = device_of(self.product, device)
        except BaseException:
            self.close()
            raise
        self.gpus, self.compilers = len(gpus), self.options.compile.processes
        self.protocol, self.protocol_text = protocol_of(self.options.protocol.objective)
        if self.device.arch != self._pool.arch:
            self._pool.close()
            self._pool = compilers(self.device.arch)

    @cached_property
    def versions(self) -> Mapping[str, str]:  # type: ignore[override]
        """Of the software that matters, once the measuring processes are ready.

        Raises
        ------
        DeviceError
            If a GPU can't be used.
        """
        described = [future.result() for future in self._described]
        return {**described[0]["versions"], "nvidia-cutlass-dsl": version("nvidia-cutlass-dsl")}

    @cached_property
    def provenance(self) -> Provenance:  # type: ignore[override]
        """Where the measurements come from, once the measuring processes are ready; raises as `versions` does."""
        return provenance_of(self.product, self.gpus, self.versions, self.objective)

    @property
    def objective(self) -> Objective:
        return self.options.protocol.objective

    def _name_of(self, gpu: int) -> str:
        return str(self._described[gpu].result()["name"])

    def library(self, problem: Problem) -> str:
        return load_workload(self.template.workload).library(problem)

    def listing(self, gpu: int, template: KernelTemplate, problem: Problem, guesses: int | None) -> "Future[Listing]":
        def ask(process: MeasuringProcess) -> Listing:
            if guesses is not None:
                return process.listing(template.loader, str(problem), guesses)
            first = process.listing(template.loader, str(problem), 1)
            key = ListingKey(
                template.name, str(problem), first.library, first.version, first.census, self.product, self.versions
            )
            if (known := self._listings.find(key)) is not None:
                return known
            found = process.listing(template.loader, str(problem), None)
            self._listings.keep(key, found)
            return found

        return self._on(gpu, ask)

    def named(
        self, gpu: int, template: KernelTemplate, problems: Sequence[Problem]
    ) -> "Future[list[Sequence[int | str]]]":
        return self._on(gpu, lambda process: process.named(template.loader, [str(each) for each in problems]))

    def describe(self, template: KernelTemplate, configuration: Configuration, signature: str) -> Artifact:
        return described_artifact(template, configuration, signature, self.device.arch, self._pool.store)

    def stored(self, signature: str) -> Sequence[Configuration]:
        return self._pool.stored(signature)

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        return self._pool.submit(configuration, signature)

    def expect(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        return self._pool.submit(configuration, signature, later=True)

    def set_up(self, problem: Problem) -> None:
        self._set_up[self.template.workload, problem] = self.prepare(0, problem)

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        if gpu == 0 and (begun := self._set_up.pop((self.template.workload, problem), None)) is not None:
            return begun
        workload, options = self.template.workload, self.options.protocol
        return self._on(gpu, lambda process: process.prepare(workload, str(problem), options))

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        def measure(process: MeasuringProcess) -> list[Measurement]:
            jobs = [job_of(self.template, task, self.options.protocol) for task in tasks]
            measured = measure_batch(process, jobs, [task.incumbent is not None for task in tasks])
            return [complete(outcome, task.artifact) for outcome, task in zip(measured, tasks, strict=True)]

        return self._on(gpu, measure)

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        def race(process: MeasuringProcess) -> NDArray[np.float64]:
            jobs = [job_of(self.template, task, self.options.protocol) for task in tasks]
            try:
                return process.race(jobs, rounds, pairs, seed)
            except WorkerLostError as lost:
                raise CannotMeasureError(f"the race ended early: {lost}") from lost

        return self._on(gpu, race)

    def glances(
        self, gpu: int, groups: Sequence[Sequence[Task]], rounds: int, seed: int
    ) -> "Future[list[tuple[float, NDArray[np.float64]]]]":
        def glance(process: MeasuringProcess) -> list[tuple[float, NDArray[np.float64]]]:
            jobs = [[job_of(self.template, task, self.options.protocol) for task in tasks] for tasks in groups]
            try:
                return process.glances(jobs, rounds, seed)
            except WorkerLostError as lost:
                raise CannotMeasureError(f"the glance ended early: {lost}") from lost

        return self._on(gpu, glance)

    def beside(self, template: KernelTemplate) -> "LocalEngine":
        """An engine of other kernels with this one's measuring processes and, where they can serve both, compilers."""
        other = self._lend(template)
        store, options = self._pool.store, self.options.compile
        other._pool = CompilePool(template, "", self.device.arch, store, options, beside=self._pool)
        other._pool.start()
        return other

    def close(self) -> None:
        self._pool.close()
        if not self._lent:
            self._end()

    def _on(self, gpu: int, work: Callable[[MeasuringProcess], Result]) -> "Future[Result]":
        return self._threads[gpu].submit(work, self._processes[gpu])

    def _end(self) -> None:
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.interrupt()
        for thread in self._threads:
            thread.shutdown(wait=True)
        for process in self._processes:
            process.close()
