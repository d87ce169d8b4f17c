"""Heads of attention that read the same keys and values, as rows of one head.

With grouped-query attention several heads of queries share a head of keys and values. Where there is a mask, as over a
static cache, models copy keys and values for each head that reads them (``repeat_kv`` in transformers), and attention
reads the copies. Where each sequence decodes one token, that is most of what attention takes. But the products of such
heads share an operand, as those of gate and up do: the tokens of the heads are rows of one product, over keys that
stay where they are:

    queries [batch, heads, 1, size] -> [batch, heads of keys, heads that share, size]

The same function of torch computes it, in the same precision.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilescout.search.export import torch_hooks
from tilescout.search.export.epilogues import aten, shapes
from tilescout.search.export.graph_nodes import call, inherit

if TYPE_CHECKING:
    from torch.fx import Graph, Node


@dataclass(frozen=True)
class _Shared:
    """Keys or values, before they were copied.

    Attributes
    ----------
    whole
        The node, [batch, heads of keys, tokens, size].
    copies
        How many heads of queries read one of its heads.
    """

    whole: "Node"
    copies: int


def fold_heads(graph: "Graph") -> list[int]:
    """Have attention of one token read shared keys and values in place.

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
    return [copied for node in found if (copied := _fold(graph, node))]


def _attentions() -> "tuple[Any, ...]":
    """The operators that ``scaled_dot_product_attention`` becomes where it is given a mask."""
    names = "cudnn_attention", "efficient_attention", "flash_attention_for_cpu"
    return tuple(getattr(aten(), f"_scaled_dot_product_{name}").default for name in names)


def _fold(graph: "Graph", node: "Node") -> int:
    """Change an attention; the bytes of the copies that it read, 0 if it stays as it is."""
    names = torch_hooks.argument_names(node.target)
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    query, key, value = (given[name] for name in ("query", "key", "value"))
    mask = given.get("attn_bias" if "attn_bias" in names else "attn_mask")
    keys, values, got = _shared(key), _shared(value), _result(node, given)
    if keys is None or values is None or keys.copies != values.copies or got is None:
        return 0
    _, heads, tokens, size = query.meta["val"].shape
    if tokens != 1 or (mask is not None and (mask.meta["val"].dim() != 4 or mask.meta["val"].shape[1] != 1)):
        return 0
    copied = sum(map(_bytes, (key, value)))
    with graph.inserting_before(node):
        rows = [-1, heads // keys.copies, keys.copies, size]
        instead = {query: _made(graph, query, aten().reshape.default, query, rows)}
        if mask is not None:
            instead[mask] = _for_rows(graph, mask, keys.copies)
        instead |= {key: keys.whole, value: values.whole}
        folded = _made(graph, node, node.target, *_instead(node.args, instead), **_instead(node.kwargs, instead))
        result = _made(graph, got, operator.getitem, folded, 0)
        got.replace_all_uses_with(_made(graph, got, aten().reshape.default, result, [-1, heads, tokens, size]))
    for old in list(node.users):
        _erase(graph, old)
    return copied


def _bytes(node: "Node") -> int:
    numbers = node.meta["val"].numel()
    known = numbers if isinstance(numbers, int) else torch_hooks.size_hint(numbers)
    return (known or 1) * int(node.meta["val"].itemsize)


def _instead(args: Any, instead: "Mapping[Node, Node]") -> Any:
    from torch.fx.node import map_arg

    return map_arg(args, lambda old: instead.get(old, old))  # type: ignore[no-untyped-call, unused-ignore]


def _made(graph: "Graph", like: "Node", target: Any, *args: Any, **kwargs: Any) -> "Node":
    made = call(graph, target, *args, **kwargs)
    inherit(made, like)
    return made


def _for_rows(graph: "Graph", mask: "Node", rows: int) -> "Node":
    """A mask of one row for some, each in memory: not every kernel takes rows that are one piece of it."""
    import torch

    wide = _made(graph, mask, aten().expand.default, mask, [-1, -1, rows, -1])
    return _made(graph, mask, aten().clone.default, wide, memory_format=torch.contiguous_format)


def _result(attention: "Node", given: "Mapping[str, Any]") -> "Node | None":
    """The result of an attention; None if something else of it is used, or not the mask alone tells tokens apart."""
    used = [user for user in attention.users if user.users]
    if any(given.get(name, False) for name in ("dropout_p", "compute_log_sumexp", "is_causal")):
        return None
    return used[0] if [user.args[1] for user in used] == [0] else None


def _shared(node: "Node") -> _Shared | None:
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
    whole = view.all_input_nodes[0]
    batch, heads, *rest = whole.meta["val"].shape
    copies = wide.meta["val"].shape[2]
    together = isinstance(heads, int) and isinstance(copies, int) and copies > 1
    if not together or node.meta["val"].shape != (batch, heads * copies, *rest):
        return None
    return _Shared(whole, copies)


def _erase(graph: "Graph", node: "Node") -> None:
    """Erase a node that nothing uses, and what was there for it alone."""
    if not node.users and node.op == "call_function":
        before = node.all_input_nodes
        graph.erase_node(node)
        for each in before:
            _erase(graph, each)
