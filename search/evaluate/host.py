"""The host's side of the measuring process: start it, ask it, kill it, replace it."""

import json
import logging
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.evaluate.closing import Closing
from tilescout.search.evaluate.measurement import Measurement, Status
from tilescout.search.evaluate.protocol import ProtocolOptions
from tilescout.search.evaluate.worker import Job, job_request
from tilescout.spaces.errors import DeviceError

_LOG = logging.getLogger(__name__)
_START_SECONDS = 120.0  # imports of torch and the first CUDA context; 4 s where files are warm


class WorkerLostError(Exception):
    """The process died or had to be killed; `measurement` is what that makes of the kernel."""

    def __init__(self, measurement: Measurement) -> None:
        super().__init__(measurement.error)
        self.measurement = measurement


class MeasuringProcess(Closing):
    """A process that measures on one device, replaced whenever a kernel takes it down.

    Parameters
    ----------
    device
        ``cuda``, ``cuda:N`` or ``cpu``.
    timeout
        Seconds a kernel may take to be verified and timed before the process is killed.

    Raises
    ------
    DeviceError
        When it is first needed and the device can't be used.
    """

    def __init__(self, device: str, timeout: float) -> None:
        self.device, self.timeout = device, timeout
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the object; what kernels and libraries print
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

    def measure(self, job: Job) -> Measurement:
        """Measure a kernel; a crash or hang is its measurement."""
        self._ensure()  # replacing a process that another kernel took down is not this one's cost
        start = time.perf_counter()
        try:
            answer = self._ask(job_request(job))
        except WorkerLostError as lost:
            seconds = time.perf_counter() - start
            return Measurement(lost.measurement.status, lost.measurement.error, gpu_seconds=seconds)
        if answer["leaving"]:
            self._reap()
        return Measurement.from_dict(answer["measurement"])

    def interrupt(self) -> None:
        """Kill the process from another thread than the one that waits for it, which then reports a crash."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """Kill the process."""
        self._reap()
        self._log.close()

    def _ensure(self) -> Connection:
        if self._connection is not None:
            return self._connection
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tilescout.search.evaluate.worker", str(theirs.fileno()), self.device]
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        self.starts += 1
        self._connection = Connection(ours.detach())
        try:
            answer = self._receive(_START_SECONDS)
        except WorkerLostError as lost:
            raise DeviceError(f"the measuring process on {self.device} did not start: {lost}") from lost
        if answer["kind"] == "refused":
            self._reap()
            raise DeviceError(f"can't measure on {self.device}: {answer['error']}")
        self._described = answer
        return self._connection

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        connection = self._ensure()
        try:
            connection.send_bytes(json.dumps(request).encode())
        except OSError as error:
            raise self._lost() from error
        return self._receive(self.timeout)

    def _receive(self, timeout: float) -> dict[str, Any]:
        assert self._connection is not None
        if not self._connection.poll(timeout):
            self._reap()
            raise WorkerLostError(Measurement(Status.TIMEOUT, f"not done after {timeout:g} s, killed"))
        try:
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return answer

    def _lost(self) -> WorkerLostError:
        assert self._process is not None
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        printed = self._last_line()
        self._reap()
        detail = f"; it printed: {printed}" if printed else ""
        return WorkerLostError(Measurement(Status.CRASH, f"the measuring process died of {how}{detail}"))

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def _reap(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._log.seek(0)
            self._log.truncate()
