"""Regression forests as plain arrays: predicted with NumPy alone, and saved without pickle."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
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
        steps = self.steps

        def descend(rows: slice) -> None:
            # A column behind the other: at a node near the root, most rows compare the same one.
            columns = np.ascontiguousarray(values[rows].T)
            for tree, (root, end) in enumerate(pairwise([*self.roots.tolist(), len(self.feature)])):
                # The arrays of one tree fit into the processor's cache, those of all trees do not.
                leaf = steps.part(slice(root, end)).descend(columns)
                said[tree, rows] = self.value[root:end][leaf]

        if len(values):
            in_parts(descend, len(values), ROWS)
        return said

    @cached_property
    def steps(self) -> "Steps":
        """The nodes as rows descend them, worked out once.

        A node whose column is the same for all rows, as sizes of the problem are, could be passed over. To find those
        took as long as it saved for 16,384 rows, and 0.07 s more in a process that had just been forked, where memory
        that is written for the first time costs most (two cores, 2026-11-29).
        """
        inner = self.feature != LEAF
        left = np.where(inner, 1, 0).astype(np.int32)
        # Side by side those of the left and the right child of every node; a leaf's own is itself.
        children = np.stack([left, self.right], axis=1).ravel() * 2
        column = np.where(inner, self.feature, 0).astype(np.int32)
        return Steps(children, np.repeat(column, 2), np.repeat(self.value, 2), np.repeat(inner, 2))

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


@dataclass(frozen=True)
class Steps:
    """The nodes of trees, each with two places: the first stands for going left, and the second for going right.

    Attributes
    ----------
    children
        How far from a node's first place that of its left child is, and that of its right child; 0 of a leaf. int32 of
        shape [2 * nodes].
    column, value
        The column that a node compares, and with what, at both places; int32 and float32, of the same shape.
    goes_on
        Whether it is no leaf.
    """

    children: NDArray[np.int32]
    column: NDArray[np.int32]
    value: NDArray[np.float32]
    goes_on: NDArray[np.bool_]

    def part(self, nodes: slice) -> "Steps":
        """Those of some nodes, of one tree."""
        places = slice(2 * nodes.start, 2 * nodes.stop)
        return Steps(self.children[places], self.column[places], self.value[places], self.goes_on[places])

    def descend(self, columns: NDArray[np.float32]) -> NDArray[np.int64]:
        """The leaf that each row falls into, of one tree.

        Parameters
        ----------
        columns
            The features of shape [features, rows].
        """
        rows, cells = np.arange(columns.shape[1]), columns.ravel()
        offsets = self.column.astype(np.int64) * len(rows)
        leaf, place = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        while len(rows):
            for _ in range(LEVELS):
                goes_right = cells.take(offsets.take(place) + rows) > self.value.take(place)
                place = place + self.children.take(place + goes_right)
            on = self.goes_on.take(place)
            ended, left = np.flatnonzero(~on), np.flatnonzero(on)
            leaf[rows.take(ended)] = place.take(ended)
            rows, place = rows.take(left), place.take(left)
        return leaf // 2


def _led(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last node that each is led to, where the next one of each is given, and that of a last one is itself."""
    while not np.array_equal(further := steps[steps], steps):
        steps = further
    return steps


def _largest_not_above(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest 32-bit number not above each threshold: 32-bit features compare with it as with the threshold."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded).astype(np.float32)
