"""Rows that a model clears behind a grouped product: those that are no expert's.

transformers sorts the rows of A by expert. The offsets count those of experts that there are, and rows of others come
behind; there the product is whatever was in memory. So the model writes zeros into them, before SwiGLU and behind the
second product. What lies behind the last offset is read by no grouped product.
"""

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilescout.search.export.epilogues import aten

if TYPE_CHECKING:
    import torch
    from torch.fx import Node


@dataclass(frozen=True)
class Clearing:
    """Zeros in some rows of a matrix.

    Attributes
    ----------
    node
        The node that writes them.
    rows
        Which rows: [rows, 1], of truth values.
    zero
        What is written: a tensor of no dimension.
    """

    node: "Node"
    rows: "Node"
    zero: "Node"


def clearing_of(matrix: "Node") -> Clearing | None:
    """The clearing that alone reads a matrix; None if there is none."""
    import torch

    if len(matrix.users) != 1:
        return None
    (user,) = matrix.users
    if user.target is not aten().where.self:
        return None
    rows, zero, cleared = user.args
    if cleared is not matrix or not isinstance(rows, torch.fx.Node) or not isinstance(zero, torch.fx.Node):
        return None
    if rows.meta["val"].dim() != 2 or rows.meta["val"].shape[1] != 1 or not _is_zero(zero):
        return None
    return Clearing(user, rows, zero) if zero.meta["val"].dtype is matrix.meta["val"].dtype else None


def _is_zero(node: "Node") -> bool:
    """Whether a node is the number 0."""
    return node.target is aten().full.default and list(node.args) == [[], 0.0]


def is_unread(clearing: Clearing, ends: "Node", matrix: "Node") -> bool:
    """Whether nothing reads the cleared rows of a matrix: grouped products with these ends read it alone.

    That holds where rows of experts that are none are cleared, the rows stand in the order of their experts, and the
    ends were counted from the same list of experts.
    """
    experts = _experts_of(ends)
    if experts is None or not _are_beyond(clearing.rows, experts, ends.meta["val"].shape[0]):
        return False
    return all(_is_product(user, matrix, ends) for user in matrix.users)


def _experts_of(ends: "Node") -> "Node | None":
    """The experts of all rows, in rising order, that ends were counted from as transformers counts; else None."""
    import torch

    if ends.target is not aten().cumsum.default or ends.args[1] not in (0, -1):
        return None
    counts = ends.args[0]
    experts = ends.meta["val"].shape[0]
    if not isinstance(counts, torch.fx.Node) or counts.target is not aten().histc.default:
        return None
    if list(counts.args[1:]) != [experts, 0, experts - 1]:
        return None
    found = counts.args[0]
    if isinstance(found, torch.fx.Node) and found.target is torch.ops.prims.convert_element_type.default:
        found = found.args[0]
    return found if isinstance(found, torch.fx.Node) and _is_sorted(found) else None


def _is_sorted(node: "Node") -> bool:
    """Whether a node is a vector that was sorted, the smallest first."""
    import torch

    if node.target is not operator.getitem or node.args[1] != 0:
        return False
    sort = node.args[0]
    if not isinstance(sort, torch.fx.Node) or sort.target is not aten().sort.default or sort.kwargs:
        return False
    return node.meta["val"].dim() == 1 and not any(sort.args[2:])


def _are_beyond(rows: "Node", experts: "Node", count: "torch.SymInt | int") -> bool:
    """Whether rows are those whose experts are numbered from `count` on."""
    import torch

    if rows.target is not aten().unsqueeze.default:
        return False
    compared = rows.args[0]
    return (
        isinstance(compared, torch.fx.Node)
        and compared.target is aten().ge.Scalar
        and list(compared.args) == [experts, count]
    )


def _is_product(user: "Node", matrix: "Node", ends: "Node") -> bool:
    """Whether a node is a grouped product of the rows of a matrix, by these ends."""
    if user.target is not aten()._grouped_mm.default:
        return False
    b, *offsets = user.args[1:]
    given = offsets[0] if offsets else user.kwargs.get("offs")
    return user.args[0] is matrix and b is not matrix and b.meta["val"].dim() == 3 and given is ends  # type: ignore[union-attr]
