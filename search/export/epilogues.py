"""Recognise epilogues in a graph: the factor, bias and activation behind a matrix product that a kernel may fuse.

An activation is left alone where TorchInductor fuses it into an operation that follows.

When custom passes run, TorchInductor has decomposed activations into simpler operations, differently in each version.
The pattern to look for is therefore traced: the activation by itself, with the decompositions of the installed torch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.search.export import torch_hooks

if TYPE_CHECKING:
    import torch
    from torch.fx import Graph, Node


@cache
def aten() -> Any:
    """``torch.ops.aten``."""
    import torch

    return torch.ops.aten


@dataclass(frozen=True)
class Product:
    """Part of a graph: activation(factors * A [.., m, k] @ B [.., k, n] + bias).

    Attributes
    ----------
    nodes
        The nodes that compute it, from the product on. The last is the result; nothing else uses the others.
    a, b
        The operands.
    factors
        The factors of the product: numbers, and fp32 tensors of one element.
    bias
        A vector along n, of the result's type; None if there is none.
    activation
        Its name, as in problems; empty if there is none.
    view
        Where the result is given another shape on the way, the node that does; only rows are split.
    fast
        Whether sums of 8-bit products may have fewer bits than fp32.
    """

    nodes: "tuple[Node, ...]"
    a: "Node"
    b: "Node"
    factors: "tuple[Node | float, ...]" = ()
    bias: "Node | None" = None
    activation: str = ""
    view: "Node | None" = None
    fast: bool = False

    @property
    def result(self) -> "torch.Tensor":
        """The fake tensor of the result."""
        value: torch.Tensor = self.nodes[-1].meta["val"]
        return value


def forms(product: Product, activations: Iterable[str]) -> Sequence[Product]:
    """A product with what a kernel may fuse of what follows, the longest first; the last is the product alone."""
    found, longest = [product], product
    while (step := _step(longest, activations)) is not None:
        longest = step
        if step.nodes[-1] is not step.view:  # a view alone is nothing to be fused
            found.append(step)
    return found[::-1]


def _step(product: Product, activations: Iterable[str]) -> Product | None:
    users = list(product.nodes[-1].users)
    if product.activation or not users:
        return None
    if len(users) == 1:
        for extend in (_viewed, _scaled, _biased):
            if (longer := extend(product, users[0])) is not None:
                return longer
    for activation in activations:
        nodes = follow(_activation(activation, product.result.dtype), product.nodes[-1])
        if nodes is not None and not _fused_anyway(nodes[-1]):
            return replace(product, nodes=(*product.nodes, *nodes), activation=activation)
    return None


def _fused_anyway(node: "Node") -> bool:
    """Whether TorchInductor computes a node inside a kernel of its own that must run either way.

    Where all that uses an activation is one pointwise operation or reduction, that kernel can as well start from the
    product, at no cost. In our kernel the activation gains nothing then, and takes time (experiments/results).
    """
    import torch

    operator = torch_hooks.OPERATOR.find()
    while len(node.users) == 1:
        (user,) = node.users
        tags = user.target.tags if isinstance(user.target, operator) else ()
        if torch.Tag.pointwise in tags or torch.Tag.reduction in tags:
            return True
        if user.target not in (*shapes(), aten().permute.default):
            return False
        node = user
    return False


def shapes() -> "tuple[torch._ops.OpOverload, ...]":
    """The operators that give a tensor another shape."""
    return aten().reshape.default, aten().view.default, aten()._unsafe_view.default


def _viewed(product: Product, user: "Node") -> Product | None:
    if user.target not in shapes() or product.view is not None or product.result.dim() != 2:
        return None
    if _known(user.meta["val"].shape[-1:]) != _known(product.result.shape[-1:]):
        return None
    return replace(product, nodes=(*product.nodes, user), view=user)


def _scaled(product: Product, user: "Node") -> Product | None:
    multiplied = user.target is aten().mul.Tensor
    if not (multiplied or user.target is aten().div.Tensor) or user.kwargs or product.bias is not None:
        return None
    other = other_argument(user, product.nodes[-1], swapped=multiplied)
    if user.meta["val"].dtype != product.result.dtype:
        return None
    factor: Node | float | None = None
    if isinstance(other, int | float) and not isinstance(other, bool) and math.isfinite(other):
        factor = other if multiplied else 1 / other if other else None
    elif multiplied and is_factor(other, product):
        factor = other
    if factor is None:
        return None
    return replace(product, nodes=(*product.nodes, user), factors=(*product.factors, factor))


def _biased(product: Product, user: "Node") -> Product | None:
    if user.target is not aten().add.Tensor or user.kwargs or product.bias is not None:
        return None
    other = other_argument(user, product.nodes[-1], swapped=True)
    if not is_row(other, product.result) or user.meta["val"].dtype != product.result.dtype:
        return None
    return replace(product, nodes=(*product.nodes, user), bias=other)


def other_argument(user: "Node", one: "Node", swapped: bool) -> Any:
    """The other argument of a node with two; None if `one` is the second and they can't be swapped."""
    first, second = user.args
    return second if first is one else first if swapped else None


