"""The operators that run tuned kernels: ``tilescout::gemm`` and, for compiled graphs, ``tilescout::gemm_compiled``.

Both compute D = A @ B.T of A [batch, m, k] and B [batch, n, k], plus a bias [n] and rectified where the problem says
so, by what a loaded bundle decided, and by torch itself where nothing was. The second has no formula for gradients: it
stands in graphs in which gradients are operators already, and skipping that layer, which is Python, saves 4.5 µs a call
(on an H200's host with torch 2.11; experiments/results).
"""

from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.search.export.kernels import find_family

if TYPE_CHECKING:
    import torch

NAMESPACE = "tilescout"


def _gemm(a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor | None", decision: str) -> "torch.Tensor":
    return find_family(decision)(a, b, bias)


def _shape(a: "torch.Tensor", b: "torch.Tensor", bias: "torch.Tensor | None", decision: str) -> "torch.Tensor":
    return a.new_empty((a.shape[0], a.shape[1], b.shape[1]))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: "torch.Tensor") -> None:
    a, b, _, decision = inputs
    # Of what relu lets pass, its result tells as much as its argument.
    ctx.rectified = find_family(decision).problem.activation == "relu"
    ctx.save_for_backward(a, b, *((output,) if ctx.rectified else ()))


def _backward(ctx: Any, gradient: "torch.Tensor") -> "tuple[torch.Tensor | None, ...]":
    a, b, *result = ctx.saved_tensors
    if ctx.rectified:
        gradient = gradient * (result[0] > 0)
    of_a = gradient @ b if ctx.needs_input_grad[0] else None
    of_b = gradient.transpose(1, 2) @ a if ctx.needs_input_grad[1] else None
    of_bias = gradient.sum((0, 1)) if ctx.needs_input_grad[2] else None
    return of_a, of_b, of_bias, None


@cache
def define() -> "tuple[torch.library.Library, torch._ops.OpOverload]":
    """Define the operators, once; return their library, which must be kept, and the one for compiled graphs."""
    import torch

    library = torch.library.Library(NAMESPACE, "DEF")
    # Kernels take exactly the strides that the decision was matched with. Inductor would otherwise be free to pad rows.
    tags = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
    for name in ("gemm", "gemm_compiled"):
        library.define(f"{name}(Tensor a, Tensor b, Tensor? bias, str decision) -> Tensor", tags=tags)
        for key in ("CPU", "CUDA"):
            library.impl(name, _gemm, key)
        torch.library.register_fake(f"{NAMESPACE}::{name}", _shape, lib=library)
    torch.library.register_autograd(f"{NAMESPACE}::gemm", _backward, setup_context=_remember, lib=library)
    compiled: torch._ops.OpOverload = torch.ops.tilescout.gemm_compiled.default
    return library, compiled
