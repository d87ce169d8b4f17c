"""Operations on the rows of a matrix, which are bound by memory: the problem, and the base of their workloads.

A kernel is compared with a copy of the same bytes, measured in the same milliseconds. The copy's time divided by the
kernel's is the share of the copy's bandwidth that the kernel achieves. torch is imported where it is used.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.problems import TERABYTES, Rate, UniformProblem
from tilescout.spaces.texts import quoted
from tilescout.spaces.workloads import COPY, Tensors, Workload

if TYPE_CHECKING:
    import torch

TYPES = ("bf16", "fp16", "fp32")

_TEXT = re.compile(r"(?P<rows>\d{1,10})x(?P<columns>\d{1,10})(:(?P<dtype>\w+))?")
_FORM = "ROWSxCOLUMNS[:DTYPE], for example 8192x8192:bf16"
_LARGEST = 2**31 - 1  # kernels index with 32-bit integers
_EDGE_ROWS, _EDGE_ELEMENTS = 389, 2**25  # a prime, which no block divides; fewer rows where they are very long
_ALIGNED_BYTES = 16  # the width of the widest access to memory
# The relative error that fp32 arithmetic adds to the rounding of the result: some roundings, and functions that the
# hardware approximates to 2**-22.
_ARITHMETIC = 2.0**-18


@dataclass(frozen=True, order=True)
class RowwiseProblem(UniformProblem):
    """An operation on every row of a row-major matrix, whose result is a matrix of the same shape and type.

    Parameters
    ----------
    rows, columns
        Sizes in elements.
    dtype
        Name of the element type: ``bf16``, ``fp16`` or ``fp32``.

    Raises
    ------
    ProblemError
        If a size is out of range or the type unknown.
    """

    rows: int
    columns: int
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, size in self.sizes.items():
            if not 1 <= size <= _LARGEST:
                raise ProblemError(f"problem {self}: {name} is {size}, allowed are 1 to {_LARGEST}")
        if self.dtype not in TYPES:
            raise ProblemError(f"problem {self}: unknown type {self.dtype!r}, allowed are {', '.join(TYPES)}")

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}:{self.dtype}"

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ProblemError(f"malformed problem {quoted(text)}: expected {_FORM}")
        return cls(int(match["rows"]), int(match["columns"]), match["dtype"] or cls.dtype)

    @classmethod
    def small(cls, signature: str) -> Self:
        return cls.parse(f"16x16:{signature}")

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"rows": self.rows, "columns": self.columns}

    @property
    def dimensions(self) -> tuple[int, int]:
        """Rows and columns, also where a subclass compiles the length of a row into its kernels."""
        return self.rows, self.columns

    @property
    def flops(self) -> int:
        """0, as they do not count: such kernels wait for device memory, not for arithmetic."""
        return 0

    @property
    def bytes(self) -> int:
        return 2 * self.rows * self.columns * self.element.bytes

    @property
    def rate(self) -> Rate:
        return Rate(TERABYTES, self.bytes)

    @property
    def tolerance(self) -> float:
        return self.result.unit_roundoff + _ARITHMETIC


class Rowwise(Workload[RowwiseProblem]):
    """The base of workloads on the rows of one matrix; a subclass adds its `reference`."""

    problem = RowwiseProblem

    def library(self, problem: RowwiseProblem) -> str:
        return COPY

    def inputs(self, problem: RowwiseProblem, generator: "torch.Generator") -> Tensors:
        import torch

        shape, dtype = (problem.rows, problem.columns), getattr(torch, problem.element.torch_name)
        return (torch.randn(shape, generator=generator, device=generator.device, dtype=dtype),)

    def output(self, problem: RowwiseProblem, device: "torch.device") -> "torch.Tensor":
        import torch

        dtype = getattr(torch, problem.result.torch_name)
        return torch.empty((problem.rows, problem.columns), device=device, dtype=dtype)

    @abstractmethod
    def reference(self, problem: RowwiseProblem, inputs: Tensors) -> "torch.Tensor": ...

    def run_library(self, problem: RowwiseProblem, inputs: Tensors, output: "torch.Tensor") -> None:
        """Copy the input."""
        output.copy_(inputs[0])

    def arguments(self, inputs: Tensors, output: "torch.Tensor", max_clusters: int) -> tuple[Any, ...]:
        """The tensors alone: each row is a block's, however many run at once."""
        return (*inputs, output)

    def edge_problem(self, problem: RowwiseProblem) -> RowwiseProblem:
        # A kernel may be built to hold no more columns than the problem has, and may rely on the alignment of its
        # rows. So the edge problem has slightly fewer columns, aligned as well: the last access of a row finds none.
        step = _ALIGNED_BYTES // problem.element.bytes
        step = next(width for width in (step, step // 2, step // 4, 1) if width and problem.columns % width == 0)
        rows = min(_EDGE_ROWS, _EDGE_ELEMENTS // problem.columns | 1)
        return replace(problem, rows=rows, columns=max(step, problem.columns - step))


class Softmax(Rowwise):
    """The softmax of every row.

    The inputs make faults visible. A few elements of a row make up nearly all of its sum, whatever its length, so that
    missing some of them shows. Rows lie so far from 0 that the exponentials overflow unless the kernel subtracts the
    maximum.
    """

    def inputs(self, problem: RowwiseProblem, generator: "torch.Generator") -> Tensors:
        import torch

        (normal,) = super().inputs(problem, generator)
        shift = torch.randn((problem.rows, 1), generator=generator, device=generator.device, dtype=normal.dtype)
        return (normal.mul_(4).add_(shift.mul_(100)),)

    def reference(self, problem: RowwiseProblem, inputs: Tensors) -> "torch.Tensor":
        import torch

        return torch.softmax(inputs[0].float(), dim=1)
