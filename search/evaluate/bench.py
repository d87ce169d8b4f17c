"""Verify and time one kernel on one problem, inside the measuring process.

The code is the same on a GPU and on a CPU (which the tests use); only the clock differs.
"""

import math
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from tilescout.search.evaluate.clusters import max_active_clusters
from tilescout.search.evaluate.measurement import Timing
from tilescout.search.evaluate.protocol import ProtocolOptions, block_launches, input_sets
from tilescout.spaces.problems import Problem
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

Launch = Callable[[Tensors, "torch.Tensor"], None]  # (inputs, output)
Block = Callable[[], float]  # runs a block of launches, gives µs a launch


class WrongResultError(Exception):
    """A kernel's result is not the reference's."""


class Machine(ABC):
    """What the process measures on, and its clock."""

    device: "torch.device"
    l2_bytes: int

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for all launches; raise if one failed."""

    @abstractmethod
    def time_once(self, launch: Callable[[], None]) -> float:
        """Run a launch and return its time in µs."""

    @abstractmethod
    def block(self, launches: list[Callable[[], None]]) -> Block:
        """Prepare launches to be run back to back and timed as one."""

    @abstractmethod
    def max_clusters(self, blocks: int) -> int:
        """How many clusters of `blocks` blocks run at once."""

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """What a reader of the measurements wants to know of this machine's software."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How the device calls itself."""


class CudaMachine(Machine):
    """A GPU; blocks are CUDA graphs between two events."""

    def __init__(self, index: int) -> None:
        import torch

        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        self._properties = torch.cuda.get_device_properties(self.device)
        self.l2_bytes = self._properties.L2_cache_size

    def max_clusters(self, blocks: int) -> int:
        return max_active_clusters(blocks)

    @property
    def name(self) -> str:
        return str(self._properties.name)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.device)

    def _timed(self, run: Callable[[], None]) -> float:
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def time_once(self, launch: Callable[[], None]) -> float:
        return self._timed(launch)

    def block(self, launches: list[Callable[[], None]]) -> Block:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for launch in launches:
                launch()
        return lambda: self._timed(graph.replay) / len(launches)

    def versions(self) -> dict[str, str]:
        import torch

        return {"torch": torch.__version__, "cuda": str(torch.version.cuda), "driver": _driver_version()}


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

    def synchronize(self) -> None:
        pass

    def time_once(self, launch: Callable[[], None]) -> float:
        start = time.perf_counter()
        launch()
        return (time.perf_counter() - start) * 1e6

    def block(self, launches: list[Callable[[], None]]) -> Block:
        def run() -> None:
            for launch in launches:
                launch()

        return lambda: self.time_once(run) / len(launches)

    def max_clusters(self, blocks: int) -> int:
        return 1

    def versions(self) -> dict[str, str]:
        import torch

        return {"torch": torch.__version__}


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.split("\n")[0].strip()


def make_machine(device: str) -> Machine:
    """The machine named ``cpu``, ``cuda`` or ``cuda:N``."""
    import torch

    parsed = torch.device(device)
    return HostMachine() if parsed.type == "cpu" else CudaMachine(parsed.index or 0)


