"""Regression forests as plain arrays: predicted with NumPy alone, and saved without pickle."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor

LEAF = -1
"""The value that stands for the feature in a leaf."""


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
        values = np.ascontiguousarray(values, dtype=np.float32)
        said = np.empty((len(self), len(values)), dtype=np.float32)
        ends = np.append(self.roots[1:], len(self.feature))
        for tree, (start, end) in enumerate(zip(self.roots, ends, strict=True)):
            # The arrays of one tree fit into the processor's cache, those of all trees do not.
            leaf = _descend(self.feature[start:end], self.value[start:end], self.right[start:end], values)
            said[tree] = self.value[start:end][leaf]
        return said

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


def _descend(
    feature: NDArray[np.int16], value: NDArray[np.float32], right: NDArray[np.int32], values: NDArray[np.float32]
) -> NDArray[np.int64]:
    """The leaf of one tree that each row of `values` falls into."""
    leaf = np.zeros(len(values), dtype=np.int64)
    rows = np.arange(len(values)) if feature[0] != LEAF else np.empty(0, dtype=np.int64)
    node = np.zeros(len(rows), dtype=np.int64)
    while len(rows):
        goes_right = values[rows, feature[node]] > value[node]
        node = node + np.where(goes_right, right[node], 1)
        ended = feature[node] == LEAF
        leaf[rows[ended]] = node[ended]
        rows, node = rows[~ended], node[~ended]
    return leaf


def _largest_not_above(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """The largest 32-bit number not above each threshold: 32-bit features compare with it as with the threshold."""
    rounded = thresholds.astype(np.float32)
    return np.where(rounded > thresholds, np.nextafter(rounded, np.float32(-np.inf)), rounded).astype(np.float32)
