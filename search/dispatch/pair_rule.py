"""The rule by which the device takes one kernel of a pair: fitted to times that are expected of both."""

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.spaces.grouped_pair_sm90.rule import PairRule

_LARGEST = 1 << 30  # of a weight
_CLOSE = 0.002  # log of one kernel's time over the other's, that counts even where they are equal
_RIDGE = 1e-4
_STEPS = 40
_FAR = 10.0  # of a weight, in a step


def fit_rule(counts: Floats, lead: Floats) -> PairRule:
    """The linear rule that errs least: a logistic regression, by Newton's method.

    Parameters
    ----------
    counts
        The numbers that the device counts, of shape [samples, counted].
    lead
        Log of the first kernel's time over the second's, of shape [samples]: that much is lost where the rule errs.
    """
    scale = np.maximum(np.abs(counts).max(axis=0), 1e-9)
    x, second = counts / scale, lead > 0
    lost = np.abs(lead) + _CLOSE
    lost = lost / lost.sum()
    weights, ridge = np.zeros(x.shape[1]), _RIDGE / x.shape[1]
    for _ in range(_STEPS):
        share = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (lost * (share - second)) + ridge * weights
        curve = (x * (lost * share * (1 - share))[:, None]).T @ x + np.eye(len(weights)) * ridge
        step = np.linalg.solve(curve, slope)
        if not step.any():
            break
        weights = weights - step * min(1.0, _FAR / float(np.abs(step).max()))
    weights = weights / scale
    return PairRule(tuple(round(float(each)) for each in weights / np.abs(weights).max() * _LARGEST))
