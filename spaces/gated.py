"""The gate and up product of experts with SwiGLU behind it: the problem, its operands, the reference.

torch is imported where it is used.
"""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

PLACES = ("swiglu", "swiglu-pairs")
"""Where the rows of gate and up are: all of the gate before all of up, as transformers has most models' experts, or one
of each in turn, as gpt-oss has them."""

_PLACE = re.compile(r":(swiglu[-\w]*)")


@dataclass(frozen=True, order=True)
class GatedProblem(GroupedProblem):
    """A product for every expert, and SwiGLU: D[rows of e] = silu(A @ gate[e].T) * (A @ up[e].T), of its rows of A.

    It is a `GroupedProblem` with B [experts, n, k], whose rows are those of gate and up, and D [tokens, n / 2]. Sums
    and SwiGLU are in fp32.

    Parameters
    ----------
    place
        Where the rows of gate and up are in B: one of `PLACES`.

    Raises
    ------
    ProblemError
        If n is odd or a size is out of range, or the type, the routing or the place is none.
    """

    place: str = PLACES[0]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.place not in PLACES:
            raise ProblemError(f"problem {self}: unknown epilogue {self.place!r}, allowed are {', '.join(PLACES)}")
        if self.n % 2:
            raise ProblemError(f"problem {self}: n is {self.n}, and of the rows of gate and up there are as many")

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _PLACE.search(text)
        if found is None:
            raise ProblemError(f"problem {text.strip()[:80]!r} names no SwiGLU: 128x4096x1536x2048:bf16:swiglu:zipf-1")
        plain = GroupedProblem.parse(text[: found.start()] + text[found.end() :])
        return cls.like(plain, place=found[1])

    def with_signature(self, signature: str) -> Self:
        small = self.small(signature)
        return replace(self, dtype=small.dtype, place=small.place)

    @property
    def signature(self) -> str:
        """The element type, and where gate and up are."""
        return f"{self.dtype}:{self.place}"

    @property
    def pairs(self) -> bool:
        """Whether rows of gate and up alternate."""
        return self.place == PLACES[1]

    @property
    def width(self) -> int:
        return self.n // 2


class Gated(Grouped):
    """The product of every expert with SwiGLU; inputs are A, B and the offsets, as of `Grouped`.

    What is timed as the library's version is torch's product alone. Behind it torch runs two kernels, TorchInductor
    one: a kernel of ours that takes no longer than the product is faster than either.
    """

    problem = GatedProblem

    def library(self, problem: GroupedProblem) -> str:
        return "torch._grouped_mm without SwiGLU"

    def reference(self, problem: GroupedProblem, inputs: Tensors) -> "torch.Tensor":
        return _of(problem, super().reference(problem, inputs))

    def run_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> None:
        """``torch._grouped_mm``, and SwiGLU behind it: the product is rounded in between."""
        output.copy_(_of(problem, super().time_library(problem, inputs, output)))

    def time_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        """The product alone; half of its columns, so that what reads it reads no more than of a kernel's result."""
        return super().time_library(problem, inputs, output)[:, : problem.width]

    def edge_problem(self, problem: GroupedProblem) -> GroupedProblem:
        return replace(super().edge_problem(problem), n=592)  # 16 * 37: no tile divides it


def swiglu(product: "torch.Tensor", pairs: bool) -> "torch.Tensor":
    """SwiGLU by torch of a product [tokens, n], in which gate and up are in turn or halves."""
    from torch.nn.functional import silu

    gate, up = (product[:, ::2], product[:, 1::2]) if pairs else product.chunk(2, dim=1)
    return silu(gate) * up


def _of(problem: GroupedProblem, product: "torch.Tensor") -> "torch.Tensor":
    return swiglu(product, cast(GatedProblem, problem).pairs)
