"""The engine of a Ray cluster: compile tasks on its CPUs, an actor for each of its GPUs."""

import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, CompileFailure, read_shared_object
from tilescout.search.build.making import described_artifact
from tilescout.search.build.waiting import Shared
from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions, Task
from tilescout.search.engines.jobs import complete, describe_gpus, device_of, job_of, provenance_of
from tilescout.search.engines.ray_worker import (
    GpuWorker,
    Shipped,
    compile_task,
    save_shared_object,
    session_folder,
)
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import protocol_of
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ArtifactError, DeviceError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import Listing
from tilescout.spaces.problems import Problem
from tilescout.spaces.processes import find_modules_in, module_places, own_folders
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.workloads import load_workload

_LOG = logging.getLogger(__name__)
_CONNECT_SECONDS = 4.0  # of each address that a host's name has: a dead cluster is told within 10 s
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # how a client begins; a server answers it
_ATTEMPTS = 3  # at a task whose machine is lost
_START_SECONDS = 300.0  # until an actor or a task runs: its machine is free, a process starts, torch is imported

Result = TypeVar("Result")


class ActorLostError(Exception):
    """The actor of a GPU died, or did not answer in time, and so did those that replaced it."""


@dataclass(frozen=True)
class RayOptions:
    """How a cluster is used.

    Attributes
    ----------
    address
        Of the cluster, as `ray.init` takes it; ``auto`` takes the one that runs here, or starts one on this machine.
    gpus
        GPUs to use at most; None takes all.
    gpu
        ``cuda``, or ``cpu`` for kernels that were built for the host: those actors are given no GPU.
    """

    address: str = "auto"
    gpus: int | None = None
    gpu: str = "cuda"


