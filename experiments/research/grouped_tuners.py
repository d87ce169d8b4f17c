"""Others that tune grouped products by themselves: TorchInductor with its Triton kernels, and Quack's autotuner."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tilescout.search.build.loading import Launch
from tilescout.spaces.errors import SpaceError, one_line
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch


class Inductor:
    """``torch._grouped_mm`` as TorchInductor compiles it for given inputs, if it may take Triton's kernels alone.

    Its autotuning draws balanced routings of its own. The result is in memory of its own, as the library's is.

    Raises
    ------
    SpaceError
        If it has none.
    """

    def __init__(self, inputs: Tensors) -> None:
        import torch
        from torch._inductor.utils import run_and_get_code

        torch._dynamo.reset()
        choice: dict[str, str | int | bool | Callable[..., Any]]
        choice = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
        self._product = torch.compile(by_torch, options=choice, dynamic=False)
        try:
            _, code = run_and_get_code(self._product, inputs)
        except Exception as error:  # whatever the compilers of this torch raise
            raise SpaceError(f"TorchInductor: {one_line(error, 200)}") from error
        if not any("triton_tem" in text for text in code):
            raise SpaceError("TorchInductor has no Triton kernel for it")

    def __call__(self, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        """Run it."""
        product: torch.Tensor = self._product(inputs)
        return product

    def into(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Run it, and copy the result to where it can be compared."""
        output.copy_(self(inputs, output))


class QuackUser:
    """Quack's own entry for products of variable m, as its users call it.

    Its autotuner times its list on the inputs of the first call, which is made here, and keeps the fastest.

    Raises
    ------
    SpaceError
        If it is not installed, or fails.
    """

    def __init__(self, inputs: Tensors) -> None:
        try:
            from quack.gemm_interface import gemm

            self._gemm = gemm
            self(inputs, inputs[0].new_empty((inputs[0].shape[0], inputs[1].shape[1])))
        except Exception as error:  # whatever it and its compilers raise
            raise SpaceError(f"Quack: {one_line(error, 200)}") from error

    def __call__(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Run it."""
        a, b, ends = inputs
        # It wants the 0 before the first end too: it lies there, see tilescout.spaces.grouped.
        bounds = ends.as_strided((len(ends) + 1,), (1,), ends.storage_offset() - 1)
        self._gemm(a, b.transpose(1, 2), out=output, cu_seqlens_m=bounds)


def by_torch(inputs: Tensors) -> "torch.Tensor":
    """The product by ``torch._grouped_mm``."""
    import torch

    a, b, ends = inputs
    return torch._grouped_mm(a, b.transpose(1, 2), offs=ends)


def by_inductor(inputs: Tensors) -> tuple[Launch, Launch]:
    """TorchInductor's Triton kernel, and how its result is compared."""
    compiled = Inductor(inputs)
    return compiled, compiled.into


def by_quack(inputs: Tensors) -> tuple[Launch, Launch]:
    """Quack's kernel as its autotuner chooses, twice."""
    tuned = QuackUser(inputs)
    return tuned, tuned


TRITON, QUACK = "Triton by TorchInductor", "Quack by its autotuner"
TUNERS: Mapping[str, Callable[[Tensors], tuple[Launch, Launch]]] = {QUACK: by_quack, TRITON: by_inductor}
"""Of others that tune by themselves: a function that has them do so, and returns what is timed and what is checked."""
