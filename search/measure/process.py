"""The host's side of the measuring process: start it, ask it, kill it, replace it."""

import json
import logging
import math
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build import early
from tilescout.search.build.holding import measuring_session
from tilescout.search.build.standby import Session, StandbyError, can_stand_by
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.worker import Job, job_request
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import DeviceError, SpaceError
from tilescout.spaces.loaders import Listing
from tilescout.spaces.processes import deaf_to_ctrl_c, module_command, module_places, own_folders, safe_environment

_LOG = logging.getLogger(__name__)
_WORKER = "tilescout.search.measure.worker"

_LAST_BYTES = 1 << 16  # of what was printed, in which its last line is looked for
_START_SECONDS = 120.0  # imports of torch, 3 s where files are warm, and the CUDA context, 0.1 s


class WorkerLostError(Exception):
    """The process died or had to be killed.

    Attributes
    ----------
    measurement
        The failed measurement of the kernel.
    by_others
        Whether somebody else killed it, such as the system when memory ran out, which says nothing of the kernel.
    """

    def __init__(self, measurement: Measurement, by_others: bool = False) -> None:
        super().__init__(measurement.error)
        self.measurement, self.by_others = measurement, by_others


class _Child:
    """A worker process, the connection to it, and what it and the kernels in it print."""

    process: subprocess.Popen[bytes] | Session
    connection: Connection

    def __init__(self, device: str, standby: bool) -> None:
        if standby and (begun := early.taken(device)) is not None:
            self.process, self.log = begun
            self.connection = self.process.connection
            return
        try:
            self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
            self._start(device, standby)
        except OSError as error:  # no room, no memory, or too many processes or open files
            raise DeviceError(f"can't start a measuring process on {device}: {error.strerror}") from error

    def _start(self, device: str, standby: bool) -> None:
        if standby:
            try:
                self.process = measuring_session(device, self.log.fileno())
            except StandbyError as error:
                _LOG.warning("%s: starting a measuring process anew", error)
            else:
                self.connection = self.process.connection
                return
        ours, theirs = socket.socketpair()
        with theirs, deaf_to_ctrl_c():
            self.process = subprocess.Popen(
                # A workload of your own is found there where its template was found here.
                module_command(_WORKER, str(theirs.fileno()), device, json.dumps(module_places()), *own_folders()),
                pass_fds=[theirs.fileno()],
                env=safe_environment(),
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=subprocess.STDOUT,
            )
        self.connection = Connection(ours.detach())

    def last_line(self) -> str:
        """The last thing that was printed, of which there may be gigabytes."""
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = self.log.read().decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()
        self.log.close()


