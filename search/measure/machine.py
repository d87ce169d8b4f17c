"""The devices that measurements are made on: a GPU, or the CPU for the tests."""

import math
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilescout.search.build.clusters import max_active_clusters
from tilescout.search.measure.clocks import UNREAD, ClockSampler, NoClocksError
from tilescout.search.measure.measurement import Clocks
from tilescout.spaces.cublaslt.abi import loaded_library, version_of
from tilescout.spaces.errors import DeviceError

if TYPE_CHECKING:
    import torch
    from torch.cuda import _POOL_HANDLE


@dataclass(frozen=True)
class Block:
    """One or more launches that are timed as one.

    Attributes
    ----------
    run
        Starts the launches.
    events
        Events that the launches themselves record before the first and after the last.
    """

    run: Callable[[], None]
    events: "tuple[torch.cuda.Event, torch.cuda.Event] | None" = None


@dataclass(frozen=True)
class Recording:
    """Operations of a step that were recorded; calling it repeats them.

    Attributes
    ----------
    repeat
        Starts them.
    step
        The step. It is kept for its tensors: of these a CUDA graph has the addresses alone, and memory that nobody
        holds any more is given to others, over which the graph then writes.
    """

    repeat: Callable[[], None]
    step: Callable[[], None]

    def __call__(self) -> None:
        """Start the operations."""
        self.repeat()


@dataclass(frozen=True)
class Queued:
    """Blocks that were queued one after another.

    Attributes
    ----------
    times_us
        To be called once the machine is synchronised: it returns the time of each in µs. The time is NaN if the device
        reached the block before all of it was queued, since it then includes a wait for the host.
    host_us
        How long the host took to queue them, in µs.
    """

    times_us: Callable[[], list[float]]
    host_us: float


class SlowHostError(Exception):
    """The host could not queue launches ahead of the device, so that every time would include waits for the host."""


class Machine(ABC):
    """A device that launches and times kernels.

    Attributes
    ----------
    device
        As torch calls it.
    l2_bytes
        Bytes of its last cache.
    """

    device: "torch.device"
    l2_bytes: int

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that the driver gives the device."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions of the software that a reader of the measurements needs to know: torch, CUDA, the driver."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all launches; raise if one failed."""

    @property
    @abstractmethod
    def used(self) -> float:
        """The share of its memory that is in use, by whatever process."""

    @property
    @abstractmethod
    def is_shared(self) -> bool:
        """Whether it is known that several processes may use the device at a time."""

    @abstractmethod
    def release(self) -> None:
        """Give memory that is no longer used back to the device."""

    @abstractmethod
    def block(self, parts: Sequence[Sequence[Callable[[], None]]], turn: Callable[[], int] = lambda: 0) -> Block:
        """Join launches to be run back to back.

        Parameters
        ----------
        parts
            The launches. Of several parts one is run at a time.
        turn
            Called when the block is run: which part it is, modulo their number.
        """

    @abstractmethod
    def start(self, block: Block) -> Callable[[], float]:
        """Run a block of joined launches; return what gives its time in µs once the machine is synchronised."""

    @abstractmethod
    def queue(self, blocks: Sequence[Block], delay_us: float = 0.0, late: float = 0.0) -> Queued:
        """Keep the device busy for about `delay_us`, and queue blocks behind that.

        A block that may have waited for the host counts nevertheless if the wait is at most the share `late` of its
        time.
        """

    @abstractmethod
    def record(self, steps: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        """Run steps once, and return for each a function that repeats it: the same operations on the same tensors.

        The function keeps the step, and so the tensors that it holds. Temporary tensors of a step are its own until it
        ends; the steps share the memory for them.
        """

    def times_us(
        self,
        blocks: Sequence[Block],
        skip: int = 1,
        lost: float = 0.0,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> list[float]:
        """Run blocks one right after the other and return the times of those after the first `skip`, in µs.

        While the first is queued the device waits for the host. If it waits in one that counts, all are run again,
        behind a delay that lets the host get ahead; a share `lost` of the times may be missing (NaN).

        Parameters
        ----------
        blocks, skip, lost
            See above.
        meanwhile
            Called once all are queued, while the device is at work.

        Raises
        ------
        SlowHostError
            If no delay is long enough.
        """
        delay_us = 0.0
        for _ in range(_ATTEMPTS):
            queued = self.queue(blocks, delay_us)
            meanwhile()
            self.synchronize()
            times = queued.times_us()[skip:]
            if sum(map(math.isnan, times)) <= lost * len(times):
                return times
            delay_us = max(2 * delay_us, _LEAST_DELAY_US, queued.host_us)
        raise SlowHostError(f"the host was slower than the device, also {delay_us / 2e3:.0f} ms ahead of it")

    @abstractmethod
    def max_clusters(self, blocks: int) -> int:
        """How many clusters of `blocks` blocks run at once."""

    @abstractmethod
    def clocks(self) -> Clocks | None:
        """The state of the clocks; None where it can't be read."""

    @abstractmethod
    def other_processes(self, host: int) -> int:
        """How many processes compute on the device but this one and that of the number `host`, which waits for it."""


