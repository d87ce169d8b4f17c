"""The memory that parts of a tile need: pure arithmetic, shared by the rules and the kernel."""

from typing import Any

import numpy as np

from tilescout.spaces.gemm_streamk_sm90.partition import MOST_BLOCKS

VECTOR = 4  # fp32 numbers that a thread moves at a time
STRIP = 16  # columns of 64 rows of a tile, which a block of the second kernel adds up: the fewest that stmatrix takes


def most_clusters(blocks: Any) -> Any:
    """Clusters of so many blocks that share tiles evenly, at most."""
    return MOST_BLOCKS // blocks


def slots(split: Any, stream_k: Any, tiles: Any, steps: Any, blocks: Any) -> Any:
    """The most slots of sums, each a tile of every block of a cluster, whatever the number of clusters."""
    clusters = most_clusters(blocks)
    evenly = clusters + np.minimum(tiles, clusters) - 1
    return np.where(stream_k > 0, evenly, tiles * (np.minimum(split, steps) + 1) - 1)


def workspace(tile_m: Any, tile_n: Any, blocks: Any, split: Any, stream_k: Any, tiles: Any, steps: Any) -> Any:
    """Bytes of memory in which blocks leave sums; none where every tile is whole."""
    needed = 4 * tile_m * tile_n * blocks * slots(split, stream_k, tiles, steps, blocks)
    return np.where((split > 1) | (stream_k > 0), needed, 0)
