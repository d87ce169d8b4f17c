"""What measurements are made on, and its clock: a GPU, or the CPU for the tests."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilescout.search.evaluate.clocks import ClockSampler
from tilescout.search.evaluate.clusters import max_active_clusters
from tilescout.search.evaluate.measurement import Clocks

if TYPE_CHECKING:
    import torch


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
        """How the device calls itself."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """What a reader of the measurements wants to know of this machine's software."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all launches; raise if one failed."""

    @abstractmethod
    def block(self, launches: Sequence[Callable[[], None]]) -> Block:
        """Join launches to be run back to back."""

    @abstractmethod
    def start(self, block: Block) -> Callable[[], float]:
        """Run a block; what comes back tells its time in µs once the machine is synchronised."""

    @abstractmethod
    def times_us(self, blocks: Sequence[Block]) -> list[float]:
        """Run blocks one right after the other and return the time of each, in µs."""

    @abstractmethod
    def max_clusters(self, blocks: int) -> int:
        """How many clusters of `blocks` blocks run at once."""

    @abstractmethod
    def clocks(self) -> Clocks | None:
        """The state of the clocks; None where nothing tells."""

    @abstractmethod
    def other_processes(self) -> int:
        """How many other processes compute on the device."""


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
        self._sampler = ClockSampler.of(str(self._properties.uuid))
        self._capturing = torch.cuda.Stream(self.device)
        self._generator = np.random.default_rng()
        self._scratch = torch.empty(_DISTURBANCE, device=self.device)

    @property
    def name(self) -> str:
        return str(self._properties.name)

    def versions(self) -> dict[str, str]:
        import torch

        return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "driver": _driver_version()}

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.device)

    def block(self, launches: Sequence[Callable[[], None]]) -> Block:
        import torch

        if len(launches) == 1:
            return Block(launches[0])
        start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which empties torch's cache: each allocation after it then takes 1 ms.
        with torch.cuda.stream(self._capturing):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                start.record()
                for launch in launches:
                    launch()
                end.record()
            finally:
                graph.capture_end()
        return Block(graph.replay, (start, end))

    def start(self, block: Block) -> Callable[[], float]:
        import torch

        if block.events is not None:
            block.run()
            start, end = block.events
        else:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            block.run()
            end.record()
        return lambda: float(start.elapsed_time(end)) * 1e3

    def times_us(self, blocks: Sequence[Block]) -> list[float]:
        import torch

        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in blocks]
        for block, (start, end) in zip(blocks, events, strict=True):
            if block.events is not None:
                # A short kernel can be in one of two states some percent apart, and stays in it while the same launches
                # follow one another: before each block something else runs, on a random share of the SMs.
                self._scratch[: int(self._generator.integers(1, _DISTURBANCE))].zero_()
            start.record()
            block.run()
            end.record()
        torch.cuda.synchronize(self.device)
        return [float(start.elapsed_time(end)) * 1e3 for start, end in events]

    def max_clusters(self, blocks: int) -> int:
        return max_active_clusters(blocks, self.device.index)

    def clocks(self) -> Clocks | None:
        return self._sampler.sample() if self._sampler is not None else None

    def other_processes(self) -> int:
        return self._sampler.other_processes() if self._sampler is not None else 0


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

    def block(self, launches: Sequence[Callable[[], None]]) -> Block:
        def run() -> None:
            for launch in launches:
                launch()

        return Block(run)

    def start(self, block: Block) -> Callable[[], float]:
        before = time.perf_counter()
        block.run()
        time_us = (time.perf_counter() - before) * 1e6
        return lambda: time_us

    def times_us(self, blocks: Sequence[Block]) -> list[float]:
        return [self.start(block)() for block in blocks]

    def max_clusters(self, blocks: int) -> int:
        return 1

    def clocks(self) -> Clocks | None:
        return None

    def other_processes(self) -> int:
        return 0


def make_machine(device: str) -> Machine:
    """The machine named ``cpu``, ``cuda`` or ``cuda:N``."""
    import torch

    parsed = torch.device(device)
    return HostMachine() if parsed.type == "cpu" else CudaMachine(parsed.index or 0)


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.split("\n")[0].strip()
