"""When 8-bit products are added to the fp32 sums: apart from `layout`, whose text other kernels' tables rest on."""

from typing import Any

import numpy as np

from tilescout.spaces.gemm_sm90.layout import groups_per_tile
from tilescout.spaces.gemm_streamk_sm90 import layout


def promotion(tile_m: Any, tile_n: Any, warp_groups: Any, pingpong: Any, element_bytes: int) -> Any:
    """When the 8-bit products of a step along k are added, as `layout.promotion` has it where a warp group is alone.

    ``beside``: warp groups that share a tile add a product before they begin the next one, where registers do not
    suffice for two; the tensor cores meanwhile work for the other ones. So eleven kernels of such tiles took 0.956 to
    1.005 times as long as by halves or steps, 0.967 times in the mean (one product, chains, H200, 2026-12-01;
    `experiments/results/promotion.md`). Where one warp group has a tile for itself, halves stay: 1.02 times as long.
    """
    alone = layout.promotion(tile_m, tile_n, warp_groups, pingpong, element_bytes)
    shared = (groups_per_tile(warp_groups, pingpong) > 1) & (element_bytes == 1)
    return np.where(shared & (alone != "ahead"), "beside", alone)
