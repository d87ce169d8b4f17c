"""Heads of attention that read the same keys and values, which then need no copies.

With grouped-query attention several heads of queries share a head of keys and values. Where there is a mask, as over a
static cache, models copy keys and values for each head that reads them (``repeat_kv`` in transformers), and attention
reads the copies. Where each sequence decodes one token, that is most of what attention takes. cuDNN's kernel, which
runs it on Hopper, takes keys and values of fewer heads than queries as they are; so it is given these. It is the same
kernel that reads the copies (the study shared-heads).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilescout.search.export import torch_hooks
from tilescout.search.export.epilogues import aten, shapes

if TYPE_CHECKING:
    from torch.fx import Graph, Node

_HEADS = 1
"""The dimension of heads: keys and values are [batch, heads, tokens, size]."""

_ALIGNED = 16
"""Bytes that the place of keys and values is a multiple of. A copy is, what is read in place must be too."""


@dataclass(frozen=True)
class _Copy:
    """Keys or values that are copied for heads that share them.

    Attributes
    ----------
    whole
        The keys or values, as they are.
    nodes
        The operators that copy them, the last one first.
    """

    whole: "Node"
    nodes: "tuple[Node, ...]"

    @property
    def heads(self) -> int:
        return int(self.whole.meta["val"].shape[_HEADS])

    @property
    def bytes(self) -> int:
        """The size of the copy, as it was traced where it is dynamic; of one head that all share, a view, it is 0."""
        if all(node.target is not aten().clone.default for node in self.nodes):
            return 0
        copied = self.nodes[0].meta["val"]
        numbers = copied.numel()
        known = numbers if isinstance(numbers, int) else torch_hooks.size_hint(numbers)
        return (known or 1) * int(copied.itemsize)


def read_in_place(graph: "Graph") -> list[int]:
    """Have attention read shared keys and values where they are.

    Parameters
    ----------
    graph
        A graph that TorchInductor lowers.

    Returns
    -------
    list
        Of each attention that does, the bytes that are not copied any more: 0 if others read the copies too, or views
        did in their place; where a size is dynamic, as it was traced.
    """
    found = [node for target in _attentions() for node in graph.find_nodes(op="call_function", target=target)]
    return [saved for node in found if (saved := _read_in_place(graph, node)) is not None]


def _attentions() -> "tuple[Any, ...]":
    """The operators that take fewer heads of keys than of queries; Q, K and V are their first arguments."""
    return (
        aten()._scaled_dot_product_cudnn_attention.default,
        aten()._scaled_dot_product_flash_attention_for_cpu.default,
    )


def _read_in_place(graph: "Graph", attention: "Node") -> int | None:
    """Change an attention; the bytes that are not copied any more, None if it stays as it is."""
    query, key, value, *others = attention.args
    keys, values = _copy(key), _copy(value)
    used = {user.args[1:] for user in attention.users if user.users}
    if keys is None or values is None or used != {(0,)}:  # a step of training keeps more than the result
        return None
    if keys.heads != values.heads:
        return None
    attention.args = (query, keys.whole, values.whole, *others)
    attention.meta.pop("eager_input_vals", None)
    return sum(_erased(graph, each) for each in {keys, values})


def _copy(node: Any) -> _Copy | None:
    """The copy that a node ends; None if it is none, or can't be done without."""
    if node.target not in shapes():
        return None
    nodes = [node, node.all_input_nodes[0]]
    if nodes[-1].target is aten().clone.default:
        nodes.append(nodes[-1].all_input_nodes[0])
    wide = nodes[-1]
    if wide.target is not aten().expand.default:
        return None
    view = wide.all_input_nodes[0]
    if view.target is not aten().unsqueeze.default or view.args[1] not in (2, -3):
        return None
    whole = view.all_input_nodes[0]
    batch, heads, *rest = whole.meta["val"].shape
    copies = wide.meta["val"].shape[2]
    together = isinstance(heads, int) and isinstance(copies, int) and copies > 1
    if together and _same(node.meta["val"].shape, (batch, heads * copies, *rest)) and _is_aligned(whole):
        return _Copy(whole, (*nodes, view))
    return None


def _same(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether sizes are the same, whatever dynamic ones will be; nothing is assumed of these."""
    known = torch_hooks.KNOWN_TRUE.find()
    return len(sizes) == len(others) and all(known(one == other) for one, other in zip(sizes, others, strict=True))


def _is_aligned(node: "Node") -> bool:
    """Whether a tensor begins where a kernel can read it. TorchInductor sees to that of inputs, and to all strides."""
    tensor = node.meta["val"]
    begin = tensor.storage_offset() * tensor.itemsize
    return node.op == "placeholder" or bool(torch_hooks.KNOWN_TRUE.find()(begin % _ALIGNED == 0))


def _erased(graph: "Graph", copy: _Copy) -> int:
    """Erase what nothing reads any more; the bytes of the copy if it is gone."""
    for node in copy.nodes:
        if node.users:
            break
        graph.erase_node(node)
    return 0 if any(node.users for node in copy.nodes[:-2]) else copy.bytes  # the last two are views