class Bench:
    """A problem set up for measuring: operands, reference, and the library's kernel heated and timed.

    Parameters
    ----------
    machine, workload, problem
        Where, and what.
    options
        The protocol's numbers.
    library_us
        The library's steady time, if it was taken before (a replaced process goes on with the first one's); None takes
        it now.
    """

    def __init__(
        self,
        machine: Machine,
        workload: Workload,
        problem: Problem,
        options: ProtocolOptions,
        library_us: float | None = None,
    ) -> None:
        import torch

        self.machine, self.workload, self.problem, self.options = machine, workload, problem, options
        self.generator = torch.Generator(machine.device)
        self.generator.seed()  # fresh inputs every time; no global random state
        first = workload.inputs(problem, self.generator)
        input_bytes = sum(tensor.nbytes for tensor in first)
        sets = input_sets(input_bytes, machine.l2_bytes, options)
        self.inputs = [first, *(workload.inputs(problem, self.generator) for _ in range(sets - 1))]
        self.output = workload.output(problem, machine.device)
        self.reference = workload.reference(first)
        self._library = self._library_block()
        self.library_us = self._steady_library_us() if library_us is None else library_us

    def _library_block(self) -> Block:
        once = min(self.machine.time_once(lambda: self._run_library(0)) for _ in range(3))
        self.launches = block_launches(once, len(self.inputs), self.options)
        return self._block(self._run_library, self.launches)

    def _run_library(self, turn: int) -> None:
        self.workload.run_library(self.inputs[turn % len(self.inputs)], self.output)

    def _block(self, launch: Callable[[int], None], count: int) -> Block:
        return self.machine.block([lambda turn=turn: launch(turn) for turn in range(count)])  # type: ignore[misc]

    def _steady_library_us(self) -> float:
        spent, block_us = 0.0, 0.0
        while spent < self.options.heating_us:
            block_us = self._library() * self.launches
            spent += block_us
        return median(self._library() for _ in range(self.options.pairs))

    def verify(self, launch: Launch) -> tuple[float, float]:
        """Run a kernel on an edge problem and on the problem, and compare with the reference.

        Returns
        -------
        relative_error, launch_us
            The larger relative Frobenius error, and the time of the launch on the problem.

        Raises
        ------
        WrongResultError
            If a result is wrong; the message has the figures.
        """
        edge = self.workload.edge_problem(self.problem)
        inputs = self.workload.inputs(edge, self.generator)
        output = self.workload.output(edge, self.machine.device)
        error, _ = self._check(launch, edge, inputs, output, self.workload.reference(inputs))
        on_problem, launch_us = self._check(launch, self.problem, self.inputs[0], self.output, self.reference)
        return max(error, on_problem), launch_us

    def _check(
        self, launch: Launch, problem: Problem, inputs: Tensors, output: "torch.Tensor", reference: "torch.Tensor"
    ) -> tuple[float, float]:
        output.fill_(math.nan)  # what the kernel leaves unwritten can't pass
        launch_us = self.machine.time_once(lambda: launch(inputs, output))
        self.machine.synchronize()
        difference = output.float() - reference
        error = float(difference.norm() / reference.norm())
        # Rounding the result is the largest error a right kernel makes: at most the unit roundoff an element (the rest
        # is fp32's), so less than that in the norm. Written so that NaN fails.
        limit = problem.element.unit_roundoff
        if not error <= limit:
            raise WrongResultError(f"relative error {error:.3g} on {problem}, at most {limit:.3g} is rounding")
        largest = float(difference.abs().max() / reference.abs().max())
        if not largest <= 2 * limit:
            raise WrongResultError(
                f"an element of {problem} is off by {largest:.3g} of the largest, at most {2 * limit:.3g} is rounding"
            )
        return error, launch_us

    def time(self, launch: Launch, pilot_us: float) -> Timing:
        """Time a kernel in turns with the library; `pilot_us` is the time of its last launch."""
        sets = len(self.inputs)
        pairs, count = self.options.pairs, self.launches
        if pilot_us >= self.options.slow * self.library_us:
            pairs, count = self.options.slow_pairs, block_launches(pilot_us, sets, self.options)
        kernel = self._block(lambda turn: launch(self.inputs[turn % sets], self.output), count)
        kernel(), self._library()  # the first replay of a graph uploads it
        ratios = [kernel() / self._library() for _ in range(pairs)]
        self.machine.synchronize()
        q25, middle, q75 = quantiles(ratios, n=4, method="inclusive")
        return Timing(middle, q25, q75, self.library_us, pairs)


def describe(machine: Machine) -> dict[str, Any]:
    """What the measuring process tells of itself when it is ready."""
    return {"name": machine.name, "versions": machine.versions()}
