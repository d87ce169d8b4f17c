"""Workloads: a kernel's inputs and output, the reference result, and the vendor library's version of the computation.

The process that measures uses them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Generic

from tilescout.spaces.plugins import new_instance
from tilescout.spaces.problems import P

if TYPE_CHECKING:
    import torch

Tensors = tuple["torch.Tensor", ...]

COPY = "torch.Tensor.copy_"
"""The peer of kernels that are bound by memory: a copy, which moves the same bytes and computes nothing. The copy's
time divided by a kernel's is the share of the copy's bandwidth that the kernel achieves."""


class Workload(ABC, Generic[P]):
    """The computation that the kernels of a template all perform, on problems of one class."""

    problem: type[P]  #: the class of its problems
    candidates: str = (
        ""  #: the space of the kernels among which the library itself chooses, if it can be asked for them
    )
    inductor: bool = False  #: whether TorchInductor can be told to run its kernels: it can for matrix products

    @abstractmethod
    def library(self, problem: P) -> str:
        """The name of the function that `run_library` calls, for messages and tables."""

    @abstractmethod
    def inputs(self, problem: P, generator: "torch.Generator") -> Tensors:
        """Random inputs, on the generator's device, in the order in which kernels take them."""

    @abstractmethod
    def output(self, problem: P, device: "torch.device") -> "torch.Tensor":
        """An uninitialised output."""

    @abstractmethod
    def reference(self, problem: P, inputs: Tensors) -> "torch.Tensor":
        """The result in fp32 throughout."""

    @abstractmethod
    def run_library(self, problem: P, inputs: Tensors, output: "torch.Tensor") -> None:
        """Run the vendor library's version of the computation, into `output`. Kernels are compared with it."""

    def time_library(self, problem: P, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        """Run what is timed as the library's version, and return the result.

        That is `run_library`, unless the library can't be given an output: then a subclass leaves out the copy.
        """
        self.run_library(problem, inputs, output)
        return output

    def draws(self, problem: P) -> int:
        """Inputs over which the time of a kernel is a mean: one, unless the time depends on what the inputs hold."""
        return 1

    def more_inputs(
        self, problem: P, generator: "torch.Generator", made: Sequence[Tensors], count: int
    ) -> Sequence[Tensors]:
        """So many inputs, to be read in turn after those that were `made`: of the next draws, where there are some."""
        return [self.inputs(problem, generator) for _ in range(count)]

    def arguments(self, inputs: Tensors, output: "torch.Tensor", max_clusters: int) -> tuple[Any, ...]:
        """The arguments of a kernel's entry point, in its order.

        Parameters
        ----------
        inputs, output
            The tensors.
        max_clusters
            How many clusters of the kernel's size run on the device at once.
        """
        return (*inputs, output, max_clusters)

    @abstractmethod
    def edge_problem(self, problem: P) -> P:
        """A small problem of the same signature that no tile divides."""

    def edge_problems(self, problem: P) -> Sequence[P]:
        """All small problems on which every kernel is verified: the edge problem, and others that a subclass has."""
        return (self.edge_problem(problem),)


BUILT_IN = (
    "tilescout.spaces.gemm:Gemm",
    "tilescout.spaces.rowwise:Softmax",
    "tilescout.spaces.grouped:Grouped",
    "tilescout.spaces.gated:Gated",
    "tilescout.spaces.scaled:Scaled",
    "tilescout.spaces.gathered:Gathered",
)
"""The workloads that come with tilescout, by the names under which templates and files know them."""


@cache
def load_workload(path: str) -> Workload:
    """The workload of a class given as ``module:Class``.

    This imports the module, which runs its code: pass what a template says, or one of `BUILT_IN`, never what was read
    from a file.

    Raises
    ------
    SpaceError
        If there is none.
    """
    workload: Workload = new_instance(path, Workload, "tilescout.spaces.gemm:Gemm")
    return workload
