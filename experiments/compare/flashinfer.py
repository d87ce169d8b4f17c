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
    """The size at which FlashInfer 0.7 profiles for a size, which is not below it.

    A power of two up to 256 and above 4096, between them a multiple of 256, above 2048 of 512. Releases before 0.7 took
    the power of two that is not above.
    """
    for most, step in ((256, 0), (2048, 256), (4096, 512)):
        if size <= most and step:
            return -(-size // step) * step
        if size <= most:
            break
    return 1 << (size - 1).bit_length()
