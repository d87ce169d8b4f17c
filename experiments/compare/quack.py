"""The configurations among which Dao-AILab/quack's autotuner measures every one on Hopper, in the knobs of gemm_sm90.

Quack lists 11 tiles, each with a cluster along m or along n, each with the operands as they are or swapped: 44. Where
its kernel differs from ours, this is what stands for it:

- "cooperative": two consumer warp groups share a tile. Here ``warp_groups=2``.
- "ping-pong": two consumer warp groups alternate, each on a tile of its own, so that one multiplies while the other
  stores. Here there is no such schedule; ``warp_groups=1``, a tile to a warp group.
- operands swapped: the transposed product, computed with A and B exchanged. Here the tile and the cluster are
  transposed and the bands are walked along the other axis.
- its widest band is 8 clusters: ``swizzle=8``.

What it does not choose (``tile_k``, ``stages``) and does not have here (208 columns) is left to `rankings.places`.
Different ones may stand for the same configuration, so fewer than 44 are measured.
"""

from collections.abc import Sequence
from itertools import product

from tilescout.experiments.compare.rankings import Wish
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace

COOPERATIVE = ((256, 128), (256, 160), (256, 192), (256, 208), (128, 224), (128, 256))
PING_PONG = ((128, 128), (128, 160), (128, 192), (128, 208), (192, 128))
CLUSTERS = ((1, 2), (2, 1))


def ranking(space: SearchSpace, default: Configuration) -> Sequence[Wish]:
    """All 44, in the order in which the autotuner measures them."""
    tiles = [(tile, 2) for tile in COOPERATIVE] + [(tile, 1) for tile in PING_PONG]
    return [
        _wish(tile[::-1], cluster[::-1], groups, "m") if swapped else _wish(tile, cluster, groups, "n")
        for (tile, groups), cluster, swapped in product(tiles, CLUSTERS, (False, True))
    ]


def _wish(tile: tuple[int, ...], cluster: tuple[int, ...], warp_groups: int, raster: str) -> Wish:
    return {
        "tile_m": tile[0],
        "tile_n": tile[1],
        "cluster_m": cluster[0],
        "cluster_n": cluster[1],
        "warp_groups": warp_groups,
        "swizzle": 8,
        "raster": raster,
    }
