"""What a configuration of ``gemm_streamk_sm90`` occupies: pure arithmetic, shared by the rules and the kernel.

The functions take integers or columns of them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilescout.spaces.gemm_sm90.layout import (
    BARRIER_BYTES,
    EPILOGUE_STAGES,
    MAX_ACCUMULATORS,
    MMA_ROWS,
    GemmShape,
    accumulators,
    groups_per_tile,
)
from tilescout.spaces.gemm_sm90.template import MOST_PROMOTING
from tilescout.spaces.gemm_streamk_sm90.partition import MOST_BLOCKS

VECTOR = 4  # fp32 numbers that a thread moves at a time
STRIP = 16  # columns of 64 rows of a tile, which a block of the second kernel adds up: the fewest that stmatrix takes
STEP = 8  # columns: what the width of a matrix instruction is a multiple of

# Most fp32 registers of a thread for its sums and two 8-bit products of 64 rows, with 1, 2, 3 warp groups (index 0 is
# unused), read off ptxas for sm_90a: 64x160, 128x144 and 192x96 have as many, and do not spill.
MOST_AHEAD = (0, 240, 216, 144)

# The same for sums and two halves of a product: 64x176, 128x176 and 192x120 have as many. 128x184 and 192x128 spill.
MOST_HALVES = (0, 176, 176, 120)


@dataclass(frozen=True)
class SharingShape(GemmShape):
    """The compile-time parameters of one kernel: also how it promotes products, see `promotion`."""

    promotion: str

    @property
    def unit_n(self) -> int:
        return int(unit_columns(self.tile_n))

    @property
    def strips(self) -> int:
        return len(self.starts)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first columns of the units of a tile; the last unit may overlap the one before."""
        return starts(self.tile_n, self.unit_n)

    @property
    def units(self) -> int:
        return self.tile_m // (MMA_ROWS * self.groups) * self.strips

    def shared_memory(self, element_bytes: int, result_bytes: int) -> int:
        return int(
            shared_memory(
                self.tile_m, self.tile_n, self.tile_k, self.stages, self.warp_groups, element_bytes, result_bytes
            )
        )


def stage_rows(rows: Any) -> Any:
    """Rows of an operand in shared memory: CuteDSL 4.8 aborts when a stage of an odd number of 8, in bf16, is taken."""
    return (rows + STEP) // (2 * STEP) * (2 * STEP)


def unit_columns(tile_n: Any) -> Any:
    """Columns of a unit, the 64 rows of the product that a warp group stores at a time: up to 64, if a tile has them.

    Where they do not divide a tile, its last unit begins earlier, and some columns are stored twice. Units that divide
    a tile of 88 columns would have 8, eleven of them a row.
    """
    return 16 * (1 + (tile_n >= 32) + 2 * (tile_n >= 64))


def starts(tile_n: int, columns: int) -> tuple[int, ...]:
    """The first columns of all units of so many columns that cover a tile."""
    return tuple(min(first, tile_n - columns) for first in range(0, tile_n, columns))


def shared_memory(
    tile_m: Any, tile_n: Any, tile_k: Any, stages: Any, warp_groups: Any, element_bytes: int, result_bytes: int
) -> Any:
    """Bytes of shared memory that a block needs: the ring of stages, the epilogue's tiles, barriers."""
    ring = stages * (tile_m + stage_rows(tile_n)) * tile_k * element_bytes
    return BARRIER_BYTES + ring + EPILOGUE_STAGES * warp_groups * MMA_ROWS * unit_columns(tile_n) * result_bytes


def halves(tile_n: int) -> tuple[int, int]:
    """Columns of the two products of 64 rows of a tile that is computed by halves, the first of at most 8 more."""
    first = (tile_n // STEP + 1) // 2 * STEP
    return first, tile_n - first


def promotion(tile_m: Any, tile_n: Any, warp_groups: Any, pingpong: Any, element_bytes: int) -> Any:
    """When the 8-bit products of a step along k are added to the fp32 sums.

    ``ahead``: while the next one of 64 rows is computed, where registers suffice for two. ``halves``: while the next
    one of 64 rows and half of the columns is; the rows are then read twice from shared memory. ``step``: before the
    next one begins, as in ``gemm_sm90``. Of kernels that were timed in two ways, the first of these was the faster on
    all but one (`experiments/results/promotion.md`).
    """
    groups = groups_per_tile(warp_groups, pingpong)
    pieces, sums = tile_m // (MMA_ROWS * groups), accumulators(tile_m, tile_n, groups)
    most = np.array(MAX_ACCUMULATORS)[warp_groups]
    # 256x56 by one warp group and 256x104 by two spill ahead.
    fewer = np.minimum(most, MOST_PROMOTING)
    ahead = (pieces <= 2) & (sums + tile_n <= np.where(pieces > 1, fewer, np.array(MOST_AHEAD)[warp_groups]))
    by_halves = (pieces == 1) & (sums + tile_n // 2 <= np.array(MOST_HALVES)[warp_groups])
    return np.where(element_bytes > 1, "step", np.where(ahead, "ahead", np.where(by_halves, "halves", "step")))


def held(tile_m: Any, tile_n: Any, groups: Any, promotion: Any, element_bytes: int) -> Any:
    """Fp32 registers that a consumer thread needs for sums, and for the 8-bit products that it promotes."""
    products = (1 + 1 * (promotion == "ahead")) * (element_bytes == 1)  # those of halves are together as large as one
    return accumulators(tile_m, tile_n, groups) + products * tile_n // 2


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
