"""Regression forests as plain arrays: predicted with NumPy alone, and saved without pickle."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.threads import in_parts

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor

LEAF = -1
"""The value that stands for the feature in a leaf."""

ROWS, LEVELS = 32768, 3
"""Rows that descend together, and levels between two looks for those that have reached a leaf: among the fastest of
8192 to 65536 and 1 to 4 for 106,880 rows and 48 trees on one core (2026-11-22). A thread of few rows waits for the
interpreter between its many short steps: on 16 cores 16,384 rows took 0.88 s, 26,720 to 53,440 took 0.4 to 0.5 s
(2026-11-23)."""


@dataclass(frozen=True)
class Forest:
    """Trees one behind the other, each in depth-first order: the left child of a node is the next node.

    Attributes
    ----------
    feature
        Column that a node compares, `LEAF` in a leaf; int16 of shape [nodes].
    value
        Threshold (a row goes left if it is not larger), or a leaf's value; float32 of shape [nodes].
    right
        Distance from a node to its right child; int32 of shape [nodes].
    roots
        First node of each tree; int32 of shape [trees].
    """

    feature: NDArray[np.int16]
    value: NDArray[np.float32]
    right: NDArray[np.int32]
    roots: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.roots)

    def each(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """The prediction of every tree.

        Parameters
        ----------
        values
            Features of shape [rows, features].

        Returns
        -------
        array
            Of shape [trees, rows].
        """
        values = np.asarray(values, dtype=np.float32)
        said = np.empty((len(self), len(values)), dtype=np.float32)
        ends = [*self.roots.tolist(), len(self.feature)]

        def descend(rows: slice) -> None:
            # A column behind the other: at a node near the root, most rows compare the same one.
            columns = np.ascontiguousarray(values[rows].T)
            for tree, part in enumerate(map(slice, ends, ends[1:])):
                # The arrays of one tree fit into the processor's cache, those of all trees do not.
                leaf = _descend(self.feature[part], self.value[part], self.right[part], columns)
                said[tree, rows] = self.value[part][leaf]

        in_parts(descend, len(values), ROWS)
        return said

    def settled(self, column: int, value: float) -> "Forest":
        """The same trees of rows that all have a value in a column, which they then do not have any more."""
        node = np.arange(len(self.feature))
        last = _led(node + self.right)  # of the nodes below each: a leaf is 0 away from its own right child
        known = np.flatnonzero(self.feature == column)
        goes_left = np.float32(value) <= self.value[known]
        beside = known + self.right[known]  # the right child
        begin, end = np.where(goes_left, beside, known), np.where(goes_left, last[known] + 1, beside)
        left_out = np.zeros(len(node) + 1, dtype=np.int64)
        np.add.at(left_out, begin, 1)
        np.add.at(left_out, end, -1)
        kept = np.cumsum(left_out[:-1]) == 0
        kept[known] = False
        # A node that is left out for its column leads to the child that is kept: the next node that is.
        at = np.cumsum(kept) - kept
        right = at[node + self.right] - at
        feature = self.feature - (self.feature > column).astype(np.int16)
        return Forest(feature[kept], self.value[kept], right[kept].astype(np.int32), at[self.roots].astype(np.int32))

    @classmethod
    def constant(cls, value: float) -> "Forest":
        """One tree that always says the same."""
        zero = np.zeros(1, dtype=np.int32)
        return cls(np.array([LEAF], dtype=np.int16), np.array([value], dtype=np.float32), zero, zero)

    @classmethod
    def of(cls, fitted: "ExtraTreesRegressor") -> "Forest":
        """The trees of a fitted scikit-learn ensemble of regression trees with one output."""
        feature, value, right, roots = [], [], [], []
        nodes = 0
        for estimator in fitted.estimators_:
            tree = estimator.tree_
            numbers = np.arange(tree.node_count)
            inner = tree.children_left >= 0
            if not np.array_equal(tree.children_left[inner], numbers[inner] + 1):
                raise AssertionError("scikit-learn did not build the tree depth first")
            feature.append(np.where(inner, tree.feature, LEAF).astype(np.int16))
            value.append(np.where(inner, _largest_not_above(tree.threshold), tree.value[:, 0, 0]).astype(np.float32))
            right.append(np.where(inner, tree.children_right - numbers, 0).astype(np.int32))
            roots.append(nodes)
            nodes += tree.node_count
        return cls(
            np.concatenate(feature), np.concatenate(value), np.concatenate(right), np.array(roots, dtype=np.int32)
        )


def _led(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last node that each is led to, where the next one of each is given, and that of a last one is itself."""
    while not np.array_equal(further := steps[steps], steps):
        steps = further
    return steps


def _descend(
    feature: NDArray[np.int16], value: NDArray[np.float32], right: NDArray[np.int32], columns: NDArray[np.float32]
) -> NDArray[np.int64]:
    """The leaf of one tree that each row falls into.

    A node whose column is the same for all rows, as sizes of the problem are, could be passed over. To find those of
    all trees took as long as it saved for 16,384 rows, and 0.03 to 0.11 s more in a process that had just been forked,
    where memory that is written for the first time costs most (two cores, 2026-11-29).

    Parameters
    ----------
    feature, value, right
        The tree's nodes, as `Forest` has them.
    columns
        The features of shape [features, rows].
    """
    rows, cells = np.arange(columns.shape[1]), columns.ravel()
    node, inner = np.arange(len(feature)), feature != LEAF
    # Side by side the left and the right child of every node, a leaf's own child: the next place is twice the child.
    children = np.stack([np.where(inner, node + 1, node), node + right], axis=1).ravel() * 2
    offsets = np.repeat(np.where(inner, feature, 0).astype(np.int64) * len(rows), 2)
    thresholds, goes_on = np.repeat(value, 2), np.repeat(inner, 2)
    leaf, place = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    while len(rows):
        for _ in range(LEVELS):
            place = children.take(place + (cells.take(offsets.take(place) + rows) > thresholds.take(place)))
        on = goes_on.take(place)
        ended, left = np.flatnonzero(~on), np.flatnonzero(on)
        leaf[rows.take(ended)] = place.take(ended)
        rows, place = rows.take(left), place.take(left)
    return leaf // 2


def _largest_not_above(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest 32-bit number not above each threshold: 32-bit features compare with it as with the threshold."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded).astype(np.float32)
