"""Which matrix products of a traced graph a bundle has decided, and putting our operator in their place.

Works on the graphs that TorchInductor lowers: functional, with a fake tensor in ``meta["val"]`` of every node.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice
from tilescout.search.export.kernels import device_type, family, name_of
from tilescout.search.export.operator import define
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import DTYPES

if TYPE_CHECKING:
    import torch
    from torch.fx import Graph, Node


@dataclass
class Report:
    """What became of the matrix products that were looked at, by problem; ``*`` stands for an unknown m.

    Attributes
    ----------
    replaced
        Run our kernels now.
    left
        Are known and were left to the library, because that was the decision.
    unknown
        Nothing is known of.
    """

    replaced: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class _Product:
    """A matrix product in a graph: A [.., m, k] @ B [.., k, n], plus a bias if there is one."""

    a: "Node"
    b: "Node"
    bias: "Node | None" = None


def replace_products(graph: "Graph", bundle: Bundle, report: Report) -> None:
    """Put our operator in the place of every matrix product that the bundle decided for our kernels."""
    aten = _aten()
    decided = {family(decision.problem) for decision in bundle.ours}
    for target, match in _matchers().items():
        for node in graph.find_nodes(op="call_function", target=target):
            product = match(node)
            problem = _problem(product, bundle) if product is not None else None
            if product is None or problem is None:
                report.unknown[target.name().removeprefix("aten::")] += 1
                continue
            sized, static = problem
            decision = bundle.by_problem.get(sized) if static else None
            ours = decision is not None and decision.choice is Choice.OURS if static else family(sized) in decided
            shown = str(sized) if static else family(sized)
            if not ours:
                (report.left if decision is not None else report.unknown)[shown] += 1
                continue
            report.replaced[shown] += 1
            _replace(graph, node, product, name_of(bundle, sized), aten)


@cache
def _aten() -> Any:
    import torch

    return torch.ops.aten


@cache
def _matchers() -> "Mapping[torch._ops.OpOverload, Callable[[Node], _Product | None]]":
    aten = _aten()
    return {aten.mm.default: _plain, aten.bmm.default: _plain, aten.addmm.default: _with_bias}


def _plain(node: "Node") -> _Product | None:
    return _Product(*node.args) if len(node.args) == 2 and not node.kwargs else None  # type: ignore[arg-type]


def _with_bias(node: "Node") -> _Product | None:
    if len(node.args) != 3 or any(node.kwargs.get(name, 1) != 1 for name in ("beta", "alpha")):
        return None
    bias, a, b = node.args
    return _Product(a, b, bias)  # type: ignore[arg-type]


def _problem(product: _Product, bundle: Bundle) -> tuple[GemmProblem, bool] | None:
    """The problem that a product is, and whether its m is known; if it is not, the problem's m stands for any.

    None if no kernel of ours could have been decided for it.
    """
    a, b = product.a.meta.get("val"), product.b.meta.get("val")
    if a is None or b is None or a.device != b.device or a.device.type != device_type(bundle.arch):
        return None
    dtype = _dtypes().get(a.dtype)
    if dtype is None or b.dtype != a.dtype or product.bias is not None:  # no kernel adds a bias yet
        return None
    *batches, m, k = a.shape
    n = b.shape[-1]
    batch = batches[0] if batches else 1
    if not all(isinstance(size, int) for size in (batch, n, k)):
        return None
    if not _has_strides(a, (m * k, k, 1)) or not _has_strides(b, (n * k, 1, k)):
        return None
    static = isinstance(m, int)
    try:
        return GemmProblem(m if static else 1, n, k, batch, dtype), static
    except ProblemError:  # an empty product
        return None


@cache
def _dtypes() -> "Mapping[torch.dtype, str]":
    import torch

    return {getattr(torch, dtype.torch_name): name for name, dtype in DTYPES.items()}


def _has_strides(tensor: "torch.Tensor", strides: Sequence[Any]) -> bool:
    """Whether a tensor has these strides (those of its last dimensions), but for dimensions of size 1."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    wanted = strides[-tensor.dim() :]
    return all(
        statically_known_true(size == 1) or statically_known_true(has == wants)
        for size, has, wants in zip(tensor.shape, tensor.stride(), wanted, strict=True)
    )


def _replace(graph: "Graph", node: "Node", product: _Product, decision: str, aten: Any) -> None:
    """Replace one product; the operator takes A [batch, m, k] and B [batch, n, k], all else are views."""
    _, compiled = define()
    flat = product.a.meta["val"].dim() == 2
    with graph.inserting_before(node):
        a, b = product.a, _transposed(graph, product.b, aten)
        if flat:
            a, b = _call(graph, aten.unsqueeze.default, a, 0), _call(graph, aten.unsqueeze.default, b, 0)
        result = computed = _call(graph, compiled, a, b, decision)
        if flat:
            result = _call(graph, aten.squeeze.dim, computed, 0)
    for made in (computed, result):
        value = made.meta["val"]
        made.meta = {**node.meta, "val": value}
        made.meta.pop("tensor_meta", None)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _transposed(graph: "Graph", b: "Node", aten: Any) -> "Node":
    """B with its last two dimensions swapped: what it is a transposed view of, where it is one."""
    order = [1, 0] if b.meta["val"].dim() == 2 else [0, 2, 1]
    if b.target is aten.permute.default and list(b.args[1]) == order:  # type: ignore[arg-type]
        return b.args[0]  # type: ignore[return-value]
    return _call(graph, aten.permute.default, b, order)


def _call(graph: "Graph", target: Any, *args: Any) -> "Node":
    """A new node, with the fake tensor that its operator makes of those of its arguments."""
    from torch._guards import detect_fake_mode
    from torch.fx import Node

    made = graph.call_function(target, args)
    fakes = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
    mode = detect_fake_mode(fakes)
    assert mode is not None
    with mode:
        made.meta["val"] = target(*fakes)
    return made
