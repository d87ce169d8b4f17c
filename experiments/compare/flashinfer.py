"""The kernels that FlashInfer's profiler tries on Hopper, every one of them.

FlashInfer takes the list over from TensorRT-LLM's CUTLASS kernels (``get_candidate_tiles_sm90`` as of 2026): ten tiles,
each without a cluster, along m where the tile has 128 rows, along n where it has 128 columns or more, and along both
where both hold. A step along k is 128 bytes, so 64 elements of 16 bits. Which schedule runs is left to CUTLASS, and
here to the default, as are the knobs that the list does not know.
"""

from collections.abc import Sequence

from tilescout.experiments.compare.rankings import Wish
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace

ROWS, COLUMNS = (64, 128), (16, 32, 64, 128, 256)
DEPTH = 64
SHARED = 128  # rows or columns of a tile from which on its loads are shared by a cluster of two


def ranking(space: SearchSpace, default: Configuration) -> Sequence[Wish]:
    """All of the list, in the order in which it is profiled; of knobs that the space does not have, nothing."""
    wishes: list[Wish] = []
    for rows in ROWS:
        for columns in COLUMNS:
            along_m = (1, 2) if rows >= SHARED else (1,)
            along_n = (1, 2) if columns >= SHARED else (1,)
            tile = {"swap_ab": 0, "tile_m": rows, "tile_n": columns, "tile_k": DEPTH, "split_k": 1}
            wishes += [{**tile, "cluster_m": m, "cluster_n": n} for n in along_n for m in along_m]
    return [{name: value for name, value in wish.items() if name in default} for wish in wishes]


def bucket(size: int) -> int:
    """The size at which FlashInfer profiles for a size: the power of two that is not above it."""
    return 1 << (size.bit_length() - 1)