_ATTEMPTS = 8
_LEAST_DELAY_US = 200.0
_CYCLES_PER_US = 2000  # of the fastest clocks; a delay on a slower one is longer
_DISTURBANCE = 128 * 1024  # elements at most; a thread block fills about a thousand


class CudaMachine(Machine):
    """A GPU, timed by events.

    A block of several launches is a CUDA graph. Where one is timed alone it records its events itself, so that the
    latency of starting the graph (some µs, and never the same) is not in the time; where blocks follow one another they
    are queued ahead, and the device comes from one to the next without a pause.
    """

    def __init__(self, index: int) -> None:
        import torch

        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        self._properties = torch.cuda.get_device_properties(self.device)
        self.l2_bytes = self._properties.L2_cache_size
        self._sampler: ClockSampler | None = None
        try:
            self._sampler = ClockSampler.of(str(self._properties.uuid))
            self._nvml = self._sampler.version
        except NoClocksError as error:  # measuring goes on, and its result says so
            self._nvml = f"{UNREAD}: {error}"
        self._capturing = torch.cuda.Stream(self.device)
        self._generator = np.random.default_rng()
        self._scratch = torch.empty(_DISTURBANCE, device=self.device)

    @property
    def name(self) -> str:
        return str(self._properties.name)

    def versions(self) -> dict[str, str]:
        import torch

        driver = (
            self._sampler.driver if self._sampler is not None else _driver_version()
        )  # nvidia-smi is a process of its own
        versions = {"torch": torch.__version__, "cuda": str(torch.version.cuda), "driver": driver}
        return {**versions, "cublaslt": _cublaslt_version(), "nvml": self._nvml}

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.device)

    @property
    def used(self) -> float:
        import torch

        free, total = torch.cuda.mem_get_info(self.device)
        return 1 - free / total

    @property
    def is_shared(self) -> bool:
        return self._sampler is not None and self._sampler.is_shared()

    def release(self) -> None:
        import torch

        torch.cuda.empty_cache()  # what recorded steps had for themselves is given to no others before

    def block(self, parts: Sequence[Sequence[Callable[[], None]]], turn: Callable[[], int] = lambda: 0) -> Block:
        import torch

        if all(len(launches) == 1 for launches in parts):
            return Block(_in_turn([launches[0] for launches in parts], turn))
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))

        def timed(launches: Sequence[Callable[[], None]]) -> None:
            start.record()
            for launch in launches:
                launch()
            end.record()

        # Every part's graph records the same two events: they tell of the one that ran last.
        return Block(_in_turn([self._capture(partial(timed, launches)) for launches in parts], turn), (start, end))

    def record(self, steps: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        import torch

        for step in steps:  # what an operation sets up when it first runs is not to be captured
            step()
        self.synchronize()
        pool = torch.cuda.graph_pool_handle()
        return [self._capture(step, pool) for step in steps]

    def _capture(self, step: Callable[[], None], pool: "_POOL_HANDLE | None" = None) -> Recording:
        import torch

        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which empties torch's cache: each allocation after it then takes 1 ms.
        with torch.cuda.stream(self._capturing):
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                step()
            finally:
                graph.capture_end()
        return Recording(graph.replay, step)

    def start(self, block: Block) -> Callable[[], float]:
        assert block.events is not None
        block.run()
        start, end = block.events
        return lambda: _us(start, end)

    def queue(self, blocks: Sequence[Block], delay_us: float = 0.0, late: float = 0.0) -> Queued:
        import torch

        begin = torch.cuda.Event(enable_timing=True)
        began = time.perf_counter()
        begin.record()
        if delay_us > 0:
            torch.cuda._sleep(round(delay_us * _CYCLES_PER_US))
        queued = []
        for block in blocks:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if block.events is not None:
                # A short kernel can be in one of two states some percent apart, and stays in it while the same launches
                # follow one another: before each block something else runs, on a random share of the SMs.
                self._scratch[: int(self._generator.integers(1, _DISTURBANCE))].zero_()
            called_us = (time.perf_counter() - began) * 1e6
            start.record()
            block.run()
            end.record()
            queued.append((start, end, called_us, (time.perf_counter() - began) * 1e6))

        def times_us() -> list[float]:
            # The device came to `begin` no sooner than the host queued it, so its times since then and the host's are
            # comparable: it began a block when it had come there, and no sooner than the host queued that; until the
            # host was done with it, the device may have waited.
            times = [_us(start, end) for start, end, *_ in queued]
            waited = [done_us - max(called_us, _us(begin, start)) for start, _, called_us, done_us in queued]
            return [
                time_us if wait_us <= late * time_us else math.nan
                for time_us, wait_us in zip(times, waited, strict=True)
            ]

        return Queued(times_us, queued[-1][3])

    def max_clusters(self, blocks: int) -> int:
        return max_active_clusters(blocks, self.device.index)

    def clocks(self) -> Clocks | None:
        return self._sampler.sample() if self._sampler is not None else None

    def other_processes(self, host: int) -> int:
        return self._sampler.other_processes(host) if self._sampler is not None else 0


class HostMachine(Machine):
    """The CPU, timed by the system's clock; the library has one thread, as the kernels have."""

    l2_bytes = 0

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.device = torch.device("cpu")

    @property
    def name(self) -> str:
        return "CPU"

    def versions(self) -> dict[str, str]:
        import torch

        return {"torch": torch.__version__}

    def synchronize(self) -> None:
        pass

    @property
    def used(self) -> float:
        return 0.0

    @property
    def is_shared(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def block(self, parts: Sequence[Sequence[Callable[[], None]]], turn: Callable[[], int] = lambda: 0) -> Block:
        def run(launches: Sequence[Callable[[], None]]) -> None:
            for launch in launches:
                launch()

        return Block(_in_turn([partial(run, launches) for launches in parts], turn))

    def start(self, block: Block) -> Callable[[], float]:
        before = time.perf_counter()
        block.run()
        time_us = (time.perf_counter() - before) * 1e6
        return lambda: time_us

    def queue(self, blocks: Sequence[Block], delay_us: float = 0.0, late: float = 0.0) -> Queued:
        times = [self.start(block)() for block in blocks]
        return Queued(lambda: times, 0.0)

    def record(self, steps: Sequence[Callable[[], None]]) -> list[Callable[[], None]]:
        for step in steps:
            step()
        return list(steps)

    def max_clusters(self, blocks: int) -> int:
        return 1

    def clocks(self) -> Clocks | None:
        return None

    def other_processes(self, host: int) -> int:
        return 0


def _in_turn(parts: Sequence[Callable[[], None]], turn: Callable[[], int]) -> Callable[[], None]:
    """Run one of the parts, whose turn it is."""
    return parts[0] if len(parts) == 1 else lambda: parts[turn() % len(parts)]()


def _us(start: "torch.cuda.Event", end: "torch.cuda.Event") -> float:
    return float(start.elapsed_time(end)) * 1e3


def make_machine(device: str) -> Machine:
    """The machine named ``cpu``, ``cuda`` or ``cuda:N``."""
    import torch

    parsed = torch.device(device)
    return HostMachine() if parsed.type == "cpu" else CudaMachine(parsed.index or 0)


def _cublaslt_version() -> str:
    try:
        return version_of(loaded_library())
    except DeviceError:
        return "unknown"


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.split("\n")[0].strip()
