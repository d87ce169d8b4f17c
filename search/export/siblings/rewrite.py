"""Products that share A as one call, so that a CUDA graph runs their kernels side by side.

The projections of a transformer's block read the same activations: query, key and value, gate and up. With few rows
each of these kernels reads a weight and waits for memory, at its beginning and at its end, while most multiprocessors
have nothing to do. In a graph the kernels of such products are branches, which the device runs at the same time; called
one by one they run one after the other, as a fork of streams would keep the host for longer than it gains.

The results lie in one piece of memory, each where the next 256 bytes begin.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilescout.search.export.epilogues import aten, shapes
from tilescout.search.export.graph_nodes import call, inherit
from tilescout.search.export.inductor_lowering import register_together as register_lowering
from tilescout.search.export.loaded_kernels import bundle_of, family_of, find_family
from tilescout.search.export.torch_operator import SEPARATOR, define, define_together, places_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

MOST_ROWS = 64
"""With more rows a kernel keeps all multiprocessors busy by itself."""


def join_products(graph: "Graph") -> int:
    """Make one call of replaced products that share A and read it alone; the number of products that were joined.

    Parameters
    ----------
    graph
        A graph in which products were replaced, by whichever bundles.
    """
    if not register_lowering():
        return 0
    _, single = define()
    groups: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for node in graph.find_nodes(op="call_function", target=single):
        a, *_, name = _arguments(node)
        if _is_joinable(node):
            how = tuple((view.target, str(view.args[1:])) for view in _views(a))
            groups[_beneath(a), how, find_family(name).out].append(node)
    joined = [sorted(nodes) for nodes in groups.values() if len(nodes) > 1]
    for nodes in joined:
        _join(graph, nodes)
    return sum(map(len, joined))


def _arguments(node: "Node") -> Any:
    """A, B, alpha, bias and the decision's name of a replaced product."""
    return node.args


def _is_joinable(node: "Node") -> bool:
    """Whether a product of few rows reads a weight, and its kernel needs nothing but its operands."""
    a, b, alpha, bias, name = _arguments(node)
    batch, m, _ = a.meta["val"].shape
    if not isinstance(m, int) or m > MOST_ROWS or batch != 1 or alpha is not None:
        return False
    bundle = bundle_of(name)
    served = next((each for each in bundle.ranges[family_of(name)] if each.low <= m <= each.high), None)
    if served is None or not served.kernel:
        return False
    kernel = bundle.kernels[served.kernel]
    alone = not kernel.library and not kernel.scratch_bytes
    return alone and all(_beneath(each).op == "placeholder" for each in (b, bias) if each is not None)


def _views(node: "Node") -> "list[Node]":
    """The views that a node is made by, the last one first."""
    found = []
    while node.op == "call_function" and node.target in (*shapes(), aten().unsqueeze.default, aten().permute.default):
        found.append(node)
        node = node.all_input_nodes[0]
    return found


def _beneath(node: "Node") -> "Node":
    """The node that a node is a view of; the node itself if it is none."""
    views = _views(node)
    return views[-1].all_input_nodes[0] if views else node


def _join(graph: "Graph", nodes: "Sequence[Node]") -> None:
    first, given = nodes[0], [_arguments(node) for node in nodes]
    names, families = [each[4] for each in given], [find_family(each[4]) for each in given]
    for _, b, _, bias, _ in given[1:]:
        for view in (*reversed(_views(b)), *(reversed(_views(bias)) if bias is not None else ())):
            first.prepend(view)  # nothing but placeholders is needed for it
    a, *_ = given[0]
    rows = a.meta["val"].shape[1]
    with graph.inserting_before(first):
        operands = a, [each[1] for each in given], [each[3] for each in given], SEPARATOR.join(names)
        whole = call(graph, define_together(), *operands)
        inherit(whole, first)
        for node, family, start in zip(nodes, families, places_of(families, rows), strict=False):
            part = call(graph, aten().slice.Tensor, whole, 0, start, start + rows * family.problem.n)
            made = call(graph, aten().view.default, part, [1, rows, family.problem.n])
            inherit(part, node)
            inherit(made, node)
            node.replace_all_uses_with(made)
    for node in nodes:
        graph.erase_node(node)
