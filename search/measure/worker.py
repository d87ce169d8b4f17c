"""The measuring process: it loads artifacts, verifies and times them. A kernel may take it down.

It needs torch, apache-tvm-ffi and CuteDSL's runtime library, not the compiler. It talks JSON over a socket with its
host (`tilescout.search.measure.process`); nothing is pickled.

A CUDA error that outlives its launch makes a process useless: every later call fails. The worker then reports the
failure and leaves; the host starts another.
"""

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescout.search.build.holding import hold
from tilescout.search.build.loading import Launch, load_described, load_launch, load_runtime_libraries
from tilescout.search.build.standby import Do
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.glance import Glancer
from tilescout.search.measure.machine import Machine, make_machine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import ProtocolOptions, is_doubtful, is_pruned
from tilescout.search.measure.verification import WrongResultError
from tilescout.spaces.errors import ArtifactError, SpaceError, TilescoutError, one_line
from tilescout.spaces.faults import SHORTAGES
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.processes import find_modules_in
from tilescout.spaces.workloads import load_workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Job:
    """One kernel to measure on one problem.

    Attributes
    ----------
    shared_object, sha256, function
        The artifact: its file, the file's checksum and the entry point.
    workload, problem
        The computation, and its sizes and types.
    blocks_per_cluster
        Blocks that are launched together.
    library_us
        The vendor library's steady time on the problem, if known.
    options
        The protocol's numbers.
    incumbent
        The best ratio to the library that is known; None measures the kernel in full, however slow it is.
    scratch_bytes
        Bytes of device memory that a launch needs for itself, on the problem and on its edge problem.
    loader
        The template's loader, as module:Class, if the artifact describes a library's kernel. Such a kernel is for this
        problem; it runs twice on it, and not on the edge problem.
    """

    shared_object: str
    sha256: str
    function: str
    workload: str
    problem: str
    blocks_per_cluster: int
    library_us: float | None
    options: ProtocolOptions
    incumbent: float | None = None
    scratch_bytes: int = 0
    loader: str = ""

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Job":
        """Read what `dataclasses.asdict` wrote."""
        return cls(**{**record, "options": ProtocolOptions.from_dict(record["options"])})


class ShortageError(Exception):
    """Room, memory or numbers of files ran out before a kernel ran, which says nothing of the kernel."""


_MOST_USED = 0.5  # of a device's memory, for problems that stay set up, and for a session that is held

_KEPT = 6
"""Problems that stay set up: searches of five share a GPU (`tilescout.search.tuning.suite.SEATS`), the next one's is
set up ahead, and that takes up to a second."""


