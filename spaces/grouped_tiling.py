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
    shared
        The fullest last round of the grid that all clusters share evenly, as a share of a full one.
    """

    problem: GroupedProblem
    rows: Integers
    columns: Integers
    depth: Integers
    cluster_rows: Integers
    cluster_columns: Integers
    stages: Integers
    trim: Mask
    shared: NDArray[np.float64]

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
