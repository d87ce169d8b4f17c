"""What a kernel is given and what it must give back: operands, the reference, the library's own version.

Used by the process that measures; torch is imported where it is used. All tensors are contiguous, with the batch
first: A [batch, m, k], B [batch, n, k], D [batch, m, n].
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.problems import Problem

if TYPE_CHECKING:
    import torch

Tensors = tuple["torch.Tensor", ...]


class Workload(ABC):
    """The computation that the kernels of a template all perform."""

    library: str  #: what `run_library` calls, for messages and tables

    @abstractmethod
    def inputs(self, problem: Problem, generator: "torch.Generator") -> Tensors:
        """Random inputs, on the generator's device."""

    @abstractmethod
    def output(self, problem: Problem, device: "torch.device") -> "torch.Tensor":
        """An uninitialised output."""

    @abstractmethod
    def reference(self, inputs: Tensors) -> "torch.Tensor":
        """The result in fp32 throughout."""

    @abstractmethod
    def run_library(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """The vendor library's version of the computation, into `output`: the peer that kernels are compared with."""

    def arguments(self, inputs: Tensors, output: "torch.Tensor", max_clusters: int) -> tuple[Any, ...]:
        """What the entry point of a kernel takes, in its order.

        Parameters
        ----------
        inputs, output
            The tensors.
        max_clusters
            How many clusters of the kernel's size run on the device at once.
        """
        return (*inputs, output, max_clusters)

    @abstractmethod
    def edge_problem(self, problem: Problem) -> Problem:
        """A small problem of the same type that no tile divides."""


class Gemm(Workload):
    """D = A @ B.T; the library is cuBLAS on a GPU and oneDNN or MKL on a CPU, through ``torch.mm``."""

    library = "torch.mm"

    def inputs(self, problem: Problem, generator: "torch.Generator") -> Tensors:
        import torch

        dtype = getattr(torch, problem.element.torch_name)

        def normal(rows: int, columns: int) -> "torch.Tensor":
            shape = (problem.batch, rows, columns)
            return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)

        return normal(problem.m, problem.k), normal(problem.n, problem.k)

    def output(self, problem: Problem, device: "torch.device") -> "torch.Tensor":
        import torch

        dtype = getattr(torch, problem.element.torch_name)
        return torch.empty((problem.batch, problem.m, problem.n), device=device, dtype=dtype)

    def reference(self, inputs: Tensors) -> "torch.Tensor":
        import torch

        a, b = inputs
        precision = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # no TF32
        try:
            return torch.bmm(a.float(), b.float().transpose(1, 2))
        finally:
            torch.set_float32_matmul_precision(precision)

    def run_library(self, inputs: Tensors, output: "torch.Tensor") -> None:
        import torch

        a, b = inputs
        if len(a) == 1:
            torch.mm(a[0], b[0].t(), out=output[0])
        else:
            torch.bmm(a, b.transpose(1, 2), out=output)

    def edge_problem(self, problem: Problem) -> Problem:
        # Every tile, cluster and stage has an edge here: 389 is prime, 328 = 8 * 41, 584 = 8 * 73; two products, so
        # that a batch is walked too.
        return Problem(m=389, n=584, k=328, batch=2, dtype=problem.dtype)


WORKLOADS: dict[str, Workload] = {"gemm": Gemm()}


def find_workload(name: str) -> Any:
    """The workload of this name.

    Raises
    ------
    SpaceError
        If there is none.
    """
    if name not in WORKLOADS:
        raise SpaceError(f"unknown workload {name!r}, known are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]