def is_factor(node: Any, product: Product) -> bool:
    """Whether something is a node that a product can be scaled by: one fp32 element on its device."""
    import torch

    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return (
        isinstance(value, torch.Tensor)
        and value.dtype == torch.float32
        and value.device == product.a.meta["val"].device
        and _known(value.shape) in ((), (1,))
    )


def is_row(node: Any, result: "torch.Tensor") -> bool:
    """Whether something is a node that can be a bias: a vector along the columns of a result, of its type."""
    import torch

    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return (
        isinstance(value, torch.Tensor)
        and (value.dtype, value.device) == (result.dtype, result.device)
        and value.dim() == 1
        and (_known(value.shape), _known(value.stride())) == (_known(result.shape[-1:]), (1,))
    )


def _known(sizes: Iterable[Any]) -> tuple[int, ...] | None:
    """Sizes, if the compiler knows them all. Comparing an unknown size would specialise the graph to that size."""
    found = tuple(sizes)
    return found if all(isinstance(size, int) for size in found) else None


@cache
def _activation(name: str, dtype: "torch.dtype") -> "Graph":
    """The operations that TorchInductor decomposes an activation of a tensor of this type into."""
    function = getattr(aten(), name).default
    return decomposed(lambda x: function(x), 2, dtype)


def decomposed(function: "Callable[[torch.Tensor], torch.Tensor]", columns: int, dtype: "torch.dtype") -> "Graph":
    """The operations that TorchInductor decomposes a function of a matrix of so many columns into."""
    import torch

    decompositions = torch_hooks.DECOMPOSITIONS.find()()
    make_fx, no_modes = torch_hooks.MAKE_FX.find(), torch_hooks.NO_MODES.find()
    with no_modes():
        traced = make_fx(function, decompositions)(torch.zeros(2, columns, dtype=dtype))
    graph: Graph = traced.graph
    return graph


def follow(pattern: "Graph", start: "Node") -> "tuple[Node, ...] | None":
    """The nodes behind `start` that match a pattern; None if they do not, or if anything else uses the inner ones."""
    from torch.fx.node import map_arg

    found: dict[Node, Node] = {}
    for step in pattern.nodes:
        if step.op == "placeholder":
            found[step] = start
        elif step.op == "call_function":
            wanted = step.target, map_arg(step.args, found.__getitem__), map_arg(step.kwargs, found.__getitem__)
            users = found[step.all_input_nodes[0]].users
            match = next((user for user in users if (user.target, user.args, user.kwargs) == wanted), None)
            if match is None:
                return None
            found[step] = match
    *inner, last = found.values()
    inside = set(found.values())
    if any(user not in inside for node in inner for user in node.users):
        return None
    return (*inner[1:], last)
