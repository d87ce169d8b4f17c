"""What measurements are made on, and its clock: a GPU, or the CPU for the tests."""

import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

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
        Events that the launches themselves record before the first and after the last; without them the clock is read
        around `run`.
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


class CudaMachine(Machine):
    """A GPU, timed by events.

    A block of several launches is a CUDA graph that records its events itself, so that the latency of starting the
    graph (some µs, and never the same) is not in the time.
    """

    def __init__(self, index: int) -> None:
        import torch

        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        self._properties = torch.cuda.get_device_properties(self.device)
        self.l2_bytes = self._properties.L2_cache_size
        self._sampler = ClockSampler.of(str(self._properties.uuid))

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
        with torch.cuda.graph(graph):
            start.record()
            for launch in launches:
                launch()
            end.record()
        return Block(graph.replay, (start, end))

    def times_us(self, blocks: Sequence[Block]) -> list[float]:
        times: list[float] = []
        for own, group in groupby(blocks, key=lambda block: block.events is not None):
            measure = self._times_by_own_events if own else self._times_back_to_back
            times += measure(list(group))
        return times

    def _times_by_own_events(self, blocks: Sequence[Block]) -> list[float]:
        times = []
        for block in blocks:
            assert block.events is not None
            start, end = block.events
            block.run()
            end.synchronize()  # the next run of the block overwrites the events
            times.append(float(start.elapsed_time(end)) * 1e3)
        return times

    def _times_back_to_back(self, blocks: Sequence[Block]) -> list[float]:
        import torch

        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(blocks) + 1)]
        events[0].record()
        for block, event in zip(blocks, events[1:], strict=True):
            block.run()
            event.record()
        events[-1].synchronize()
        return [float(start.elapsed_time(end)) * 1e3 for start, end in pairwise(events)]

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

    def times_us(self, blocks: Sequence[Block]) -> list[float]:
        times = []
        for block in blocks:
            start = time.perf_counter()
            block.run()
            times.append((time.perf_counter() - start) * 1e6)
        return times

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
