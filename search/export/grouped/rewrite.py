"""Put our operator in the place of ``aten._grouped_mm``, where a bundle decides its product.

That is the form that the experts of transformers and torchtitan use: A [tokens, k] times the experts' B, with offsets
on the device that tell whose rows of A are whose. Other forms, of which gradients have some, stay as they are.

Where SwiGLU stands behind the product, and nothing else reads the product, both may be one kernel. A bundle may decide
both forms of a product: then that with SwiGLU goes first. Between the two transformers clears rows that are no
expert's: they are cleared behind SwiGLU instead, and not at all where nothing reads them. Rows of the second product
that are multiplied by the router's weights may be so in its kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from tilescout.search.export import torch_hooks
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice
from tilescout.search.export.epilogues import aten, decomposed, follow, other_argument
from tilescout.search.export.graph_nodes import Report, call, transposed, values
from tilescout.search.export.grouped.clearing import Clearing, clearing_of, is_unread
from tilescout.search.export.grouped.dispatch import GroupedDispatch, any_tokens, grouped_family
from tilescout.search.export.grouped.kernels import name_of_grouped
from tilescout.search.export.inductor_lowering import register_grouped
from tilescout.search.export.loaded_kernels import runs_on
from tilescout.search.export.torch_operator import define_grouped
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gated import GatedProblem
from tilescout.spaces.grouped import TYPES, GroupedProblem
from tilescout.spaces.problems import DTYPES
from tilescout.spaces.scaled import ScaledProblem

if TYPE_CHECKING:
    import torch
    from torch.fx import Graph, Node

GROUPED = "_grouped_mm"
"""The operator, among those of ``torch.ops.aten``."""


@dataclass(frozen=True)
class GroupedProduct:
    """A grouped product of a graph that a kernel could compute.

    Attributes
    ----------
    nodes
        The nodes that compute it, from the product on. The last is the result; nothing else uses the others.
    operands
        A [tokens, k], B [experts, k, n] and the ends of the groups [experts], as the graph has them.
    problem
        The product; its tokens stand for any.
    tokens
        How many; None where that is known only when the graph runs.
    clearing
        The clearing among the nodes; None without one.
    scale
        What its rows are multiplied by, [tokens, 1]; None if they are not.
    """

    nodes: "Sequence[Node]"
    operands: "Sequence[Node]"
    problem: GroupedProblem
    tokens: int | None
    clearing: Clearing | None = None
    scale: "Node | None" = None


def replace_grouped(graph: "Graph", bundle: Bundle, report: Report) -> None:
    """Put our operator in the place of every grouped product that the bundle decided for a kernel."""
    decided = {grouped_family(each.problem): each for each in bundle.grouped}
    for node in grouped_nodes(graph):
        product = match(node, bundle.arch)
        if product is None:
            report.unknown[GROUPED] += 1
            continue
        product = _longest(product, decided)
        name = grouped_family(product.problem)
        shown = name if product.tokens is None else name.replace("*", str(product.tokens), 1)
        dispatch = decided.get(name)
        if dispatch is None:
            report.unknown[shown] += 1
        elif not _may_serve(dispatch, product.tokens):
            report.left[shown] += 1
        else:
            report.replaced[shown] += 1
            _replace(graph, product, name_of_grouped(bundle, dispatch))


def _longest(product: GroupedProduct, decided: Mapping[str, GroupedDispatch]) -> GroupedProduct:
    """A product with what stands behind it, if kernels for that were decided; otherwise the product."""
    plain = product.problem
    for form, extended in ((GatedProblem, with_swiglu), (ScaledProblem, with_scale)):
        if form is GatedProblem and plain.n % 2:
            continue
        fused = decided.get(grouped_family(any_tokens(form.like(plain))))  # first: to look for a form takes long
        longer = extended(product) if fused is not None else None
        if fused is not None and longer is not None and _serves(fused, longer.tokens):
            return longer
    return product


def _may_serve(dispatch: GroupedDispatch, tokens: int | None) -> bool:
    """Whether a kernel of ours runs for so many tokens, or for some number where it is not known."""
    if tokens is None:
        return any(each.kernel for each in dispatch.ranges)
    return dispatch.choice(tokens) is not Choice.LIBRARY


def _serves(dispatch: GroupedDispatch, tokens: int | None) -> bool:
    """Whether kernels of ours run for so many tokens, and for any number that is in a range where it is not known.

    What is left to torch has no kernel of TorchInductor's for what is behind the product any more, but torch's own.
    """
    if tokens is None:
        return all(each.kernel for each in dispatch.ranges)
    return _may_serve(dispatch, tokens)


def find_grouped_products(graph: "Graph", arch: str) -> list[GroupedProduct]:
    """The grouped products of a graph that kernels for a target could compute; the graph stays as it is."""
    return [product for node in grouped_nodes(graph) if (product := match(node, arch)) is not None]


def grouped_nodes(graph: "Graph") -> "list[Node]":
    """The nodes of a graph that are torch's grouped products."""
    packet = getattr(aten(), GROUPED, None)  # what has no such operator has no such node
    return [] if packet is None else list(graph.find_nodes(op="call_function", target=packet.default))