class RayEngine(Engine):
    """Compiles and measures on a Ray cluster.

    Every call waits in a thread of its own for its answer, and no longer than its deadline. A task whose machine is
    lost is handed out again; a GPU's actor that is lost or hangs is replaced, and what it had is measured again. Ray
    itself retries nothing: a compiler that crashes would crash again.

    Compiled kernels travel as bytes: into the store of this process, and through Ray's object store, once to each
    machine with a GPU.

    Parameters
    ----------
    template, store, device, options
        See `LocalEngine`.
    cluster
        See `RayOptions`.

    Raises
    ------
    DeviceError
        If the cluster can't be reached, has no GPU, or GPUs of several kinds.
    StoreError
        If the store can't be written.
    """

    def __init__(
        self,
        template: KernelTemplate,
        store: Path,
        cluster: RayOptions | None = None,
        device: Device | None = None,
        options: LiveOptions | None = None,
    ) -> None:
        self.template, self.options, self.cluster = template, options or LiveOptions(), cluster or RayOptions()
        self._store = ArtifactStore(store)
        self._ours = _join(self.cluster.address)
        import ray

        self._ray = ray
        self._closing = False
        self._session = token_hex(8)
        self._shipped: dict[str, Any] = {}  # references to shared objects in Ray's object store, by checksum
        self._compiling: dict[str, Shared[Artifact | CompileFailure]] = {}
        self._compile_tasks: set[Any] = set()  # references to what they will return
        self._lock = threading.Lock()
        self._compile = ray.remote(compile_task).options(num_cpus=1, max_retries=0)
        self._lanes: list[_Lane] = []
        self._threads: list[ThreadPoolExecutor] = []
        try:
            self.gpus = self._count()
            self._lanes = [_Lane(self._make_actor()) for _ in range(self.gpus)]
            # Two a GPU: one waits for what is measured, and one has handed over what comes next.
            self._threads = [ThreadPoolExecutor(2, f"gpu-{gpu}") for gpu in range(self.gpus)]
            cpus = int(self._resources().get("CPU", 1))
            self.compilers = max(1, cpus - self.gpus)
            self._compile_threads = ThreadPoolExecutor(self.compilers, "compile")
            self._threads.append(self._compile_threads)
            starting = [self._threads[gpu].submit(lane.start) for gpu, lane in enumerate(self._lanes)]
            described = [future.result() for future in starting]
            self.product = describe_gpus([each["name"] for each in described])
            self.device = device_of(self.product, device)
        except BaseException:
            self.close()
            raise
        compiler = {"nvidia-cutlass-dsl": version("nvidia-cutlass-dsl"), "ray": ray.__version__}
        self.versions = {**described[0]["versions"], **compiler}
        objective = self.options.protocol.objective
        self.protocol, self.protocol_text = protocol_of(objective)
        self.provenance = provenance_of(self.product, self.gpus, self.versions, objective, " of a Ray cluster")

    def beside(self, template: KernelTemplate) -> "RayEngine":
        return self._lend(template)

    def library(self, problem: Problem) -> str:
        return load_workload(self.template.workload).library(problem)

    def listing(self, gpu: int, template: KernelTemplate, problem: Problem, guesses: int | None) -> "Future[Listing]":
        return self._on(gpu, 4 * self.options.timeout, "listing", template.loader, str(problem), guesses)

    def named(
        self, gpu: int, template: KernelTemplate, problems: Sequence[Problem]
    ) -> "Future[list[Sequence[int | str]]]":
        asked = [str(each) for each in problems]
        return self._on(gpu, 4 * self.options.timeout, "named", template.loader, asked)

    def describe(self, template: KernelTemplate, configuration: Configuration, signature: str) -> Artifact:
        return described_artifact(template, configuration, signature, self.device.arch, self._store)

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        key = ArtifactKey.of(self.template, configuration, signature, self.device.arch)
        with self._lock:
            if (compiling := self._compiling.get(key.digest)) is not None and (joined := compiling.wait()) is not None:
                return joined
            if (stored := self._store.find(key)) is not None:
                result: Future[Artifact | CompileFailure] = Future()
                result.set_result(stored.outcome)
                return result
            work = self._compile_threads.submit(self._compile_remotely, key)
            shared = self._compiling[key.digest] = Shared(work)
            wanted = shared.wait()
            assert wanted is not None
        work.add_done_callback(lambda _: self._forget(key.digest, shared))
        return wanted

    def _forget(self, digest: str, shared: Shared[Artifact | CompileFailure]) -> None:
        with self._lock:
            if self._compiling.get(digest) is shared:  # it may have been given up, and asked for again
                del self._compiling[digest]

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        options = self.options.protocol
        return self._on(gpu, 4 * self.options.timeout, "prepare", self.template.workload, str(problem), options)

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        return self._threads[gpu].submit(self._measure, gpu, tasks)

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        jobs = [job_of(self.template, task, self.options.protocol) for task in tasks]

        def race() -> NDArray[np.float64]:
            try:
                arguments = (jobs, rounds, pairs, seed, self._shared_objects(tasks))
                raced: NDArray[np.float64] = self._lanes[gpu].call(4 * self.options.timeout, "race", *arguments)
            except (ActorLostError, ArtifactError) as error:
                raise CannotMeasureError(f"the race ended early: {error}") from error
            return raced

        return self._threads[gpu].submit(race)

    def close(self) -> None:
        if self._lent:  # the actors, the threads and the tasks are the other's
            return
        with self._lock:
            self._closing = True
            compiling = list(self._compile_tasks)
        for lane in self._lanes:
            lane.close()
        if self._ray.is_initialized():
            for task in compiling:  # it may wait for a core of the cluster for long
                self._ray.cancel(task, force=True)
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)
        if self._ours:
            self._ray.shutdown()  # takes the tasks that still run along
        for threads in self._threads:
            threads.shutdown(wait=True)
        shutil.rmtree(session_folder(self._session), ignore_errors=True)  # workers that were killed leave theirs

    def _count(self) -> int:
        if self.cluster.gpu != "cuda":  # as many actors of the host as one likes
            return self.cluster.gpus or 1
        found = int(self._resources().get("GPU", 0))
        if not found:
            raise DeviceError(
                f"the Ray cluster {self.cluster.address} has no GPU: start it where there is one, or search without it"
            )
        return min(self.cluster.gpus or found, found)

    def _resources(self) -> dict[str, float]:
        found: dict[str, float] = self._ray.cluster_resources()  # type: ignore[no-untyped-call]
        return found

    def _make_actor(self) -> Callable[[], Any]:
        share = {"num_gpus": 1} if self.cluster.gpu == "cuda" else {}
        actor = self._ray.remote(GpuWorker).options(num_cpus=1, max_restarts=0, max_task_retries=0, **share)
        return lambda: actor.remote(self._session, self.cluster.gpu, self.options.timeout)

    def _on(self, gpu: int, seconds: float, method: str, *arguments: Any) -> "Future[Any]":
        def call() -> Any:
            try:
                return self._lanes[gpu].call(seconds, method, *arguments)
            except ActorLostError as lost:
                raise DeviceError(f"GPU {gpu} of the Ray cluster is lost: {lost}") from lost

        return self._threads[gpu].submit(call)

    def _measure(self, gpu: int, tasks: Sequence[Task]) -> list[Measurement]:
        jobs = [job_of(self.template, task, self.options.protocol) for task in tasks]
        prunable = [task.incumbent is not None for task in tasks]
        try:
            seconds = self.options.timeout * (1 + len(tasks))
            records = self._lanes[gpu].call(seconds, "measure", jobs, prunable, self._shared_objects(tasks))
        except (ActorLostError, ArtifactError) as error:
            if len(tasks) > 1:  # which of them it is shows when each has an actor to itself
                return [measured for task in tasks for measured in self._measure(gpu, [task])]
            status = Status.LOAD_ERROR if isinstance(error, ArtifactError) else Status.CRASH
            return [complete(Measurement(status, one_line(error)), tasks[0].artifact)]
        measured = map(Measurement.from_dict, records)
        return [complete(each, task.artifact) for each, task in zip(measured, tasks, strict=True)]

    def _shared_objects(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """References to the tasks' shared objects, put into Ray's object store when they are first needed."""
        for artifact in [task.artifact for task in tasks if task.artifact.sha256 not in self._shipped]:
            self._shipped[artifact.sha256] = self._ray.put(read_shared_object(artifact.path, artifact.sha256))
        return {task.artifact.sha256: self._shipped[task.artifact.sha256] for task in tasks}

    def _compile_remotely(self, key: ArtifactKey) -> Artifact | CompileFailure:
        timeout = self.options.compile.timeout
        fault = ""
        for _ in range(_ATTEMPTS):
            with self._lock:
                if self._closing:
                    raise DeviceError("the engine was closed")
                task = self._compile.remote(self.template, key, timeout, self._session)
                self._compile_tasks.add(task)
            try:
                built = self._ray.get(task, timeout=_START_SECONDS + timeout)
            except self._ray.exceptions.RayTaskError as error:  # a missing tool, a full disk: not the configuration's
                raise error.cause from None
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                if self._closing:
                    raise DeviceError("the engine was closed") from error
                self._ray.cancel(task, force=True)
                fault = one_line(error)
                continue
            finally:
                with self._lock:
                    self._compile_tasks.discard(task)
            return built if isinstance(built, CompileFailure) else self._keep(key, built)
        message = f"{_ATTEMPTS} machines were lost while they compiled it ({fault}); it can be tried again"
        return CompileFailure(message)

    def _keep(self, key: ArtifactKey, shipped: Shipped) -> Artifact:
        """Put an artifact that was made elsewhere into the store of this process."""
        with self._store.scratch() as scratch:
            path = scratch / shipped.artifact.path.name
            save_shared_object(path, shipped.artifact.sha256, shipped.shared_object)
            return self._store.publish(key, replace(shipped.artifact, path=path), scratch)


class _Lane:
    """The actor of one GPU, replaced when it is lost; `make` makes one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        import ray

        self._ray, self._make = ray, make
        self._lock = threading.Lock()
        self._actor = make()
        self._closed = False

    def start(self) -> dict[str, Any]:
        """Wait for the actor; what it says of its GPU.

        Raises
        ------
        DeviceError
            If it does not start: no machine has a GPU to spare, or the GPU can't be used.
        """
        try:
            described: dict[str, Any] = self._ray.get(self._actor.describe.remote(), timeout=_START_SECONDS)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.GetTimeoutError:
            raise DeviceError(f"no GPU of the Ray cluster was free for {_START_SECONDS:g} s") from None
        except self._ray.exceptions.RayActorError as error:
            raise DeviceError(f"the actor of a GPU did not start: {one_line(error)}") from None
        return described

    def call(self, seconds: float, method: str, *arguments: Any) -> Any:
        """The answer of the actor; it may take `seconds`, and as long for what was asked before.

        Raises
        ------
        ActorLostError
            If it was lost so often that this call may be the cause.
        DeviceError
            If a lost one can't be replaced.
        """
        fault = ""
        for _ in range(_ATTEMPTS):
            with self._lock:
                actor = self._actor
            if self._closed:
                break
            try:
                return self._ray.get(getattr(actor, method).remote(*arguments), timeout=2 * seconds)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.GetTimeoutError:
                fault = f"no answer within {2 * seconds:g} s"
            except self._ray.exceptions.RayActorError as error:
                fault = one_line(error)
            self._replace(actor, fault)
        if self._closed:
            raise DeviceError("the engine was closed")
        raise ActorLostError(f"the process that measures was lost {_ATTEMPTS} times: {fault}")

    def close(self) -> None:
        """End the actor and its measuring process."""
        self._closed = True
        if not self._ray.is_initialized():
            return
        with suppress(Exception):  # it measures, or is gone: its child leaves with it
            self._ray.get(self._actor.close.remote(), timeout=0.5)
        self._ray.kill(self._actor)

    def _replace(self, lost: Any, fault: str) -> None:
        with self._lock:
            if self._actor is not lost or self._closed:  # another call has replaced it already
                return
            _LOG.warning("replacing the actor of a GPU: %s", fault)
            self._ray.kill(lost)
            self._actor = self._make()
            self.start()


@contextmanager
def joined(address: str) -> Iterator[None]:
    """Stay connected to a cluster while several engines come and go; those in the block use it.

    Raises
    ------
    DeviceError
        If it can't be reached, or Ray is not installed.
    """
    ours = _join(address)
    try:
        yield
    finally:
        if ours:
            import ray

            ray.shutdown()


def _join(address: str) -> bool:
    """Connect this process to a cluster, and say whether that is ours to end."""
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError as error:
        raise DeviceError("a cluster needs Ray: pip install 'tilescout[ray]'") from error
    if ray.is_initialized():
        return False
    # The working directory is a place of modules for Ray's processes only if it is one here, and behind all others.
    here = str(Path.cwd())
    wanted = here in (*module_places(), *own_folders())
    hook = {"worker_process_setup_hook": lambda: find_modules_in(here)} if wanted else None
    try:
        # Ray's processes look for modules in the folder that it is joined from, before all other places.
        _check_reachable(address)
        with chdir("/"), _loopback_if_alone(address):
            ray.init(
                address=None if address == "auto" else address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env=hook,
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise DeviceError(f"can't use the Ray cluster {address}: {one_line(error)}") from error
    return True


def _check_reachable(address: str) -> None:
    """Have a cluster's port answer as gRPC does: Ray would try for minutes before it reports that nothing is there."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS) as connection:
            connection.sendall(_HTTP2)
            if not connection.recv(1):
                raise ConnectionError("it is no Ray: it hung up")


@contextmanager
def _loopback_if_alone(address: str) -> Iterator[None]:
    """Have a Ray that is started here listen on this machine alone.

    On Linux, Ray listens on all interfaces, and takes no address of its own for that: an argument of 127.0.0.1 is made
    that of the network (Ray 2.60). What it does on Windows and macOS is what is wanted here, and asked for in the
    process that starts it and, through the environment, in those that it starts.
    """
    from ray._private import ray_constants, services

    # As `ray.init` looks for one that runs here, which would be joined.
    if address != "auto" or services.canonicalize_bootstrap_address(None) is not None:  # type: ignore[arg-type]
        yield
        return
    variable = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    before = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(variable)
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[variable] = False, "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before[0]
        if before[1] is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before[1]
