"""Which matrix products of a traced graph a bundle has decided, and putting our operator in their place.

Works on the graphs that TorchInductor lowers: functional, with a fake tensor in ``meta["val"]`` of every node.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice
from tilescout.search.export.kernels import device_type, family, name_of, strides_of
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
    """A matrix product in a graph: A [.., m, k] @ B [.., k, n], plus a bias if there is one, rectified if it is."""

    node: "Node"
    a: "Node"
    b: "Node"
    bias: "Node | None" = None
    activation: str = ""

    @property
    def last(self) -> "Node":
        """The node whose result it is."""
        return next(iter(self.node.users)) if self.activation else self.node


def replace_products(graph: "Graph", bundle: Bundle, report: Report) -> None:
    """Put our operator in the place of every matrix product that the bundle decided for our kernels."""
    aten = _aten()
    families = {family(decision.problem) for decision in bundle.ours}
    for target, match in _matchers().items():
        for node in graph.find_nodes(op="call_function", target=target):
            product = match(node)
            problems = _problems(product, bundle) if product is not None else []
            if product is None or not problems:
                report.unknown[target.name().removeprefix("aten::")] += 1
                continue
            static = isinstance(product.a.meta["val"].shape[-2], int)
            known = [bundle.by_problem[problem] for problem, _ in problems if problem in bundle.by_problem]
            if static:
                decided = {decision.problem for decision in known if decision.choice is Choice.OURS}
                found = next(((problem, form) for problem, form in problems if problem in decided), None)
            else:
                found = next(((problem, form) for problem, form in problems if family(problem) in families), None)
            shown = str if static else family
            if found is None:
                (report.left if static and known else report.unknown)[shown(problems[-1][0])] += 1
                continue
            problem, form = found
            report.replaced[shown(problem)] += 1
            _replace(graph, form, name_of(bundle, problem), aten)


@cache
def _aten() -> Any:
    import torch

    return torch.ops.aten


@cache
def _matchers() -> "Mapping[torch._ops.OpOverload, Callable[[Node], _Product | None]]":
    aten = _aten()
    return {aten.mm.default: _plain, aten.bmm.default: _plain, aten.addmm.default: _with_bias}


def _plain(node: "Node") -> _Product | None:
    return _Product(node, *node.args) if len(node.args) == 2 and not node.kwargs else None  # type: ignore[arg-type]


def _with_bias(node: "Node") -> _Product | None:
    if len(node.args) != 3 or any(node.kwargs.get(name, 1) != 1 for name in ("beta", "alpha")):
        return None
    bias, a, b = node.args
    return _Product(node, a, b, bias)  # type: ignore[arg-type]


def _forms(product: _Product) -> Sequence[_Product]:
    """The product with the activation that alone uses its result, if a kernel may fuse that, and without."""
    users = list(product.node.users)
    if len(users) == 1 and users[0].target is _aten().relu.default:
        return replace(product, activation="relu"), product
    return (product,)


def _problems(product: _Product, bundle: Bundle) -> Sequence[tuple[GemmProblem, _Product]]:
    """The problems that a product is, the one that fuses most first; where m is not known, theirs stands for any.

    There are none if no kernel of ours could have been decided for it, and several where strides fit several layouts.
    """
    a, b = product.a.meta.get("val"), product.b.meta.get("val")
    if a is None or b is None or a.device != b.device or a.device.type != device_type(bundle.arch):
        return []
    dtype = _dtypes().get(a.dtype)
    if dtype is None or b.dtype != a.dtype or not _is_row(product.bias, a.dtype, b.shape[-1]):
        return []
    *batches, m, k = a.shape
    n, batch = b.shape[-1], batches[0] if batches else 1
    if not all(isinstance(size, int) for size in (batch, n, k)):
        return []
    layouts = [
        along_a + along_b
        for along_a in "km"
        for along_b in "kn"
        if _has_strides(a, strides_of(m, k, along_a == "m"))
        and _has_strides(b.transpose(-2, -1), strides_of(n, k, along_b == "n"))
    ]
    sizes = m if isinstance(m, int) else 1, n, k, batch
    found = []
    for form in _forms(product):
        for layout in layouts:
            try:
                problem = GemmProblem(
                    *sizes, dtype=dtype, layout=layout, bias=form.bias is not None, activation=form.activation
                )
            except ProblemError:  # an empty product, or a layout that the type can't have
                continue
            found.append((problem, form))
    return found


def _is_row(bias: "Node | None", dtype: "torch.dtype", n: Any) -> bool:
    """Whether there is no bias, or one that is a vector along n."""
    if bias is None:
        return True
    value = bias.meta.get("val")
    return value is not None and value.dtype == dtype and tuple(value.shape) == (n,) and value.stride() == (1,)


@cache
def _dtypes() -> "Mapping[torch.dtype, str]":
    import torch

    return {getattr(torch, dtype.torch_name): name for name, dtype in DTYPES.items()}


def _has_strides(tensor: "torch.Tensor", strides: Sequence[Any]) -> bool:
    """Whether a tensor has these strides, or the last of them, but for dimensions of size 1."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    wanted = strides[-tensor.dim() :]
    return all(
        statically_known_true(size == 1) or statically_known_true(has == wants)
        for size, has, wants in zip(tensor.shape, tensor.stride(), wanted, strict=True)
    )


def _replace(graph: "Graph", product: _Product, decision: str, aten: Any) -> None:
    """Replace one product; the operator takes A [batch, m, k] and B [batch, n, k], all else are views."""
    _, compiled = define()
    last, flat = product.last, product.a.meta["val"].dim() == 2
    with graph.inserting_before(last):
        a, b = product.a, _transposed(graph, product.b, aten)
        if flat:
            a, b = _call(graph, aten.unsqueeze.default, a, 0), _call(graph, aten.unsqueeze.default, b, 0)
        result = computed = _call(graph, compiled, a, b, product.bias, decision)
        if flat:
            result = _call(graph, aten.squeeze.dim, computed, 0)
    for made in (computed, result):
        made.meta = {**product.node.meta, "val": made.meta["val"]}
        made.meta.pop("tensor_meta", None)
    last.replace_all_uses_with(result)
    for node in dict.fromkeys((last, product.node)):
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
