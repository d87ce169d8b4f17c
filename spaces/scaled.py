"""The down product of experts, its rows scaled by the router's weights: the problem, its operands, the reference.

torch is imported where it is used.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

EPILOGUE = "scaled"
_NAME = f":{EPILOGUE}"
_SCALE_BYTES = 4


@dataclass(frozen=True, order=True)
class ScaledProblem(GroupedProblem):
    """A product for every expert, scaled by rows: D[rows of e] = scale[rows of e] * (A[rows of e] @ B[e].T).

    It is a `GroupedProblem` with a number in fp32 for every row, [tokens]. Sums are scaled in fp32, before they are
    rounded.

    Raises
    ------
    ProblemError
        If a size is out of range, or the type or the routing is none.
    """

    @classmethod
    def parse(cls, text: str) -> Self:
        before, found, after = text.partition(_NAME)
        if not found or after[:1] not in ("", ":"):
            raise ProblemError(f"problem {text.strip()[:80]!r} names no scale: 128x4096x2048x768:bf16:scaled:zipf-1")
        return cls.like(GroupedProblem.parse(before + after))

    @property
    def signature(self) -> str:
        """The element type, and that rows are scaled."""
        return f"{self.dtype}{_NAME}"

    @property
    def bytes(self) -> int:
        return super().bytes + self.tokens * _SCALE_BYTES


class Scaled(Grouped):
    """The product of every expert, scaled by rows; inputs are those of `Grouped` and the numbers.

    What is timed as the library's version is torch's product alone: a kernel that takes no longer scales for nothing.
    """

    problem = ScaledProblem

    def library(self, problem: GroupedProblem) -> str:
        return "torch._grouped_mm without a scale"

    def _tokens(self, problem: GroupedProblem, b: "torch.Tensor", generator: "torch.Generator") -> Tensors:
        import torch

        inputs = super()._tokens(problem, b, generator)
        return *inputs, torch.rand(problem.tokens, generator=generator, device=generator.device)

    def reference(self, problem: GroupedProblem, inputs: Tensors) -> "torch.Tensor":
        *operands, scale = inputs
        return super().reference(problem, tuple(operands)).mul_(scale.unsqueeze(1))

    def run_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> None:
        """``torch._grouped_mm``, and the scale behind it: the product is rounded in between."""
        output.copy_(scaled(self.time_library(problem, inputs, output), inputs[3]))

    def time_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        """The product alone."""
        return super().time_library(problem, inputs[:3], output)


def scaled(product: "torch.Tensor", scale: "torch.Tensor") -> "torch.Tensor":
    """The rows of a product [tokens, n] times their numbers in fp32 [tokens], by torch, in the product's type."""
    return (product * scale.unsqueeze(1)).to(product.dtype)
