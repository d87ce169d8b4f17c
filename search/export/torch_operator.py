"""The operators that run tuned kernels: ``tilescout::gemm`` and, for compiled graphs, ``tilescout::gemm_compiled``.

They compute D = A @ B.T of A [batch, m, k] and B [batch, n, k], with the problem's epilogue: scaled by alpha [1], plus
a bias [n], activated. The kernel is the one that a loaded bundle decides, else torch's. The second operator has no
formula for gradients, because in the graphs that it is used in gradients are operators already. Without that layer of
Python a call is 4.5 µs shorter (on an H200's host with torch 2.11; experiments/results).

``tilescout::gemms_compiled`` is several products of one A. Their results lie behind each other in one vector, as
`places_of` says.

``tilescout::grouped_mm``, in compiled graphs too, is the grouped product of A [tokens, k], B [experts, n, k] and the
ends of the groups [experts], with SwiGLU behind it or its rows scaled where the decision is of such a product.
"""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from itertools import accumulate
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from tilescout.search.export.grouped.kernels import find_grouped
from tilescout.search.export.loaded_kernels import ALGORITHM_ALIGNMENT, Family, find_family

if TYPE_CHECKING:
    import torch

Made = TypeVar("Made")

NAMESPACE = "tilescout"
SEPARATOR = " "
"""Stands between the names of several decisions."""


def _once(make: Callable[[], Made]) -> Callable[[], Made]:
    """A function that is called once, by the thread that asks first: an operator can't be defined twice."""
    lock, made = RLock(), cache(make)

    @wraps(make)
    def found() -> Made:
        with lock:
            return made()

    return found


def _gemm(
    a: "torch.Tensor", b: "torch.Tensor", alpha: "torch.Tensor | None", bias: "torch.Tensor | None", decision: str
) -> "torch.Tensor":
    return find_family(decision)(a, b, alpha, bias)


def _shape(
    a: "torch.Tensor", b: "torch.Tensor", alpha: "torch.Tensor | None", bias: "torch.Tensor | None", decision: str
) -> "torch.Tensor":
    return a.new_empty((a.shape[0], a.shape[1], b.shape[1]), dtype=find_family(decision).out)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: "torch.Tensor") -> None:
    *tensors, decision = inputs
    ctx.activation = find_family(decision).problem.activation
    # Of what relu lets pass, its result tells as much as its argument.
    ctx.save_for_backward(*tensors, output if ctx.activation == "relu" else None)


def _backward(ctx: Any, gradient: "torch.Tensor") -> "tuple[torch.Tensor | None, ...]":
    import torch

    a, b, alpha, bias, result = ctx.saved_tensors
    of_a, of_b, of_alpha, of_bias = ctx.needs_input_grad[:4]
    if of_alpha or ctx.activation in ("gelu", "silu"):
        product = a @ b.transpose(1, 2)  # it was not kept
    if ctx.activation == "relu":
        gradient = gradient * (result > 0)
    elif ctx.activation:
        before = product if alpha is None else product * alpha
        before = before if bias is None else before + bias
        derivative = getattr(torch.ops.aten, f"{ctx.activation}_backward")
        gradient = derivative(gradient, before.to(gradient.dtype))
    scaled = (gradient if alpha is None else gradient * alpha).to(a.dtype)
    return (
        scaled @ b if of_a else None,
        scaled.transpose(1, 2) @ a if of_b else None,
        (gradient * product).sum(dtype=torch.float32).reshape(1) if of_alpha else None,
        gradient.sum((0, 1)) if of_bias else None,
        None,
    )


@_once
def define() -> "tuple[torch.library.Library, torch._ops.OpOverload]":
    """Define the operators, once; return their library, which must be kept, and the one for compiled graphs."""
    import torch

    library = torch.library.Library(NAMESPACE, "DEF")
    for name in ("gemm", "gemm_compiled"):
        _add(library, name, "Tensor a, Tensor b, Tensor? alpha, Tensor? bias, str decision", _gemm, _shape)
    torch.library.register_autograd(f"{NAMESPACE}::gemm", _backward, setup_context=_remember, lib=library)
    compiled: torch._ops.OpOverload = torch.ops.tilescout.gemm_compiled.default
    return library, compiled


def _add(
    library: "torch.library.Library", name: str, takes: str, run: Callable[..., Any], shape: Callable[..., Any]
) -> None:
    import torch

    # Kernels take exactly the strides that the decision was matched with. Inductor would otherwise be free to pad rows.
    tags = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
    library.define(f"{name}({takes}) -> Tensor", tags=tags)
    for key in ("CPU", "CUDA"):
        library.impl(name, run, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", shape, lib=library)


def places_of(families: Sequence[Family], rows: int) -> list[int]:
    """Where the result of each product of one A begins in their vector, in elements, and at last how long that is."""
    step = ALGORITHM_ALIGNMENT // families[0].out.itemsize
    return [0, *accumulate(-(-rows * family.problem.n // step) * step for family in families)]


def _together(
    a: "torch.Tensor", bs: "Sequence[torch.Tensor]", biases: "Sequence[torch.Tensor | None]", decisions: str
) -> "torch.Tensor":
    families = [find_family(name) for name in decisions.split(SEPARATOR)]
    rows = a.shape[1]
    *starts, length = places_of(families, rows)
    found = a.new_empty(length, dtype=families[0].out)
    for family, b, bias, start in zip(families, bs, biases, starts, strict=True):
        size = rows * family.problem.n
        found[start : start + size] = family(a, b, None, bias).flatten()
    return found


def _together_shape(
    a: "torch.Tensor", bs: "Sequence[torch.Tensor]", biases: "Sequence[torch.Tensor | None]", decisions: str
) -> "torch.Tensor":
    families = [find_family(name) for name in decisions.split(SEPARATOR)]
    return a.new_empty(places_of(families, a.shape[1])[-1], dtype=families[0].out)


@_once
def define_together() -> "torch._ops.OpOverload":
    """Define the operator of several products of one A, once."""
    import torch

    library, _ = define()
    takes = "Tensor a, Tensor[] bs, Tensor?[] biases, str decisions"
    _add(library, "gemms_compiled", takes, _together, _together_shape)
    operator: torch._ops.OpOverload = torch.ops.tilescout.gemms_compiled.default
    return operator


def _grouped(
    a: "torch.Tensor", b: "torch.Tensor", ends: "torch.Tensor", decision: str, scale: "torch.Tensor | None" = None
) -> "torch.Tensor":
    return find_grouped(decision)(a, b, ends, scale)


def _grouped_shape(
    a: "torch.Tensor", b: "torch.Tensor", ends: "torch.Tensor", decision: str, scale: "torch.Tensor | None" = None
) -> "torch.Tensor":
    family = find_grouped(decision)
    return a.new_empty((a.shape[0], family.width), dtype=family.out)


@_once
def define_grouped() -> "torch._ops.OpOverload":
    """Define the operator of grouped products, once."""
    import torch

    library, _ = define()
    schema = "Tensor a, Tensor b, Tensor ends, str decision, Tensor? scale=None"
    _add(library, "grouped_mm", schema, _grouped, _grouped_shape)
    operator: torch._ops.OpOverload = torch.ops.tilescout.grouped_mm.default
    return operator
