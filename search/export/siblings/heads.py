"""Heads of attention that read the same keys and values, which then need no copies.

With grouped-query attention several heads of queries share a head of keys and values. Where there is a mask, as over a
static cache, models copy keys and values for each head that reads them (``repeat_kv`` in transformers), and attention
reads the copies. Where each sequence decodes one token, that is most of what attention takes. cuDNN's kernel, which
runs it on Hopper, takes keys and values of fewer heads than queries as they are; so it is given these. It is the same
kernel that reads the copies (the study shared-heads).
"""

from typing import TYPE_CHECKING, Any

from tilescout.search.export import torch_hooks
from tilescout.search.export.epilogues import aten, shapes

if TYPE_CHECKING:
    from torch.fx import Graph, Node


def read_in_place(graph: "Graph") -> list[int]:
    """Have attention read shared keys and values where they are.

    Parameters
    ----------
    graph
        A graph that TorchInductor lowers.

    Returns
    -------
    list
        Of each attention that does, the bytes of the copies that it read; where a size is dynamic, as it was traced.
    """
    found = [node for target in _attentions() for node in graph.find_nodes(op="call_function", target=target)]
    return [copied for node in found if (copied := _read_in_place(graph, node))]


def _attentions() -> "tuple[Any, ...]":
    """The operators that take fewer heads of keys than of queries; Q, K and V are their first arguments."""
    return (
        aten()._scaled_dot_product_cudnn_attention.default,
        aten()._scaled_dot_product_flash_attention_for_cpu.default,
    )


def _read_in_place(graph: "Graph", attention: "Node") -> int:
    """Change an attention; the bytes of the copies that it read, 0 if it stays as it is."""
    query, key, value, *others = attention.args
    keys, values = _shared(key), _shared(value)
    used = {user.args[1] for user in attention.users if user.users}
    if keys is None or values is None or used != {0}:  # a step of training keeps more than the result
        return 0
    copied = _bytes(key) + _bytes(value)
    attention.args = (query, keys, values, *others)
    attention.meta.pop("eager_input_vals", None)
    _erase(graph, key)
    if value is not key:
        _erase(graph, value)
    return copied


def _bytes(node: Any) -> int:
    numbers = node.meta["val"].numel()
    known = numbers if isinstance(numbers, int) else torch_hooks.size_hint(numbers)
    return (known or 1) * int(node.meta["val"].itemsize)


def _shared(node: Any) -> "Node | None":
    """Keys or values that a node copies for heads that share them; None if it does no such thing."""
    if node.target not in shapes():
        return None
    wide = node.all_input_nodes[0]
    if wide.target is aten().clone.default:  # one head that all share need not be copied
        wide = wide.all_input_nodes[0]
    if wide.target is not aten().expand.default:
        return None
    view = wide.all_input_nodes[0]
    if view.target is not aten().unsqueeze.default or view.args[1] != 2:
        return None
    whole: Node = view.all_input_nodes[0]
    batch, heads, *rest = whole.meta["val"].shape
    copies = wide.meta["val"].shape[2]
    together = isinstance(heads, int) and isinstance(copies, int) and copies > 1
    return whole if together and node.meta["val"].shape == (batch, heads * copies, *rest) else None


def _erase(graph: "Graph", node: Any) -> None:
    """Erase a node that nothing uses, and what was there for it alone."""
    if not node.users and node.op == "call_function":
        before = node.all_input_nodes
        graph.erase_node(node)
        for each in before:
            _erase(graph, each)
