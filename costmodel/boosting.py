"""Grow `tilescout.spaces.oblivious.ObliviousTrees` by gradient boosting on squares.

J. Friedman: Greedy function approximation: a gradient boosting machine. Annals of Statistics 29(5), 2001. Trees that
ask one question a level are those of L. Prokhorenkova et al.: CatBoost: unbiased boosting with categorical features,
NeurIPS 2018.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.spaces.oblivious import ObliviousTrees


@dataclass(frozen=True)
class BoostingOptions:
    """How trees are grown.

    Attributes
    ----------
    trees, levels
        Number of trees, and of questions of each.
    rate
        Share of its fit that a tree adds.
    rows, columns
        Share of the rows and of the features that a tree is grown from.
    bins
        Values of a feature that a question may choose among, plus one.
    damping
        Weight of zero in the mean of a leaf; the mean weight of a row is one.
    seed
        Seed of all random draws.
    """

    trees: int = 250
    levels: int = 6
    rate: float = 0.12
    rows: float = 0.5
    columns: float = 0.5
    bins: int = 32
    damping: float = 1.0
    seed: int = 0


def grow(values: NDArray[np.float32], target: Floats, weights: Floats, options: BoostingOptions) -> ObliviousTrees:
    """Trees that predict a target.

    Parameters
    ----------
    values
        Features, of shape [rows, features].
    target, weights
        What is to be predicted, and what an error of it costs; of shape [rows].
    options
        How the trees are grown.
    """
    generator = np.random.default_rng(options.seed)
    cuts = [_cuts(column, options.bins) for column in values.T]
    bins = np.stack([np.searchsorted(c, column) for c, column in zip(cuts, values.T, strict=True)], axis=1)
    allowed = np.arange(options.bins) < np.array([len(c) for c in cuts])[:, None]
    weights = weights / weights.mean()
    base = float(np.average(target, weights=weights))
    left = target - base
    feature = np.zeros((options.trees, options.levels), dtype=np.int16)
    threshold = np.zeros((options.trees, options.levels), dtype=np.float32)
    leaf = np.zeros((options.trees, 2**options.levels), dtype=np.float32)
    drawn = max(1, int(values.shape[1] * options.columns))
    for tree in range(options.trees):
        rows = np.flatnonzero(generator.random(len(values)) < options.rows)
        columns = np.sort(generator.choice(values.shape[1], drawn, replace=False))
        questions = _questions(bins[np.ix_(rows, columns)], left[rows], weights[rows], allowed[columns], options)
        place = np.zeros(len(values), dtype=np.int64)
        for level, (column, cut) in enumerate(questions):
            feature[tree, level] = columns[column]
            threshold[tree, level] = cuts[columns[column]][cut]
            place = 2 * place + (bins[:, columns[column]] > cut)
        sums = np.bincount(place[rows], (weights * left)[rows], leaf.shape[1])
        counts = np.bincount(place[rows], weights[rows], leaf.shape[1])
        leaf[tree] = options.rate * sums / (counts + options.damping)
        left = left - leaf[tree][place]
    return ObliviousTrees(feature, threshold, leaf, base)


def _cuts(column: NDArray[np.float32], bins: int) -> NDArray[np.float32]:
    """The values of a feature that a question may compare it with: its quantiles, without the largest value."""
    found = np.unique(np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1], method="lower").astype(np.float32))
    inner = found[found < column.max()]
    return inner if len(inner) else found[:1]


def _questions(
    bins: NDArray[np.int64], left: Floats, weights: Floats, allowed: NDArray[np.bool_], options: BoostingOptions
) -> list[tuple[int, int]]:
    """The questions of a tree, as (column, cut): each lowers the squares the most, given those before it.

    Parameters
    ----------
    bins
        The bin of each feature, of shape [rows, columns].
    left, weights
        What is left to be predicted, and its weight; of shape [rows].
    allowed
        Cuts that a column has, of shape [columns, bins].
    """
    count = bins.shape[1]
    cells = bins + np.arange(count) * options.bins
    gradients, masses = np.repeat(weights * left, count), np.repeat(weights, count)
    place = np.zeros(len(bins), dtype=np.int64)
    found = []
    for level in range(options.levels):
        code = (cells + (place * count * options.bins)[:, None]).ravel()
        shape = (2**level, count, options.bins)
        sums = np.bincount(code, gradients, int(np.prod(shape))).reshape(shape).cumsum(axis=2)
        mass = np.bincount(code, masses, int(np.prod(shape))).reshape(shape).cumsum(axis=2)
        others, other_mass = sums[:, :, -1:] - sums, mass[:, :, -1:] - mass
        gain = sums**2 / (mass + options.damping) + others**2 / (other_mass + options.damping)
        column, cut = divmod(int(np.where(allowed, gain.sum(axis=0), -1.0).argmax()), options.bins)
        found.append((column, cut))
        place = 2 * place + (bins[:, column] > cut)
    return found