class MeasuringProcess(Closing):
    """A process that measures on one device, replaced whenever a kernel takes it down.

    A spare one stands by that has imported all that takes long, so that replacing takes a fraction of a second. It has
    no CUDA context: a context takes 0.1 s to make and 0.5 GB of the GPU's memory to have. A short search needs none,
    and has better use for the core that would import.

    Parameters
    ----------
    device
        ``cuda``, ``cuda:N`` or ``cpu``.
    timeout
        Seconds a kernel may take to be verified and timed before the process is killed.
    spare_after
        Seconds for which the process is asked before a spare one is started.
    standby
        Have it forked, where that can be, from a process that has imported all already, and stands by after this one
        ended. Then none is spare: each takes as short to start.

    Raises
    ------
    DeviceError
        When it is needed and the device can't be used, or no process can be started.
    """

    def __init__(self, device: str, timeout: float, spare_after: float = 10.0, standby: bool = False) -> None:
        self.device, self.timeout, self._spare_after = device, timeout, spare_after
        self._standby = standby and can_stand_by()
        self.starts = 0
        self._interrupted = False
        self._child: _Child | None = None
        self._spare: _Child | None = None
        self._spare_due = math.inf
        self._described: dict[str, Any] = {}

    def describe(self) -> dict[str, Any]:
        """Name of the device and versions of its software, as the process reports them."""
        self._ensure()
        return self._described

    def prepare(self, workload: str, problem: str, options: ProtocolOptions) -> float:
        """Set a problem up and return the library's steady time in µs."""
        request = {"kind": "prepare", "workload": workload, "problem": problem, "library_us": None}
        try:
            answer = self._ask({**request, "options": asdict(options)})
        except WorkerLostError as lost:
            raise DeviceError(f"can't set {problem} up on {self.device}: {lost}") from lost
        if answer["other_processes"]:
            _LOG.warning("%d other processes use %s: times will spread", answer["other_processes"], self.device)
        return float(answer["library_us"])

    def race(self, jobs: Sequence[Job], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Measure kernels that were measured before in interleaved rounds.

        Returns
        -------
        array
            Ratios to the library, of shape [rounds, jobs].

        Raises
        ------
        WorkerLostError
            If the process died or hung.
        """
        request = {
            "kind": "race",
            "jobs": [asdict(job) for job in jobs],
            "rounds": rounds,
            "pairs": pairs,
            "seed": seed,
        }
        return np.array(self._ask(request)["ratios"])

    def glances(
        self, groups: Sequence[Sequence[Job]], rounds: int, seed: int
    ) -> list[tuple[float, NDArray[np.float64]]]:
        """Time kernels roughly, that were verified on other problems; see `tilescout.search.measure.glance`.

        Parameters
        ----------
        groups
            The kernels of one problem after the other, all of one workload.
        rounds, seed
            Blocks of each, and the seed of their order.

        Returns
        -------
        list
            For each problem the library's time in µs, and ratios to it, of shape [rounds, jobs].

        Raises
        ------
        WorkerLostError
            If the process died or hung, or a launch failed.
        """
        jobs = [[asdict(job) for job in group] for group in groups]
        request = {"kind": "glance", "groups": jobs, "rounds": rounds, "seed": seed}
        answer = self._ask(request)
        if answer["leaving"]:
            self._reap()
        if "error" in answer:
            raise WorkerLostError(Measurement(Status.LAUNCH_ERROR, answer["error"]))
        found = zip(answer["library_us"], answer["ratios"], strict=True)
        return [(float(library_us), np.array(ratios)) for library_us, ratios in found]

    def listing(self, loader: str, problem: str, guesses: int | None) -> Listing:
        """The kernels that a library has for a problem; see `tilescout.spaces.loaders.Loader.listing`.

        Raises
        ------
        SpaceError
            If it has none.
        DeviceError
            If it took the process down.
        """
        request = {"kind": "list", "loader": loader, "problem": problem, "guesses": guesses}
        answer = self._ask_library(request, f"list the library's kernels for {problem}")
        return Listing(**{field.name: answer[field.name] for field in fields(Listing)})

    def named(self, loader: str, problems: Sequence[str]) -> list[Sequence[int | str]]:
        """The kernel that a library runs of its own accord for each problem, by the values of its template's knobs.

        Raises
        ------
        SpaceError
            If it has none for one of them.
        DeviceError
            If it took the process down.
        """
        request = {"kind": "name", "loader": loader, "problems": list(problems)}
        return list(self._ask_library(request, "ask for the library's kernels")["rows"])

    def _ask_library(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        try:
            answer = self._ask(request)
        except WorkerLostError as lost:
            raise DeviceError(f"can't {what} on {self.device}: {lost}") from lost
        if "error" in answer:
            raise SpaceError(answer["error"])
        return answer

    def measure(self, job: Job) -> Measurement:
        """Measure a kernel; a crash or hang is its measurement.

        Where others kill the process it is measured again, once.

        Raises
        ------
        DeviceError
            If no process can be started, or a kernel can't be loaded for want of room or memory.
        """
        self._ensure()  # replacing a process that another kernel took down is not this one's cost
        start = time.perf_counter()
        try:
            try:
                answer = self._ask(job_request(job))
            except WorkerLostError as lost:
                if not lost.by_others or self._interrupted:
                    raise
                _LOG.warning("%s on %s: measuring once more", lost, self.device)
                answer = self._ask(job_request(job))
        except WorkerLostError as lost:
            seconds = time.perf_counter() - start
            return Measurement(lost.measurement.status, lost.measurement.error, gpu_seconds=seconds)
        if answer["kind"] == "refused":
            raise DeviceError(f"can't measure on {self.device}: {answer['error']}")
        if answer["leaving"]:
            self._reap()
        return Measurement.from_dict(answer["measurement"])

    def interrupt(self) -> None:
        """Kill the process from another thread than the one that waits for it, which then reports a crash.

        No other is started: what is asked for from then on raises `DeviceError`.
        """
        self._interrupted = True
        if (child := self._child) is not None:
            child.process.kill()

    def close(self) -> None:
        """Kill the process, and the spare one."""
        self._reap()
        if self._spare is not None:
            self._spare.end()
            self._spare = None

    def _ensure(self) -> _Child:
        if self._child is not None and self._child.process.poll() is not None:  # while it had nothing to do
            self._reap()
        if self._child is not None:
            self._stand_by()
            return self._child
        if self._interrupted:
            raise DeviceError(f"measuring on {self.device} was interrupted")
        if self._spare is not None and self._spare.process.poll() is not None:
            self._spare.end()
            self._spare = None
        self._child, self._spare = self._spare or _Child(self.device, self._standby), None
        self.starts += 1
        if self._interrupted:  # while it was being started, so that it was not there to be killed
            self._reap()
            raise DeviceError(f"measuring on {self.device} was interrupted")
        try:
            answer = self._receive(_START_SECONDS)
            if answer["kind"] == "imported":
                answer = self._exchange(self._child, {"kind": "start"}, _START_SECONDS)
        except WorkerLostError as lost:
            if self._standby:  # what stood by was killed, or could not get ready
                self._standby = False
                _LOG.warning("no measuring process stands by (%s): starting one anew", lost)
                return self._ensure()
            raise DeviceError(f"the measuring process on {self.device} did not start: {lost}") from lost
        if answer["kind"] == "refused":
            self._reap()
            raise DeviceError(f"can't measure on {self.device}: {answer['error']}")
        if not self._described:
            self._described, self._spare_due = answer, time.monotonic() + self._spare_after
        self._stand_by()
        return self._child

    def _stand_by(self) -> None:
        """Start the spare process when it is due, or at once if one was needed before."""
        if not self._standby and self._spare is None and (self.starts > 1 or time.monotonic() >= self._spare_due):
            with suppress(DeviceError):  # the one that measures is there
                self._spare = _Child(self.device, False)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._exchange(self._ensure(), request, self.timeout)

    def _exchange(self, child: _Child, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        try:
            child.connection.send_bytes(json.dumps(request).encode())
        except OSError as error:
            raise self._lost() from error
        return self._receive(timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self._child is not None
        if not self._child.connection.poll(timeout):
            self._reap()
            raise WorkerLostError(Measurement(Status.TIMEOUT, f"not done after {timeout:g} s, killed"))
        try:
            answer: dict[str, Any] = json.loads(self._child.connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return answer

    def _lost(self) -> WorkerLostError:
        assert self._child is not None
        code = self._child.process.wait()
        named = {each.value: each.name for each in signal.Signals}  # not those in the middle of the real-time ones
        how = f"signal {named.get(-code, -code)}" if code < 0 else f"exit code {code}"
        printed = self._child.last_line()
        self._reap()
        detail = f"; it printed: {printed}" if printed else ""
        crash = Measurement(Status.CRASH, f"the measuring process died of {how}{detail}")
        return WorkerLostError(crash, by_others=code == -signal.SIGKILL)

    def _reap(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
