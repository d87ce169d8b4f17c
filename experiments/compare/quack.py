"""The configurations that Dao-AILab/quack's autotuner measures on Hopper, every one of them.

Quack lists 11 tiles, each with a cluster along m or along n, each with the operands as they are or swapped: 44, with
two consumer warp groups and bands of at most 8 clusters. All of it has a knob in ``gemm_sm90``; in ``quack_sm90`` the
list is exactly Quack's own. Quack does not choose ``tile_k``, ``stages`` and ``raster``; `rankings.places` does.
It also replaces entries that the rules or a table do not have by the nearest configuration. Several entries may then
stand for one configuration, and fewer than 44 are measured.
"""

from collections.abc import Sequence
from itertools import product

from tilescout.experiments.compare.rankings import Wish
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace

COOPERATIVE = ((256, 128), (256, 160), (256, 192), (256, 208), (128, 224), (128, 256))
PINGPONG = ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128))
CLUSTERS = ((1, 2), (2, 1))


def wish(tile: tuple[int, int], pingpong: bool, cluster: tuple[int, int], swapped: bool) -> Wish:
    """An entry of the list in the words of our spaces."""
    return {
        "schedule": "pingpong" if pingpong else "cooperative",
        "warp_groups": 2,
        "swap_ab": int(swapped),
        "tile_m": tile[0],
        "tile_n": tile[1],
        "split_k": 1,
        "cluster_m": cluster[0],
        "cluster_n": cluster[1],
        "swizzle": 8,
    }


def ranking(space: SearchSpace, default: Configuration) -> Sequence[Wish]:
    """All 44, in the order in which the autotuner measures them; of knobs that the space does not have, nothing."""
    tiles = [(tile, False) for tile in COOPERATIVE] + [(tile, True) for tile in PINGPONG]
    wishes = [
        wish(tile, pingpong, cluster, swapped)
        for (tile, pingpong), cluster, swapped in product(tiles, CLUSTERS, (False, True))
    ]
    return [{name: value for name, value in each.items() if name in default} for each in wishes]
