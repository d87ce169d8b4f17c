"""Find the matrix products of a traced graph that a bundle decides, and put our operator in their place.

Works on the graphs that TorchInductor lowers: functional, with a fake tensor in ``meta["val"]`` of every node.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.search.export import torch_hooks
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice
from tilescout.search.export.epilogues import Product, aten, forms, is_factor, is_row
from tilescout.search.export.graph_nodes import Report, call, inherit, transposed, values
from tilescout.search.export.grouped.rewrite import GROUPED, grouped_nodes, replace_grouped
from tilescout.search.export.inductor_lowering import register as register_lowering
from tilescout.search.export.loaded_kernels import name_of, runs_on, strides_of
from tilescout.search.export.ranges import family
from tilescout.search.export.torch_operator import define
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import ACTIVATIONS, GemmProblem
from tilescout.spaces.problems import DTYPES

if TYPE_CHECKING:
    import torch
    from torch.fx import Graph, Node


def replace_products(graph: "Graph", bundle: Bundle, report: Report) -> None:
    """Put our operator in the place of every matrix product that the bundle decided for a kernel."""
    families = {name for name, ranges in bundle.ranges.items() if any(each.kernel for each in ranges)}
    activations = sorted({bundle.problems[name].activation for name in families} - {""})
    for target, match in _matchers().items():
        for node in graph.find_nodes(op="call_function", target=target):
            product = match(node)
            problems = _problems(product, bundle.arch, activations) if product is not None else []
            if product is None or not problems:
                report.unknown[_name(target)] += 1
                continue
            static = isinstance(product.a.meta["val"].shape[-2], int)
            known = [choice for problem, _ in problems if (choice := bundle.choice(problem)) is not None]
            if static:
                others = (None, Choice.LIBRARY)
                chosen = ((problem, form) for problem, form in problems if bundle.choice(problem) not in others)
                found = next(chosen, None)
            else:
                found = next(((problem, form) for problem, form in problems if family(problem) in families), None)
            shown = str if static else family
            if found is None:
                (report.left if static and known else report.unknown)[shown(problems[-1][0])] += 1
                continue
            problem, form = found
            report.replaced[shown(problem)] += 1
            _replace(graph, form, name_of(bundle, problem))
    replace_grouped(graph, bundle, report)


@dataclass(frozen=True)
class Sighting:
    """A matrix product of a graph that a kernel could compute.

    Attributes
    ----------
    problems
        The problems that it may be, the one that fuses most first; at least one.
    dynamic
        Whether m is known only when the graph runs; the problems then have the m that the graph was traced with.
    """

    problems: Sequence[GemmProblem]
    dynamic: bool


def find_products(graph: "Graph", arch: str) -> tuple[list[Sighting], Counter[str]]:
    """The matrix products of a graph, in no particular order; it stays as it is.

    Parameters
    ----------
    graph
        The graph.
    arch
        The compiler's target.

    Returns
    -------
    tuple
        The products that kernels for the target could compute, and how many others there are of each operator.
    """
    found, others = [], Counter({GROUPED: len(grouped_nodes(graph))})
    plus_matrix = aten().baddbmm.default
    others[_name(plus_matrix)] += len(graph.find_nodes(op="call_function", target=plus_matrix))
    for target, match in _matchers().items():
        for node in graph.find_nodes(op="call_function", target=target):
            product = match(node)
            problems = _problems(product, arch, ACTIVATIONS) if product is not None else []
            m = product.a.meta["val"].shape[-2] if product is not None and problems else None
            traced = m if m is None or isinstance(m, int) else torch_hooks.size_hint(m)
            if traced is None:
                others[_name(target)] += 1
                continue
            sizes = [replace(problem, m=traced) for problem, _ in problems]
            found.append(Sighting(tuple(dict.fromkeys(sizes)), not isinstance(m, int)))
    return found, +others


def _name(operator: "torch._ops.OpOverload") -> str:
    return str(operator.name()).removeprefix("aten::")


@cache
def _matchers() -> "Mapping[torch._ops.OpOverload, Callable[[Node], Product | None]]":
    return {
        aten().mm.default: _plain,
        aten().bmm.default: _plain,
        aten().addmm.default: _with_bias,
        aten()._scaled_mm.default: _with_scales,
    }


def _plain(node: "Node") -> Product | None:
    return Product((node,), *node.args) if len(node.args) == 2 and not node.kwargs else None  # type: ignore[arg-type]


def _with_bias(node: "Node") -> Product | None:
    bias, a, b = node.args
    alpha = node.kwargs.get("alpha", 1)
    if node.kwargs.get("beta", 1) != 1 or not isinstance(alpha, int | float) or not is_row(bias, node.meta["val"]):
        return None
    return Product((node,), a, b, () if alpha == 1 else (alpha,), bias)  # type: ignore[arg-type]


def _with_scales(node: "Node") -> Product | None:
    names = torch_hooks.argument_names(node.target)
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    bias, scales = given.get("bias"), (given["scale_a"], given["scale_b"])
    product = Product((node,), given["self"], given["mat2"], scales, bias, fast=bool(given.get("use_fast_accum")))
    one = all(is_factor(scale, product) for scale in scales) and given.get("scale_result") is None
    return product if one and (bias is None or is_row(bias, product.result)) else None


def _problems(product: Product, arch: str, activations: Sequence[str]) -> Sequence[tuple[GemmProblem, Product]]:
    """The problems that a product may be, the one that fuses most first. An unknown m is written as 1.

    There are none if no kernel of ours can compute it, and several if its strides fit several layouts.
    """
    a, b = product.a.meta.get("val"), product.b.meta.get("val")
    if a is None or b is None or a.device != b.device or not runs_on(a.device, arch):
        return []
    dtype, out = _dtypes().get(a.dtype), _dtypes().get(product.result.dtype)
    if dtype is None or out is None or b.dtype != a.dtype:
        return []
    *batches, m, k = a.shape
    n, batch = b.shape[-1], batches[0] if batches else 1
    if not all(isinstance(size, int) for size in (batch, n, k)):
        return []
    turned = b.transpose(-2, -1)
    layouts = [
        along_a + along_b
        for along_a in "km"
        if _has_strides(a, strides_of(m, k, along_a == "m"))
        for along_b in "kn"
        if _has_strides(turned, strides_of(n, k, along_b == "n"))
    ]
    sizes = m if isinstance(m, int) else 1, n, k, batch
    found = []
    for form in forms(product, activations):
        for layout in layouts:
            try:
                epilogue = bool(form.factors), form.bias is not None, form.activation
                problem = GemmProblem(*sizes, dtype, out, layout, *epilogue, fast=form.fast)
            except ProblemError:  # an empty product, or a type or layout that kernels can't have
                continue
            found.append((problem, form))
    return found


@cache
def _dtypes() -> "Mapping[torch.dtype, str]":
    import torch

    return {getattr(torch, dtype.torch_name): name for name, dtype in DTYPES.items()}


def _has_strides(tensor: "torch.Tensor", strides: Sequence[Any]) -> bool:
    """Whether a tensor has these strides, or the last of them, but for dimensions of size 1."""
    statically_known_true = torch_hooks.KNOWN_TRUE.find()
    wanted = strides[-tensor.dim() :]
    return all(
        statically_known_true(size == 1) or statically_known_true(has == wants)
        for size, has, wants in zip(tensor.shape, tensor.stride(), wanted, strict=True)
    )


def _replace(graph: "Graph", product: Product, decision: str) -> None:
    """Replace one product; the operator takes A [batch, m, k] and B [batch, n, k], all else are views."""
    _, compiled = define()
    last, flat = product.nodes[-1], product.a.meta["val"].dim() == 2
    with graph.inserting_before(last):
        a, b = product.a, transposed(graph, product.b)
        if flat:
            a, b = (call(graph, aten().unsqueeze.default, operand, 0) for operand in (a, b))
        operands = a, b, _alpha(graph, product), product.bias, decision
        made = [call(graph, compiled, *operands)]
        if flat:
            made.append(call(graph, aten().squeeze.dim, made[-1], 0))
        if product.view is not None:
            made.append(call(graph, aten().reshape.default, made[-1], product.view.args[1]))
    for node in made:
        inherit(node, product.nodes[0])
    if not register_lowering():
        # The strides that the operator's tag speaks of; without them Inductor is free to give any.
        made[0].meta["eager_input_vals"] = values(operands), {}
    last.replace_all_uses_with(made[-1])
    for node in reversed(product.nodes):
        graph.erase_node(node)


def _alpha(graph: "Graph", product: Product) -> "Node | None":
    """The factor of a product as the operator takes it, fp32 [1] on its device; None without one."""
    import torch

    if not product.factors:
        return None
    number = math.prod(factor for factor in product.factors if isinstance(factor, int | float))
    tensors = [factor for factor in product.factors if isinstance(factor, torch.fx.Node)]
    if not tensors:
        device = product.a.meta["val"].device
        return call(graph, aten().full.default, [1], float(number), dtype=torch.float32, device=device)
    first, *others = (call(graph, aten().reshape.default, tensor, [1]) for tensor in tensors)
    for factor in (*others, *((number,) if number != 1 else ())):
        first = call(graph, aten().mul.Tensor, first, factor)
    return first
