"""Grouped products of rows that the kernel gathers: the problem, its operands, the reference.

torch is imported where it is used.
"""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.routing import MOST_EXPERTS
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

_NAME = re.compile(r":gathered-(\d{1,4})(?=:|$)")
_INDEX_BYTES = 4


@dataclass(frozen=True, order=True)
class GatheredProblem(GroupedProblem):
    """A product for every expert of gathered rows: D[rows of e] = A[index[rows of e]] @ B[e].T.

    It is a `GroupedProblem` whose A has a row for each token, which goes to several experts, and an index [tokens] that
    says which row of A each row of D is of.

    Parameters
    ----------
    chosen
        Experts of a token; A has a row for each so many rows of D.

    Raises
    ------
    ProblemError
        If a size is out of range, or the type or the routing is none.
    """

    chosen: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.chosen <= MOST_EXPERTS:
            raise ProblemError(f"problem {self}: a token goes to 1 to {MOST_EXPERTS} experts")

    @classmethod
    def parse(cls, text: str) -> Self:
        found = _NAME.search(text.strip())
        if found is None:
            raise ProblemError(
                f"problem {text.strip()[:80]!r} gathers no rows: 128x4096x1536x2048:bf16:gathered-8:zipf-1"
            )
        rest = text.strip()[: found.start()] + text.strip()[found.end() :]
        return cls.like(GroupedProblem.parse(rest), chosen=int(found[1]))

    def with_signature(self, signature: str) -> Self:
        small = self.small(signature)
        return replace(self, dtype=small.dtype, chosen=small.chosen)

    @property
    def signature(self) -> str:
        """The element type, and how many experts a token goes to."""
        return f"{self.dtype}:gathered-{self.chosen}"

    @property
    def rows(self) -> int:
        """Rows of A."""
        return -(-self.tokens // self.chosen)

    @property
    def bytes(self) -> int:
        fewer = (self.tokens - self.rows) * self.k * self.element.bytes
        return super().bytes - fewer + self.tokens * _INDEX_BYTES


class Gathered(Grouped):
    """The product of every expert of gathered rows; inputs are A, B, the offsets and the index, as 32-bit integers.

    torch gathers with a kernel of its own, whose time is part of the library's.
    """

    problem = GatheredProblem

    def library(self, problem: GroupedProblem) -> str:
        return "torch.index_select and torch._grouped_mm"

    def _tokens(self, problem: GroupedProblem, b: "torch.Tensor", generator: "torch.Generator") -> Tensors:
        import torch

        a, _, ends = super()._tokens(problem, b, generator)
        rows = _rows(problem)
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        experts = torch.arange(problem.experts, device=a.device).repeat_interleave(ends - starts)
        chosen = torch.randperm(problem.tokens, generator=generator, device=a.device) % rows
        # The rows of an expert in rising order, as sorting by expert leaves them.
        index = (experts * rows + chosen).sort()[0] % rows
        return a[:rows].clone(), b, ends, index.to(torch.int32)

    def reference(self, problem: GroupedProblem, inputs: Tensors) -> "torch.Tensor":
        a, b, ends, index = inputs
        return super().reference(problem, (a[index], b, ends))

    def time_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        """Two kernels, the second into memory of its own."""
        a, b, ends, index = inputs
        return super().time_library(problem, (a.index_select(0, index), b, ends), output)


def _rows(problem: GroupedProblem) -> int:
    return cast(GatheredProblem, problem).rows
