"""Whether a kernel's results are right: random inputs, a poisoned output between guard bands, an fp32 reference."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tilescout.search.evaluate.machine import Block, Machine
from tilescout.search.evaluate.runtime import Launch
from tilescout.spaces.problems import Problem
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch


_GUARD = 32 * 1024  # elements of guard band on either side of an output: 64 KiB, a row of a large tile and more
_GUARD_PATTERN = 0x5A5A


class WrongResultError(Exception):
    """A kernel's result is not the reference's, or differs between runs, or it wrote where it must not.

    Attributes
    ----------
    relative_error
        The relative Frobenius error of the result, if that is what is wrong.
    """

    def __init__(self, message: str, relative_error: float | None = None) -> None:
        super().__init__(message)
        self.relative_error = relative_error


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
        return cls(problem, inputs, workload.reference(problem, inputs), buffer, output)

    def start(self, machine: Machine, launch: Launch, poison: float) -> Callable[[], float]:
        """Launch over an output full of `poison`, between fresh guard bands; return what tells the time in µs later."""
        self._bands.fill_(_GUARD_PATTERN)
        self.output.fill_(poison)
        return machine.start(Block(lambda: launch(self.inputs, self.output)))

    def findings(self) -> "torch.Tensor":
        """Numbers for `check`, on the device: nothing waits for the launch."""
        import torch

        difference = self.output.float().sub_(self.reference)
        norm = torch.linalg.vector_norm(difference)
        largest = torch.linalg.vector_norm(difference, math.inf)
        return torch.stack([norm, largest, self._trespassed().float()])

    def check(self, norm: float, largest: float, trespassed: float) -> float:
        """Judge the findings; return the relative Frobenius error of the output.

        Raises
        ------
        WrongResultError
            If the result is wrong or the guard bands were written.
        """
        error, largest = norm / self._norms[0], largest / self._norms[1]
        if trespassed:
            raise WrongResultError(f"it wrote outside its output on {self.problem}")
        limit = self.problem.tolerance  # the comparisons are written so that NaN fails
        if not error <= limit:
            raise WrongResultError(
                f"relative error {error:.3g} on {self.problem}, at most {limit:.3g} is rounding",
                error if math.isfinite(error) else None,
            )
        if not largest <= 2 * limit:
            raise WrongResultError(
                f"an element of {self.problem} is off by {largest:.3g} of the largest, "
                f"at most {2 * limit:.3g} is rounding",
                error,
            )
        return error

    def check_bands(self) -> None:
        """Refuse a kernel that has written outside its output since the last `start`.

        Raises
        ------
        WrongResultError
            If the guard bands were written.
        """
        if bool(self._trespassed()):
            raise WrongResultError(f"it wrote outside its output on {self.problem}")

    def _trespassed(self) -> "torch.Tensor":
        return (self._bands != _GUARD_PATTERN).any()

    @cached_property
    def _norms(self) -> tuple[float, float]:
        return float(self.reference.norm()), float(self.reference.abs().max())

    @cached_property
    def _bands(self) -> "torch.Tensor":
        """Both guard bands as one tensor, of shape [2, elements]."""
        import torch

        words = self.buffer.view(torch.int16)
        return words.as_strided((2, _GUARD), (len(words) - _GUARD, 1))


def verify(machine: Machine, launch: Launch, case: Case, edge: Case | None) -> tuple[float, float]:
    """Run a kernel once on a case and, if given, twice on an edge case; wait for the device once.

    The two runs on the edge case start from different rubbish in the output and must agree to the bit.

    Returns
    -------
    relative_error, launch_us
        The largest relative Frobenius error, and the time of the launch on the case.

    Raises
    ------
    WrongResultError
        If a result is wrong, the two differ, or memory outside an output was written.
    """
    import torch

    # A kernel's first launch loads it, which must not be in the time of the launch on the case. What follows that
    # launch is queued while the device is busy with it.
    if edge is not None:
        edge.start(machine, launch, math.nan)
    time_us = case.start(machine, launch, math.nan)
    findings = [case.findings()]
    if edge is not None:
        findings.append(edge.findings())
        first = edge.output.clone()
        edge.start(machine, launch, 1.0)
        findings += [edge.findings(), (first != edge.output).any().float().reshape(1)]
    numbers = torch.cat(findings).tolist()  # the one wait
    machine.synchronize()
    errors = []
    if edge is not None:
        errors = [edge.check(*numbers[3:6]), edge.check(*numbers[6:9])]
        if numbers[9]:
            raise WrongResultError(f"two runs on the same inputs differ on {edge.problem}", max(errors))
    return max(*errors, case.check(*numbers[:3])) if errors else case.check(*numbers[:3]), time_us()