def match(node: "Node", arch: str) -> GroupedProduct | None:
    """The grouped product that a node computes; None if no kernel of ours can."""
    import torch

    given: dict[str, Any] = dict(zip(torch_hooks.argument_names(node.target), node.args, strict=False))
    given |= node.kwargs
    operands = [each for each in (given["self"], given["mat2"], given.get("offs")) if isinstance(each, torch.fx.Node)]
    if len(operands) < 3 or given.get("bias") is not None:
        return None
    a, b, ends = (each.meta["val"] for each in operands)
    if (a.dim(), b.dim(), ends.dim()) != (2, 3, 1) or ends.dtype is not torch.int32:
        return None
    if not a.device == b.device == ends.device or not runs_on(a.device, arch):
        return None
    dtype = next((name for name in TYPES if getattr(torch, DTYPES[name].torch_name) is a.dtype), None)
    result = node.meta["val"]
    if dtype is None or b.dtype is not a.dtype or result.dtype is not a.dtype:
        return None
    experts, k, n = b.shape
    known = torch_hooks.KNOWN_TRUE.find()
    if not all(isinstance(size, int) for size in (experts, k, n)) or not known(ends.shape[0] == experts):
        return None
    strides = (*zip(a.stride(), (k, 1), strict=True), *zip(b.stride(), (n * k, 1, k), strict=True))
    if not all(known(has == wants) for has, wants in (*strides, (ends.stride(0), 1))):
        return None
    try:
        problem = any_tokens(GroupedProblem(experts, 1, n, k, dtype))
    except ProblemError:  # an empty product
        return None
    tokens = a.shape[0] if isinstance(a.shape[0], int) else None
    return GroupedProduct((node,), operands, problem, tokens)


def with_swiglu(product: GroupedProduct) -> GroupedProduct | None:
    """The product with SwiGLU that a product is the beginning of; None if it is none, or somebody else reads it."""
    plain = product.problem
    if plain.n % 2:
        return None
    product = _cleared(product)  # SwiGLU of zeros is zero
    last = product.nodes[-1]
    for way in range(_WAYS):
        if (nodes := follow(_pattern(way, plain.n, last.meta["val"].dtype), last)) is not None:
            problem = any_tokens(GatedProblem.like(plain))
            return replace(product, nodes=(*product.nodes, *nodes), problem=problem)
    return None


