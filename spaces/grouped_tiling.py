"""How a configuration of grouped products divides the work, as cost models need to know it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.constraints import Mask
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.tiling import Integers, ceil_div


@dataclass(frozen=True)
class GroupedTiling:
    """The division of a grouped product over blocks. Each fact is a column of shape [configurations].

    Attributes
    ----------
    problem
        The grouped product.
    rows, columns
        Tokens and columns of D of the tile that a block computes at a time.
    depth
        Elements along k in one stage of the ring.
    cluster_rows, cluster_columns
        Blocks of a cluster along the tokens and along the columns of D.
    stages
        Stages of the ring.
    trim
        Whether a tile that is half empty is multiplied as half a tile.
    saved
        The share of its time that the last round of the grid must save for its tiles to be split along k; 1 where they
        never are.
    most_parts
        Of a tile that is split.
    """

    problem: GroupedProblem
    rows: Integers
    columns: Integers
    depth: Integers
    cluster_rows: Integers
    cluster_columns: Integers
    stages: Integers
    trim: Mask
    saved: NDArray[np.float64]
    most_parts: int = 1

    def rounds(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """The rounds that so many units of work take, over those that run at once: whole ones but for the last."""
        whole = np.ceil(units) - 1
        parts = np.minimum(np.floor(1 / (units - whole) + 1e-9), self.most_parts)
        return whole + np.where(1 - 1 / parts > self.saved, 1 / parts, 1.0)

    def token_tiles(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Tiles along the tokens, of all groups: those that blocks walk, and those that are multiplied.

        Both are means over the draws of the routing, of shape [configurations]. A tile that is multiplied as half a
        tile counts as half.
        """
        sizes = np.array([draw.groups for draw in self.problem.draws])
        keys = np.stack([self.rows, self.cluster_rows, self.trim.astype(np.int64)], axis=1)
        kinds, kind = np.unique(keys, axis=0, return_inverse=True)
        walked, multiplied = np.empty(len(kinds)), np.empty(len(kinds))
        for at, (rows, blocks, trim) in enumerate(kinds.tolist()):
            tiles = ceil_div(sizes, rows * blocks) * blocks
            rest = sizes % rows
            halves = ((rest > 0) & (rest <= rows // 2)).sum(axis=1).mean() / 2 if trim else 0.0
            walked[at] = tiles.sum(axis=1).mean()
            multiplied[at] = (ceil_div(sizes, rows) if trim else tiles).sum(axis=1).mean() - halves
        place = kind.reshape(-1)
        return walked[place], multiplied[place]
