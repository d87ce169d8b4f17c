"""Grouped matrix products, as a mixture of experts computes them: the problem, its operands, the reference.

torch is imported where it is used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Self

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import UniformProblem
from tilescout.spaces.routing import KINDS, MOST_EXPERTS, Routing
from tilescout.spaces.texts import number_of, quoted
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

TYPES = ("bf16",)
DRAWS = 8
"""Draws of the routing that a measurement takes, unless a problem says something else."""

_ROUTED = "|".join(KINDS)
_TEXT = re.compile(
    r"(?P<experts>\d{1,10})x(?P<tokens>\d{1,10})x(?P<n>\d{1,10})x(?P<k>\d{1,10})"
    rf"(:(?!({_ROUTED}|draws)\b)(?P<dtype>\w+))?"
    rf"(:(?P<routing>({_ROUTED})[-.\d]*))?"
    r"(:draws-(?P<first>\d{1,9})-(?P<last>\d{1,9}))?"
)
_PART = re.compile(rf"({_ROUTED})[-.\d]*|draws-\d{{1,9}}-\d{{1,9}}")
_FORM = (
    "EXPERTSxTOKENSxNxK[:DTYPE][:ROUTING][:draws-FIRST-LAST], for example 128x4096x1536x2048:bf16:zipf-1.2 or "
    "8x512x4096x14336:bf16:balanced:draws-100-107"
)
_LARGEST = 2**31 - 1  # kernels index with 32-bit integers
_SHARED = 2**29  # bytes from which inputs share their weights: of these no L2 keeps much from one launch to the next
_MOST_DRAWS = 64  # inputs of each are in memory at once
_SEEDS = 10**9  # a line has nine digits of a seed

# Tokens of the experts of the edge problem: none (at the ends too, and two in a row), one, one more and one less than
# tiles of 64 and 128 rows, primes, and most of all of them to one.
_EDGE = (0, 1, 0, 63, 64, 65, 389, 0, 0, 129, 7, 2, 127, 0)


@dataclass(frozen=True, order=True)
class GroupedProblem(UniformProblem):
    """A product for every expert: D[rows of e] = A[rows of e] @ B[e].T, with A [tokens, k], B [experts, n, k].

    The rows of the first expert come first, then those of the second, and so on. D [tokens, n] is row-major, A and B
    are contiguous along k. Sums are in fp32. A kernel serves all routings: the sizes of the groups are in device
    memory.

    Parameters
    ----------
    experts, n, k
        Sizes in elements.
    tokens
        Rows of A. A token that goes to several experts is a row for each of them.
    dtype
        Name of the element type of A, B and D: ``bf16``.
    routing
        How tokens spread over the experts.
    first_draw, last_draw
        Seeds of the draws of the routing. Times are means over these draws.

    Raises
    ------
    ProblemError
        If a size is out of range, or the type or the routing is none.
    """

    experts: int
    tokens: int
    n: int
    k: int
    dtype: str = "bf16"
    routing: Routing = field(default_factory=Routing)
    first_draw: int = 0
    last_draw: int = DRAWS - 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, size in self.sizes.items():
            most = MOST_EXPERTS if name == "experts" else _LARGEST
            if not 1 <= size <= most:
                raise ProblemError(f"problem {self}: {name} is {size}, allowed are 1 to {most}")
        if self.dtype not in TYPES:
            raise ProblemError(f"problem {self}: unknown type {self.dtype!r}, allowed are {', '.join(TYPES)}")
        if self.routing.counts and len(self.routing.counts) != self.experts:
            counts, experts = number_of(len(self.routing.counts), "count"), number_of(self.experts, "expert")
            raise ProblemError(f"problem {self}: {counts} for {experts}")
        if not 0 <= self.first_draw <= self.last_draw < self.first_draw + _MOST_DRAWS:
            raise ProblemError(f"problem {self}: draws go from a number to one that is less than {_MOST_DRAWS} larger")
        if not self.routing.drawn:  # they are all the same
            object.__setattr__(self, "first_draw", 0)
            object.__setattr__(self, "last_draw", 0)

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.sizes.values()))
        usual = not self.routing.drawn or (self.first_draw, self.last_draw) == (0, DRAWS - 1)
        draws = "" if usual else f":draws-{self.first_draw}-{self.last_draw}"
        return f"{sizes}:{self.signature}:{self.routing}{draws}"

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ProblemError(f"malformed problem {quoted(text)}: {_unknown(text) or f'expected {_FORM}'}")
        experts, tokens, n, k = (int(match[name]) for name in ("experts", "tokens", "n", "k"))
        routing = Routing.parse(match["routing"]) if match["routing"] else Routing()
        first, last = match["first"] or cls.first_draw, match["last"] or cls.last_draw
        return cls(experts, tokens, n, k, match["dtype"] or cls.dtype, routing, int(first), int(last))

    @classmethod
    def like(cls, other: "GroupedProblem", **others: Any) -> Self:
        """The product of a problem of another class, as a problem of this one."""
        of_products = {each.name: getattr(other, each.name) for each in fields(GroupedProblem)}
        return cls(**of_products, **others)

    @classmethod
    def small(cls, signature: str) -> Self:
        routed = next(filter(_PART.fullmatch, signature.strip().split(":")), None)
        if routed is not None:
            raise ProblemError(f"{quoted(signature)} is no signature: a kernel serves all routings, {routed} too")
        return cls.parse(f"4x64x64x64:{signature}")

    def with_signature(self, signature: str) -> Self:
        return replace(self, dtype=self.small(signature).dtype)

    @property
    def width(self) -> int:
        """Columns of D."""
        return self.n

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"experts": self.experts, "tokens": self.tokens, "n": self.n, "k": self.k}

    @property
    def draws(self) -> Sequence["GroupedProblem"]:
        """A problem for each draw of the routing."""
        return [replace(self, first_draw=at, last_draw=at) for at in range(self.first_draw, self.last_draw + 1)]

    @property
    def unseen(self) -> Self:
        """As many draws behind its own."""
        count = len(self.draws)
        first = self.last_draw + 1 if self.last_draw + count < _SEEDS else self.first_draw - count
        return replace(self, first_draw=first, last_draw=first + count - 1)

    @property
    def averaged(self) -> str:
        return f"draws {self.first_draw} to {self.last_draw} of the routing" if self.routing.drawn else ""

    @property
    def groups(self) -> tuple[int, ...]:
        """Tokens of each expert, in the first draw."""
        return _groups(self)

    @property
    def flops(self) -> int:
        """A multiplication and an addition for every token, n and k."""
        return 2 * self.tokens * self.n * self.k

    @property
    def bytes(self) -> int:
        """The mean over the draws: experts without tokens are not read."""
        reached = [sum(size > 0 for size in draw.groups) for draw in self.draws]
        weights = sum(reached) * self.n * self.k // len(reached)
        moved = self.tokens * (self.k * self.element.bytes + self.width * self.result.bytes)
        return moved + weights * self.element.bytes + 4 * self.experts

    @property
    def tolerance(self) -> float:
        return GemmProblem.small(self.dtype).tolerance


def _unknown(text: str) -> str:
    """The first part behind the sizes of a malformed problem that none may have; empty if something else is wrong."""
    parts = text.strip().split(":")[1:]
    unknown = next((part for part in parts if part and part not in TYPES and not _PART.fullmatch(part)), None)
    if unknown is None:
        return ""
    return (
        f"unknown {short(unknown)}, allowed are types ({', '.join(TYPES)}), routings ({', '.join(KINDS)}) and "
        "draws-FIRST-LAST"
    )


@lru_cache(maxsize=4096)
def _groups(problem: GroupedProblem) -> tuple[int, ...]:
    return tuple(problem.routing.groups(problem.experts, problem.tokens, problem.first_draw).tolist())


class Grouped(Workload[GroupedProblem]):
    """The product of every expert; inputs are A, B and the offsets, in the form of ``torch._grouped_mm``.

    The offsets [experts] are the ends of the groups in A, as 32-bit integers: sums over the sizes of the groups. They
    lie behind a 0, so that kernels that want the starts of the groups as well find them from one place before on. No
    kernel is told the sizes otherwise: they are in device memory alone.
    """

    problem = GroupedProblem

    def library(self, problem: GroupedProblem) -> str:
        return "torch._grouped_mm"

    def draws(self, problem: GroupedProblem) -> int:
        return len(problem.draws)

    def inputs(self, problem: GroupedProblem, generator: "torch.Generator") -> Tensors:
        """Random inputs of the first draw; the sizes of the groups follow from the draw, not from the generator."""
        b = _normal(problem, (problem.experts, problem.n, problem.k), generator)
        return self._tokens(problem, b, generator)

    def more_inputs(
        self, problem: GroupedProblem, generator: "torch.Generator", made: Sequence[Tensors], count: int
    ) -> Sequence[Tensors]:
        draws, weights = problem.draws, made[0][1]
        problems = [draws[at % len(draws)] for at in range(len(made), len(made) + count)]
        if weights.nbytes < _SHARED:
            return [self.inputs(draw, generator) for draw in problems]
        return [self._tokens(draw, weights, generator) for draw in problems]

    def _tokens(self, problem: GroupedProblem, b: "torch.Tensor", generator: "torch.Generator") -> Tensors:
        import torch

        a = _normal(problem, (problem.tokens, problem.k), generator)
        bounds = torch.tensor((0, *problem.groups), dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return a, b, bounds.to(generator.device)[1:]

    def output(self, problem: GroupedProblem, device: "torch.device") -> "torch.Tensor":
        import torch

        dtype = getattr(torch, problem.result.torch_name)
        return torch.empty((problem.tokens, problem.width), device=device, dtype=dtype)

    def reference(self, problem: GroupedProblem, inputs: Tensors) -> "torch.Tensor":
        import torch

        a, b, ends = inputs
        result = torch.empty((problem.tokens, problem.n), device=a.device)
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # no TF32
        try:
            start = 0
            for expert, end in enumerate(ends.tolist()):
                if start < end:
                    torch.mm(a[start:end].float(), b[expert].float().t(), out=result[start:end])
                start = end
        finally:
            torch.set_float32_matmul_precision(precision)
        return result

    def run_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> None:
        output.copy_(self.time_library(problem, inputs, output))

    def time_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        """``torch._grouped_mm`` into memory of its own: it can't be given an output, and a copy would count as its."""
        import torch

        a, b, ends = inputs
        return torch._grouped_mm(a, b.transpose(1, 2), offs=ends)

    def edge_problem(self, problem: GroupedProblem) -> GroupedProblem:
        # 584 = 8 * 73, 328 = 8 * 41: no tile divides them, and rows are multiples of 16 bytes.
        return replace(
            problem,
            experts=len(_EDGE),
            tokens=sum(_EDGE),
            n=584,
            k=328,
            routing=Routing("recorded", counts=_EDGE),
        )

    def edge_problems(self, problem: GroupedProblem) -> Sequence[GroupedProblem]:
        """The edge problem, and the same with all tokens to one expert."""
        edge = self.edge_problem(problem)
        return edge, replace(edge, routing=Routing("one"))


def _normal(problem: GroupedProblem, shape: tuple[int, ...], generator: "torch.Generator") -> "torch.Tensor":
    import torch

    dtype = getattr(torch, problem.element.torch_name)
    return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