def with_scale(product: GroupedProduct) -> GroupedProduct | None:
    """The product scaled by rows that a product is the beginning of; None if it is none, or somebody else reads it."""
    import torch

    plain, rows = product.problem, product.operands[0].meta["val"].shape[0]
    product = _cleared(product)
    last = product.nodes[-1]
    if (user := _only_user(last, _convert())) is not None and user.args[1] is torch.float32:
        product, last = replace(product, nodes=(*product.nodes, user)), user
    if (user := _only_user(last, aten().mul.Tensor)) is None:
        return None
    scale, known = other_argument(user, last, swapped=True), torch_hooks.KNOWN_TRUE.find()
    value = scale.meta["val"] if isinstance(scale, torch.fx.Node) else None
    if value is None or value.dim() != 2 or not value.is_floating_point() or value.device != last.meta["val"].device:
        return None
    if not known(value.shape[0] == rows) or not known(value.shape[1] == 1) or plain.n == 1:
        return None
    problem = any_tokens(ScaledProblem.like(plain))
    return replace(product, nodes=(*product.nodes, user), problem=problem, scale=scale)


def _only_user(node: "Node", target: Any) -> "Node | None":
    """The only user of a node, if it is of an operator; else None."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


def _convert() -> Any:
    import torch

    return torch.ops.prims.convert_element_type.default


def _cleared(product: GroupedProduct) -> GroupedProduct:
    """The product with the clearing behind it, if there is one."""
    clearing = clearing_of(product.nodes[-1])
    return product if clearing is None else replace(product, nodes=(*product.nodes, clearing.node), clearing=clearing)


_Halves = tuple["torch.Tensor", ...]
_HALVES: Sequence[Callable[["torch.Tensor", int], _Halves]] = (
    lambda x, half: x.chunk(2, dim=-1),
    lambda x, half: x.chunk(2, dim=1),
    lambda x, half: (x[..., :half], x[..., half:]),
    lambda x, half: (x[..., :half], x[..., half : 2 * half]),  # `tensor_split`, too
    lambda x, half: (x.narrow(-1, 0, half), x.narrow(-1, half, half)),
    lambda x, half: x.split([half, half], dim=-1),  # another operator than one size gives, which is `chunk`'s
    lambda x, half: x.split([half, half], dim=1),
)
_WAYS = 2 * len(_HALVES)
"""The ways in which models write SwiGLU of a matrix, the gate before up."""


@cache
def _pattern(way: int, n: int, dtype: "torch.dtype") -> "Graph":
    """SwiGLU of a matrix of n columns in one of the ways, traced."""
    from torch.nn.functional import silu

    def gated(product: "torch.Tensor") -> "torch.Tensor":
        gate, up = _HALVES[way // 2](product, n // 2)
        return up * silu(gate) if way % 2 else silu(gate) * up

    return decomposed(gated, n, dtype)


def _replace(graph: "Graph", product: GroupedProduct, decision: str) -> None:
    """Replace one product; the operator takes A [tokens, k], B [experts, n, k] and the ends of the groups."""
    import torch

    last = product.nodes[-1]
    with graph.inserting_before(last):
        a, b, ends = product.operands
        operands: tuple[Any, ...] = (a, transposed(graph, b), ends, decision)
        if product.scale is not None:
            scale = call(graph, aten().squeeze.dim, product.scale, 1)
            if scale.meta["val"].dtype is not torch.float32:
                scale = call(graph, _convert(), scale, torch.float32)
            operands = (*operands, scale)
        made = call(graph, define_grouped(), *operands)
    made.meta = {**last.meta, "val": made.meta["val"]}
    made.meta.pop("tensor_meta", None)
    if not register_grouped():
        # The strides that the operator's tag speaks of; without them Inductor is free to give any.
        made.meta["eager_input_vals"] = values(operands), {}
    clearing, dtype = product.clearing, last.meta["val"].dtype
    with graph.inserting_before(last):
        if clearing is not None and not is_unread(clearing, ends, last):
            made = call(graph, aten().where.self, clearing.rows, clearing.zero, made)
        if made.meta["val"].dtype is not dtype:  # a scale in fp32 makes the result one
            made = call(graph, _convert(), made, dtype)
    last.replace_all_uses_with(made)
    for node in reversed(product.nodes):
        graph.erase_node(node)
