"""Verify and time kernels on one problem, inside the measuring process.

The code is the same on a GPU and on a CPU (which the tests use); only the machine differs.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilescout.search.evaluate.interval import median_interval
from tilescout.search.evaluate.machine import Block, Machine
from tilescout.search.evaluate.measurement import Timing
from tilescout.search.evaluate.protocol import ProtocolOptions, block_launches, input_sets, is_settled
from tilescout.search.evaluate.runtime import Launch
from tilescout.spaces.problems import Problem
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

_GUARD = 32 * 1024  # elements of guard band on either side of an output: 64 KiB, a row of a large tile and more
_GUARD_PATTERN = 0x5A5A
_STRETCHES = 10  # of heating at most
_SETTLED = 0.005  # relative difference of two stretches


class WrongResultError(Exception):
    """A kernel's result is not the reference's, or differs between runs, or it wrote where it must not."""


@dataclass(frozen=True)
class Case:
    """A problem with inputs, the right result, and an output between guard bands."""

    problem: Problem
    inputs: Tensors
    reference: "torch.Tensor"
    buffer: "torch.Tensor"
    output: "torch.Tensor"

    @classmethod
    def draw(cls, workload: Workload, problem: Problem, generator: "torch.Generator") -> "Case":
        """A case with fresh random inputs."""
        import torch

        inputs = workload.inputs(problem, generator)
        shape = workload.output(problem, generator.device)
        buffer = torch.empty(shape.numel() + 2 * _GUARD, dtype=shape.dtype, device=shape.device)
        output = buffer[_GUARD:-_GUARD].view(shape.shape)
        return cls(problem, inputs, workload.reference(inputs), buffer, output)

    def run(self, machine: Machine, launch: Launch, poison: float) -> float:
        """Launch over an output full of `poison`, between fresh guard bands; return the time in µs."""
        for band in self._bands():
            band.fill_(_GUARD_PATTERN)
        self.output.fill_(poison)
        (launch_us,) = machine.times_us([Block(lambda: launch(self.inputs, self.output))])
        machine.synchronize()
        return launch_us

    def check(self) -> float:
        """The relative Frobenius error of the output.

        Raises
        ------
        WrongResultError
            If the result is wrong or the guard bands were written.
        """
        import torch

        difference = self.output.float() - self.reference
        norm = difference.norm() / self.reference.norm()
        maximum = difference.abs().max() / self.reference.abs().max()
        error, largest, trespassed = torch.stack(
            [norm, maximum, self._trespassed().float()]
        ).tolist()  # one wait for the GPU
        if trespassed:
            raise WrongResultError(f"it wrote outside its output on {self.problem}")
        # Rounding the result is the largest error a right kernel makes: at most the unit roundoff an element (the rest
        # is fp32's), so less than that in the norm. Written so that NaN fails.
        limit = self.problem.element.unit_roundoff
        if not error <= limit:
            raise WrongResultError(f"relative error {error:.3g} on {self.problem}, at most {limit:.3g} is rounding")
        if not largest <= 2 * limit:
            raise WrongResultError(
                f"an element of {self.problem} is off by {largest:.3g} of the largest, "
                f"at most {2 * limit:.3g} is rounding"
            )
        return float(error)

    def check_bands(self) -> None:
        """Refuse a kernel that has written outside its output since the last `run` began.

        Raises
        ------
        WrongResultError
            If the guard bands were written.
        """
        if bool(self._trespassed()):
            raise WrongResultError(f"it wrote outside its output on {self.problem}")

    def _trespassed(self) -> "torch.Tensor":
        before, behind = self._bands()
        return (before != _GUARD_PATTERN).any() | (behind != _GUARD_PATTERN).any()

    def _bands(self) -> "tuple[torch.Tensor, torch.Tensor]":
        import torch

        words = self.buffer.view(torch.int16)
        return words[:_GUARD], words[-_GUARD:]


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

    Attributes
    ----------
    library_us
        The library's steady time, in µs.
    launches
        Launches in a block, of the library and of every kernel.
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
        self._generator = torch.Generator(machine.device)
        self._generator.seed()  # fresh inputs every time; no global random state
        self._case = Case.draw(workload, problem, self._generator)
        input_bytes = sum(tensor.nbytes for tensor in self._case.inputs)
        more = input_sets(input_bytes, machine.l2_bytes, options) - 1
        self._inputs = [self._case.inputs, *(workload.inputs(problem, self._generator) for _ in range(more))]
        # The pilot of a kernel is compared with the library's launches of the same kind, after the same steps.
        self._library_pilot_us = median(
            self._case.run(machine, workload.run_library, math.nan) for _ in range(self.options.batch)
        )
        self.launches = block_launches(self._library_pilot_us, len(self._inputs), options)
        self._library = self.make_block(workload.run_library)
        self.library_us = self._steady_library_us() if library_us is None else library_us

    def make_block(self, launch: Launch) -> Block:
        """`launches` launches of a kernel over the inputs in turn, to be timed as one."""

        def turn(number: int) -> Callable[[], None]:
            inputs = self._inputs[number % len(self._inputs)]
            return lambda: launch(inputs, self._case.output)

        if self.launches > 1:
            return self.machine.block([turn(number) for number in range(self.launches)])
        turns = itertools.count()  # single launches rotate from block to block
        return Block(lambda: turn(next(turns))())

    def _steady_library_us(self) -> float:
        count = max(3, math.ceil(self.options.heating_us / (self._library_pilot_us * self.launches)))
        before = math.inf
        for _ in range(_STRETCHES):
            now = median(self.machine.times_us([self._library] * count)) / self.launches
            if abs(now / before - 1) < _SETTLED:
                break
            before = now
        return now

    def verify_edge(self, launch: Launch) -> float:
        """Run a kernel twice on a problem that no tile divides; return the relative error.

        The two runs start from different rubbish in the output and must agree to the bit.

        Raises
        ------
        WrongResultError
            If a result is wrong, the two differ, or memory outside the output was written.
        """
        import torch

        case = Case.draw(self.workload, self.workload.edge_problem(self.problem), self._generator)
        case.run(self.machine, launch, math.nan)
        error = case.check()
        first = case.output.clone()
        case.run(self.machine, launch, 1.0)
        case.check()
        if not torch.equal(first, case.output):
            raise WrongResultError(f"two runs on the same inputs differ on {case.problem}")
        return error

    def verify(self, launch: Launch) -> tuple[float, float]:
        """Run a kernel once on the problem.

        Returns
        -------
        relative_error, pilot_ratio
            The relative Frobenius error, and the time of this launch divided by that of such a launch of the library.

        Raises
        ------
        WrongResultError
            If the result is wrong or memory outside the output was written.
        """
        launch_us = self._case.run(self.machine, launch, math.nan)
        return self._case.check(), launch_us / self._library_pilot_us

    def time(self, launch: Launch, incumbent: float | None) -> Timing:
        """Time a kernel in turns with the library, for as long as the decision needs.

        Parameters
        ----------
        launch
            The kernel; it has run before.
        incumbent
            The best known ratio, if there is one.

        Raises
        ------
        WrongResultError
            If one of the launches wrote outside the output.
        """
        kernel = self.make_block(launch)
        self.machine.times_us([kernel, self._library])  # the first replay of a graph uploads it
        ratios: list[float] = []
        while not ratios or not is_settled(ratios, incumbent, self.options):
            ratios += self._pairs(kernel, self.options.batch if ratios else self.options.first)
        self._case.check_bands()
        middle, low, high = median_interval(ratios)
        q25, _, q75 = quantiles(ratios, n=4, method="inclusive")
        return Timing(middle, q25, q75, low, high, self.library_us, len(ratios))

    def _pairs(self, kernel: Block, count: int) -> list[float]:
        """Times of the kernel over the mean of the library's just before and just after it."""
        times = self.machine.times_us([self._library, *[kernel, self._library] * count])
        return [times[at] / ((times[at - 1] + times[at + 1]) / 2) for at in range(1, len(times), 2)]

    def race(self, launches: Sequence[Launch], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Measure several kernels in rounds, in a new random order each.

        Parameters
        ----------
        launches
            The kernels.
        rounds, pairs
            Rounds, and pairs of a kernel and the library in each.
        seed
            Of the order.

        Returns
        -------
        array
            Median ratio of each kernel in each round, of shape [rounds, kernels].
        """
        generator = np.random.default_rng(seed)
        blocks = [self.make_block(launch) for launch in launches]
        self.machine.times_us([*blocks, self._library])
        ratios = np.empty((rounds, len(blocks)))
        for row in ratios:
            for kernel in generator.permutation(len(blocks)):
                row[kernel] = median(self._pairs(blocks[kernel], pairs))
        return ratios