class Worker:
    """The state of a measuring process: its device, and the benches of the last problems."""

    def __init__(self, device: str) -> None:
        self.machine: Machine = make_machine(device)
        load_runtime_libraries()
        self._benches: dict[tuple[str, str, ProtocolOptions], Bench] = {}  # the one that was used last comes last
        self._edge_errors: dict[str, float] = {}  # of the libraries (by checksum) that passed on the edge problem
        self._glancers: dict[tuple[str, ProtocolOptions], Glancer] = {}

    def warm_up(self) -> None:
        """Have the device load what setting a problem up takes, whatever the problem; nothing of it is kept."""
        import torch

        with suppress(torch.OutOfMemoryError):  # the problem that is asked for may fare better
            load_kernels(self.machine.device)
        self.machine.release()

    def bench(self, workload: str, problem: str, options: ProtocolOptions, library_us: float | None) -> Bench:
        """The problem set up; kept until `_KEPT` others were asked for, or half of the device's memory is in use.

        Raises
        ------
        torch.OutOfMemoryError
            If the device has no memory for it, also without the others.
        """
        import torch

        asked = (workload, problem, options)
        bench = self._benches.pop(asked, None)
        while bench is None:
            # The operands of the oldest go before new ones are made.
            while self._benches and (len(self._benches) >= _KEPT or self.machine.used > _MOST_USED):
                del self._benches[next(iter(self._benches))]
                self.machine.release()
            found = load_workload(workload)
            try:
                bench = Bench(self.machine, found, found.problem.parse(problem), options, library_us)
            except torch.OutOfMemoryError:
                if not self._benches:
                    raise
                self._benches.clear()
            if bench is None:  # the operands that were made for it have gone with the error
                self.machine.release()
        self._benches[asked] = bench
        return bench

    def measure(self, job: Job) -> Measurement:
        """Verify and time one kernel; every failure but the death of the process becomes the measurement.

        Raises
        ------
        ShortageError
            If it can't be loaded for want of room or memory, or its problem has to be set up again and can't be.
        """
        import torch

        try:
            bench = self.bench(job.workload, job.problem, job.options, job.library_us)
        except torch.OutOfMemoryError as error:
            raise ShortageError(one_line(error)) from error
        start = time.perf_counter()

        def failed(status: Status, error: BaseException, relative_error: float | None = None) -> Measurement:
            spent = time.perf_counter() - start
            return Measurement(
                status, one_line(error), relative_error=relative_error, gpu_seconds=spent, verify_seconds=spent
            )

        try:
            launch = self.load(job)
        except (ArtifactError, SpaceError, OSError, AttributeError, RuntimeError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, OSError) and cause.errno in SHORTAGES:
                raise ShortageError(one_line(error)) from error
            return failed(Status.LOAD_ERROR, error)
        try:
            known = self._edge_errors.get(job.sha256)
            error_here, first = bench.verify(launch, edge=known is None and not job.loader)
            relative_error = max(error_here, known or 0.0)
            if job.loader:
                bench.verify_again(launch)
            else:
                self._edge_errors[job.sha256] = relative_error
            verified = time.perf_counter()
            pilots = [first if first is not None else bench.pilot(launch)]
            if is_doubtful(pilots[0], job.incumbent, job.options):
                pilots.append(bench.pilot(launch))
            pruned = is_pruned(pilots, job.incumbent, job.options)
            piloted = time.perf_counter()
            timing = None if pruned else bench.time(launch, job.incumbent)
            if timing is not None and first is not None:
                bench.learn(first, timing.ratio)
            self.machine.synchronize()
        except WrongResultError as error:
            return failed(Status.WRONG, error, error.relative_error)
        except Exception as error:  # whatever TVM FFI and torch make of a failed launch
            return failed(Status.LAUNCH_ERROR, error)
        return Measurement(
            Status.PRUNED if pruned else Status.OK,
            timing=timing,
            pilot_us=min(pilots) * bench.library_us,
            clocks=bench.clocks,
            relative_error=relative_error,
            gpu_seconds=time.perf_counter() - start,
            verify_seconds=verified - start,
            pilot_seconds=piloted - verified,
        )

    def race(self, jobs: Sequence[Job], rounds: int, pairs: int, seed: int) -> list[list[float]]:
        """Ratios to the library, [rounds][jobs], of kernels that were measured before, in interleaved rounds."""
        first = jobs[0]
        bench = self.bench(first.workload, first.problem, first.options, first.library_us)
        ratios: list[list[float]] = bench.race([self.load(job) for job in jobs], rounds, pairs, seed).tolist()
        return ratios

    def glances(self, groups: Sequence[Sequence[Job]], rounds: int, seed: int) -> dict[str, Any]:
        """The library's times, [groups], and the ratios of kernels, [groups][rounds][jobs], or why there are none.

        It is ready for JSON. The jobs of a group are of one problem, those of all of one workload.
        """
        first = groups[0][0]
        workload = load_workload(first.workload)
        glancer = self._glancers.get((first.workload, first.options))
        if glancer is None:
            glancer = self._glancers[first.workload, first.options] = Glancer(self.machine, workload, first.options)
        try:
            # All are loaded before the first is timed, so that the device does not wait in between.
            asked = [(workload.problem.parse(jobs[0].problem), [self.load(job) for job in jobs]) for jobs in groups]
            found = glancer.glances(asked, rounds, seed)
        except Exception as error:  # whatever TVM FFI and torch make of a failed launch
            return {"error": one_line(error)}
        return {"library_us": [each for each, _ in found], "ratios": [ratios.tolist() for _, ratios in found]}

    def load(self, job: Job) -> Launch:
        """Load an artifact, once its checksum is right.

        Raises
        ------
        ArtifactError, SpaceError, OSError, AttributeError, RuntimeError
            If it is missing, damaged, or has no such entry point.
        """
        if job.loader:
            return load_described(Path(job.shared_object), job.sha256, job.loader)
        clusters = self.machine.max_clusters(job.blocks_per_cluster)
        return load_launch(Path(job.shared_object), job.sha256, job.function, job.workload, clusters, job.scratch_bytes)

    def listing(self, loader: str, problem: str, guesses: int | None) -> dict[str, Any]:
        """The kernels that a library has for a problem, or why there is none, ready for JSON."""
        try:
            return asdict(load_loader(loader).listing(problem, guesses))
        except TilescoutError as error:
            return {"error": one_line(error)}

    def named(self, loader: str, problems: Sequence[str]) -> dict[str, Any]:
        """The kernel that a library runs of its own accord for each problem, or why there is none, ready for JSON."""
        try:
            return {"rows": [load_loader(loader).listing(problem, 1).rows[0] for problem in problems]}
        except TilescoutError as error:
            return {"error": one_line(error)}

    def usable(self) -> bool:
        """Whether the device still answers; an error that a failed launch left behind shows at the next one."""
        import torch

        try:
            torch.ones(1, device=self.machine.device).sum().item()
        except Exception:  # torch raises several types; any of them means no
            return False
        return True


