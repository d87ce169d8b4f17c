"""Choose a few kernels for many problems: those with the least expected regret.

To choose k of many so that the mean over problems of the best of the chosen is best is facility location. What the
chosen save is monotone and submodular, so that choosing greedily, each time the one that saves the most, saves at least
1 - 1/e of what the best k could. Exchanges of a chosen one for another then lower the regret as long as one does.

G. Nemhauser, L. Wolsey, M. Fisher: An analysis of approximations for maximizing submodular set functions I.
Mathematical Programming 14, 1978.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilescout.costmodel.arrays import Floats

CAP = 1.0
"""Log of the time over the best, at which a kernel counts as useless, as one does that is not legal for a problem."""


@dataclass(frozen=True)
class Portfolio:
    """Kernels that were chosen one after the other.

    Attributes
    ----------
    picked
        Their rows, in the order in which they were chosen.
    regret
        Mean regret of the first 1, 2, … of them; each a log of the time over the best.
    exchanged
        Rows of as many kernels after exchanges, in rising order, and `exchanged_regret` their mean regret.
    bound
        No choice of as many kernels has a smaller mean regret than this.
    """

    picked: tuple[int, ...]
    regret: tuple[float, ...]
    exchanged: tuple[int, ...]
    exchanged_regret: float
    bound: float


def regret_of(logs: Floats, weights: Floats, rows: Sequence[int]) -> float:
    """The mean over problems of the least regret that some of the kernels have.

    Parameters
    ----------
    logs
        Log of each kernel's time over the best of all, of shape [kernels, problems]; NaN where it is not known.
    weights
        Of the problems, of shape [problems]; they sum to 1.
    rows
        The kernels.
    """
    return float(_capped(logs)[list(rows)].min(axis=0) @ weights)


def choose_portfolio(
    logs: Floats, weights: Floats, count: int, rounds: int = 0, given: Sequence[int] = ()
) -> Portfolio:
    """The kernels with the least mean regret, greedily, then by exchanges.

    Parameters
    ----------
    logs
        Log of each kernel's time over the best of all, of shape [kernels, problems]; NaN where it is not known.
    weights
        Of the problems, of shape [problems]; they sum to 1.
    count
        How many to choose, at most as many as there are.
    rounds
        Most exchanges that are tried.
    given
        Rows of kernels that are chosen before all others, in this order, and never exchanged.

    Raises
    ------
    ValueError
        If more are given than are to be chosen, or one twice.
    """
    if len(set(given)) != len(given) or len(given) > count:
        raise ValueError(f"of {count} kernels to choose {len(given)} are given, {len(set(given))} different ones")
    capped = _capped(logs)
    reached = np.full(capped.shape[1], CAP)
    picked: list[int] = []
    curve: list[float] = []
    for at in range(min(count, len(capped))):
        if at < len(given):
            picked.append(given[at])
        else:
            saved = np.maximum(reached - capped, 0.0) @ weights
            saved[picked] = -1.0  # a kernel that is chosen saves nothing more; a tie must not choose it again
            picked.append(int(saved.argmax()))
        reached = np.minimum(reached, capped[picked[-1]])
        curve.append(float(reached @ weights))
    rows = _exchange(capped, weights, picked, rounds, len(given))
    return Portfolio(
        tuple(picked),
        tuple(curve),
        tuple(sorted(rows)),
        regret_of(logs, weights, rows),
        _bound(capped, weights, picked),
    )


def _bound(capped: Floats, weights: Floats, picked: list[int]) -> float:
    """A regret that no choice of as many kernels goes below.

    Whatever was chosen already, the best choice saves no more beyond it than its kernels save one by one, and so no
    more than the `count` that save the most. This holds for each prefix of what was picked; the best of these is taken.
    """
    reached, bound = np.full(capped.shape[1], CAP), 0.0
    for count in range(len(picked) + 1):
        saved = np.sort(np.maximum(reached - capped, 0.0) @ weights)[::-1]
        bound = max(bound, float(reached @ weights - saved[: len(picked)].sum()))
        if count < len(picked):
            reached = np.minimum(reached, capped[picked[count]])
    return bound


def _exchange(capped: Floats, weights: Floats, picked: list[int], rounds: int, kept: int) -> list[int]:
    """The chosen kernels after exchanges, each the one that lowers the mean regret the most; the first are kept."""
    rows = list(picked)
    for _ in range(rounds):
        best, change = float(capped[rows].min(axis=0) @ weights), None
        for place in range(kept, len(rows)):
            others = capped[rows[:place] + rows[place + 1 :]].min(axis=0, initial=CAP)
            means = np.minimum(capped, others) @ weights
            row = int(means.argmin())
            if means[row] < best - 1e-12:
                best, change = float(means[row]), (place, row)
        if change is None:
            break
        rows[change[0]] = change[1]
    return rows


def _capped(logs: Floats) -> Floats:
    return np.minimum(np.where(np.isfinite(logs), logs, CAP), CAP)
