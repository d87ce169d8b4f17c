"""New nodes of graphs that TorchInductor lowers, with their fake tensors, and the report of what was replaced."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilescout.search.export import torch_hooks
from tilescout.search.export.epilogues import aten

if TYPE_CHECKING:
    from torch.fx import Graph, Node


@dataclass
class Report:
    """Counts of the matrix products that were looked at, by problem; ``*`` stands for unknown m or tokens.

    Attributes
    ----------
    replaced
        Products that now run the kernels that were decided, ours or the library's named ones.
    left
        Products whose decision is the library's own choice.
    unknown
        Products without a decision.
    """

    replaced: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


def call(graph: "Graph", target: Any, *args: Any, **kwargs: Any) -> "Node":
    """A new node, with the fake tensor that its operator makes of those of its arguments."""
    made = graph.call_function(target, args, kwargs)
    # Its own arguments tell the mode too: to ask all weights of a large model for each node takes seconds.
    given = made.all_input_nodes or graph.find_nodes(op="placeholder")
    mode = torch_hooks.DETECT_FAKE_MODE.find()([node.meta.get("val") for node in given])
    assert mode is not None
    with mode:
        made.meta["val"] = target(*values(args), **kwargs)
    return made


def inherit(made: "Node", node: "Node") -> None:
    """Tell of a new node what is told of the one that it replaces, but for what belongs to that one's tensor."""
    made.meta = {**node.meta, "val": made.meta["val"]}
    for about_the_product in ("tensor_meta", "eager_input_vals"):
        made.meta.pop(about_the_product, None)


def values(args: tuple[Any, ...]) -> Any:
    """Arguments with the fake tensors of nodes in their place."""
    from torch.fx.node import map_arg

    return map_arg(args, lambda node: node.meta["val"])  # type: ignore[no-untyped-call, unused-ignore]


def transposed(graph: "Graph", b: "Node") -> "Node":
    """B with its last two dimensions swapped; if B is a transposed view itself, the tensor that it views."""
    order = [1, 0] if b.meta["val"].dim() == 2 else [0, 2, 1]
    if b.target is aten().permute.default and list(b.args[1]) == order:  # type: ignore[arg-type]
        return b.args[0]  # type: ignore[return-value]
    return call(graph, aten().permute.default, b, order)