_SHAPE = (64, 64)


def load_kernels(device: "torch.device") -> None:
    """Run once all that draws operands, computes the reference, calls the library and judges an output.

    CUDA loads a kernel when it first runs, and a library sets itself up when it is first called: that is half of the
    time that the first problem takes. Kernels that threads load at the same time wait little for each other. On an H200
    host a small problem was set up 0.7 to 0.8 s after its process had begun, and a larger one after 0.9 to 1.1 s.
    Behind another problem, which loads the same kernels one after the other, it took 1.0 to 1.2 and 1.2 to 1.4 s (three
    processes each, 2026-11-28; `experiments/results/wall-time.md`).

    Raises
    ------
    torch.OutOfMemoryError
        If the device has no memory for that.
    """
    steps: tuple[Callable[[torch.device], object], ...] = (_draw, _multiply, _multiply_exactly, _judge)
    with ThreadPoolExecutor(len(steps), "preloading") as threads:
        for loaded in [threads.submit(step, device) for step in steps]:
            loaded.result()


def _draw(device: "torch.device") -> object:
    import torch

    generator = torch.Generator(device)
    generator.seed()
    return torch.randn(_SHAPE, generator=generator, device=device, dtype=torch.bfloat16).float()


def _multiply(device: "torch.device") -> object:
    import torch

    a = torch.ones(_SHAPE, device=device, dtype=torch.bfloat16)
    return torch.mm(a, a.t(), out=torch.empty_like(a))


def _multiply_exactly(device: "torch.device") -> object:
    import torch

    a = torch.ones((1, *_SHAPE), device=device)
    return torch.bmm(a, a.transpose(1, 2))


def _judge(device: "torch.device") -> object:
    import torch

    reference = torch.ones(_SHAPE, device=device)
    norms = reference.norm(), reference.abs().max()
    error = torch.linalg.vector_norm(torch.sub(reference.bfloat16(), reference))
    bands = torch.empty(_SHAPE, device=device, dtype=torch.int16).fill_(1)
    return torch.stack([*norms, error, (bands != 1).any().float()])


def leave_with_host(connection: Connection) -> None:
    """Leave the process when the host is gone, even in the middle of a kernel that never ends."""
    poller = select.poll()
    poller.register(connection.fileno(), 0)  # nothing but the hang-up, which is always reported
    poller.poll()
    os._exit(0)


def import_ahead() -> None:
    """Import what takes seconds. A process that then waits has nothing of the device yet."""
    import numpy.ma  # noqa: F401 - medians of numbers some of which are missing take it, 0.07 s on an H200 host
    import torch  # noqa: F401
    import tvm_ffi  # noqa: F401


