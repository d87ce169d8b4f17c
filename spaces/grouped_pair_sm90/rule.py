"""The rule by which one of a pair of grouped kernels runs: of numbers that the device counts as a launch begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.tiling import ceil_div

SCALE = 1 << 20
"""The weight of a rule that stands for 1. Weights are whole numbers, for a rule is part of a configuration."""
COUNTED = ("constant", "reached", "first_tiles", "second_tiles", "first_rounds", "second_rounds")
"""The numbers: 1; experts that have tokens; units of work along the tokens, of each kernel; rounds of its grid."""


_ALIGNED = 32  # words


@dataclass(frozen=True)
class Side:
    """How one kernel of a pair divides the work.

    Attributes
    ----------
    tokens, columns
        Of D, in a unit of work: a tile for every block of a cluster.
    blocks
        Of a cluster.
    """

    tokens: int
    columns: int
    blocks: int


@dataclass(frozen=True)
class PairRule:
    """A linear rule: the second kernel runs where the sum of what is counted times its weight is above 0.

    Attributes
    ----------
    weights
        One for each of `COUNTED`, in units of 1 / `SCALE`.
    """

    weights: tuple[int, ...]

    def score(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum of counts [..., counted] times their weights."""
        return np.asarray(counts @ (np.array(self.weights, dtype=np.float64) / SCALE))


def counted(groups: Sequence[int], n: int, sides: tuple[Side, Side], at_once: int) -> NDArray[np.float64]:
    """The numbers that the device counts for groups of tokens, in the order of `COUNTED`.

    Parameters
    ----------
    groups
        Tokens of each expert.
    n
        Columns of D.
    sides
        The two kernels.
    at_once
        Blocks that run on the device at once.
    """
    sizes = np.array(groups)
    tiles = [int(ceil_div(sizes, side.tokens).sum()) for side in sides]
    rounds = [
        -(-many * -(-n // side.columns) // (at_once // side.blocks)) for many, side in zip(tiles, sides, strict=True)
    ]
    return np.array([1, int((sizes > 0).sum()), *tiles, *rounds], dtype=np.float64)


def sums_at(experts: Any) -> Any:
    """Where the sums of kernels that share a wave begin in a pair's memory, in words: behind both kernels' offsets."""
    return (2 * experts + _ALIGNED - 1) // _ALIGNED * _ALIGNED
