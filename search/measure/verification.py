"""Whether a kernel's results are right: random inputs, a poisoned output between guard bands, an fp32 reference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tilescout.search.build.loading import Launch
from tilescout.search.measure.machine import Block, Machine
from tilescout.spaces.problems import Problem
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch


_GUARD = 32 * 1024  # elements of guard band on either side of an output: 64 KiB or more, a row of a large tile
_GUARD_PATTERN = 0x5A5A
_LATE = 0.15  # of a long launch: with that, and what pilots are off without it (10 %), none is pruned at once for it


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
    """A problem with inputs, the right result, and an output between guard bands.

    Attributes
    ----------
    problem, inputs
        The problem, and its input tensors.
    reference, norms
        The right result, its Frobenius norm and its largest magnitude.
    buffer, output
        The output, and the memory around it.
    """

    problem: Problem
    inputs: Tensors
    reference: "torch.Tensor"
    norms: tuple[float, float]
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
        reference = workload.reference(problem, inputs)
        norms = float(reference.norm()), float(reference.abs().max())
        return cls(problem, inputs, reference, norms, buffer, output)

    def prepare(self, poison: float, findings: "torch.Tensor") -> None:
        """Fill the output with `poison` between fresh guard bands, and forget the last findings."""
        self._bands.fill_(_GUARD_PATTERN)
        self.output.fill_(poison)
        findings.fill_(math.nan)

    def find(self, findings: "torch.Tensor") -> None:
        """Write the three numbers that `check` wants, on the device: nothing waits for the launch."""
        import torch

        difference = torch.sub(self.output, self.reference)  # in fp32, as the reference
        norm = torch.linalg.vector_norm(difference)
        largest = torch.linalg.vector_norm(difference, math.inf)
        torch.stack([norm, largest, self._trespassed().float()], out=findings)

    def check(self, norm: float, largest: float, trespassed: float) -> float:
        """Judge the findings; return the relative Frobenius error of the output.

        Raises
        ------
        WrongResultError
            If the result is wrong or the guard bands were written.
        """
        error, largest = norm / self.norms[0], largest / self.norms[1]
        if trespassed != 0:
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
        """Refuse a kernel that has written outside its output since the last `prepare`.

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
    def _bands(self) -> "torch.Tensor":
        """Both guard bands as one tensor, of shape [2, words of 16 bits]."""
        import torch

        words = self.buffer.view(torch.int16)
        band = _GUARD * self.buffer.itemsize // words.itemsize
        return words.as_strided((2, band), (len(words) - band, 1))


class _Twice:
    """Two launches on a case; the output is filled with another value before each, and both must leave the same.

    Parameters
    ----------
    case
        The case.
    findings
        Where what is found goes, of shape [7]: the findings of both launches, and whether their results differ.
    """

    def __init__(self, case: Case, findings: "torch.Tensor") -> None:
        import torch

        self.case, self._first = case, torch.empty_like(case.output)
        self._once, self._again, self._differ = findings[:3], findings[3:6], findings[6:]

    def before(self) -> None:
        """To be done before the first launch."""
        self.case.prepare(math.nan, self._once)

    def between(self) -> None:
        """To be done between the two."""
        self.case.find(self._once)
        self._first.copy_(self.case.output)
        self.case.prepare(1.0, self._again)
        self._differ.fill_(math.nan)

    def after(self) -> None:
        """To be done after the second."""
        self.case.find(self._again)
        self._differ.copy_((self._first != self.case.output).any())

    def check(self, findings: Sequence[float]) -> float:
        """Judge the findings; return the largest relative Frobenius error.

        Raises
        ------
        WrongResultError
            See `Case.check`; or if the two results differ.
        """
        error = max(self.case.check(*findings[:3]), self.case.check(*findings[3:6]))
        if findings[6] != 0:
            raise WrongResultError(f"two runs on the same inputs differ on {self.case.problem}", error)
        return error


class Verifier:
    """Runs kernels on a case and on edge cases, and judges what they did.

    The operations before, between and after the launches are recorded once as CUDA graphs and then replayed. Started
    one by one, some 35 small operations would take the host several times as long as the device.

    Parameters
    ----------
    machine
        The device.
    case, edges
        The problem, and some that no tile divides.
    """

    def __init__(self, machine: Machine, case: Case, edges: Sequence[Case]) -> None:
        import torch

        self._machine, self._case = machine, case
        self._numbers = torch.empty((1 + len(edges), 7), device=case.output.device)
        on_case = self._numbers[0, :3]
        self._edges = [_Twice(edge, findings) for edge, findings in zip(edges, self._numbers[1:], strict=True)]
        of_edges = [step for edge in self._edges for step in (edge.before, edge.between, edge.after)]
        steps = [lambda: case.prepare(math.nan, on_case), lambda: case.find(on_case), *of_edges]
        self._prepare_case, self._find_case, *self._on_edges = machine.record(steps)

    def start(self, launch: Launch, edge: bool) -> Callable[[], float]:
        """Launch once on the case, after two launches on each edge case if `edge` asks for them; wait for nothing.

        Returns
        -------
        callable
            To be called once the machine is synchronised: it returns the time of the launch on the case, in µs, or NaN
            if the device may have waited too long for the host.
        """
        # A kernel's first launch loads it, which must not be in the time of the launch on the case.
        if edge:
            for at, each in enumerate(self._edges):
                before, between, after = self._on_edges[3 * at : 3 * at + 3]
                before()
                _launch_into(each.case, launch)
                between()
                _launch_into(each.case, launch)
                after()

        def on_case() -> None:
            _launch_into(self._case, launch)

        self._prepare_case()
        queued = self._machine.queue([Block(on_case)], late=_LATE)
        self._find_case()
        return lambda: queued.times_us()[0]

    def repeat(self, launch: Launch) -> None:
        """Launch twice on the case, and wait.

        Raises
        ------
        WrongResultError
            If the two results are not the same to the bit.
        """
        import torch

        words, results = self._case.output.view(torch.uint8), []
        for _ in range(2):
            self._prepare_case()
            _launch_into(self._case, launch)
            results.append(words.clone())
        if not torch.equal(*results):
            raise WrongResultError(f"two runs on the same inputs differ on {self._case.problem}")

    def judge(self, edge: bool) -> float:
        """Wait for what `start` began, with the same `edge`, and return the largest relative Frobenius error.

        Raises
        ------
        WrongResultError
            If a result is wrong, the two on an edge case differ, or memory outside an output was written.
        """
        on_case, *on_edges = self._numbers.tolist()
        self._machine.synchronize()
        errors = [each.check(found) for each, found in zip(self._edges, on_edges, strict=True)] if edge else []
        return max([*errors, self._case.check(*on_case[:3])])


def _launch_into(case: Case, launch: Launch) -> None:
    """Launch on a case, and copy a result that is elsewhere to where it is looked for."""
    result = launch(case.inputs, case.output)
    if result is not None:
        case.output.copy_(result)