def ready_to_measure() -> Do:
    """Get ready to stand by as a measuring process, for any device."""
    # TVM FFI asks torch whether there is a GPU. By default torch asks the CUDA driver, which does not survive a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import_ahead()
    return _serve_session


def _serve_session(connection: Connection, request: Mapping[str, Any]) -> None:
    import torch

    if torch.cuda._is_in_bad_fork():
        sys.stderr.write("the process that stands by has used the CUDA driver\n")
        return  # who asked then starts a process that has not
    device = request["device"]
    if "socket" in request:  # a session is to be held there
        hold(Path(request["socket"]), request["circumstances"], partial(_with_device, device))
    else:
        serve(connection, device, request["host"], request["at_once"])


def _with_device(device: str) -> Do | None:
    """Get a device, and return what a session does that has it; None where it would be in the way of others."""
    worker = Worker(device)
    if not worker.machine.is_shared or worker.machine.used > _MOST_USED:
        return None
    worker.warm_up()

    def serve_session(connection: Connection, request: Mapping[str, Any]) -> None:
        serve(connection, device, request["host"], ready=worker)

    return serve_session


def serve(connection: Connection, device: str, host: int, at_once: bool = False, ready: Worker | None = None) -> None:
    """Answer the host, the process of this number, until it hangs up; leave when the device is lost.

    The device is left alone until the host says that it is wanted, unless it is wanted at once. Then it is warmed up
    while the host is busy, too. One that is ready has it, and is warmed up.
    """
    threading.Thread(target=leave_with_host, args=(connection,), daemon=True).start()

    def send(message: dict[str, Any]) -> None:
        connection.send_bytes(json.dumps(message).encode())

    try:
        import_ahead()
        if not (at_once or ready):
            send({"kind": "imported"})
            connection.recv_bytes()
        worker = ready or Worker(device)
    except EOFError:  # never needed
        return
    except Exception as error:  # no such device, no driver, a missing library: the host reports it
        send({"kind": "refused", "error": one_line(error)})
        return
    send({"kind": "ready", "name": worker.machine.name, "versions": worker.machine.versions()})
    if at_once:
        worker.warm_up()  # nothing is asked for yet
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        answer = _answer(worker, request, host)
        send(answer)
        if answer.get("leaving"):
            os._exit(0)  # destructors would call into the broken context


def _answer(worker: Worker, request: Mapping[str, Any], host: int) -> dict[str, Any]:
    """The answer to the host; the device is lost where it says that the process is ``leaving``."""
    match request["kind"]:
        case "prepare":
            options = ProtocolOptions.from_dict(request["options"])
            bench = worker.bench(request["workload"], request["problem"], options, request["library_us"])
            others = worker.machine.other_processes(host)
            return {"kind": "prepared", "library_us": bench.library_us, "other_processes": others}
        case "race":
            jobs = [Job.from_dict(job) for job in request["jobs"]]
            return {"kind": "raced", "ratios": worker.race(jobs, request["rounds"], request["pairs"], request["seed"])}
        case "glance":
            groups = [[Job.from_dict(job) for job in jobs] for jobs in request["groups"]]
            glanced = worker.glances(groups, request["rounds"], request["seed"])
            return {"kind": "glanced", **glanced, "leaving": "error" in glanced and not worker.usable()}
        case "list":
            return {"kind": "listed", **worker.listing(request["loader"], request["problem"], request["guesses"])}
        case "name":
            return {"kind": "named", **worker.named(request["loader"], request["problems"])}
        case _:
            return _measured(worker, Job.from_dict(request["job"]))


def _measured(worker: Worker, job: Job) -> dict[str, Any]:
    try:
        measurement = worker.measure(job)
    except ShortageError as error:
        return {"kind": "refused", "error": str(error)}
    leaving = measurement.status not in (Status.OK, Status.PRUNED) and not worker.usable()
    return {"kind": "measured", "measurement": measurement.to_dict(), "leaving": leaving}


def job_request(job: Job) -> dict[str, Any]:
    """The message that asks for a measurement."""
    return {"kind": "measure", "job": asdict(job)}


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[3])
    for folder in sys.argv[4:]:
        find_modules_in(folder)
    serve(Connection(int(sys.argv[1])), sys.argv[2], os.getppid())
