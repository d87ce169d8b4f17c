"""Shared memory of a configuration of ``grouped_swiglu_sm90``: less than of ``grouped_gemm_sm90``; half is stored."""

from typing import Any

from tilescout.spaces.gemm_sm90.layout import EPILOGUE_STAGES, MMA_ROWS, GemmShape, unit_columns
from tilescout.spaces.grouped_gemm_sm90 import layout as grouped

INTERLEAVED = 8
"""Columns of the gate, and then as many of up, that follow each other in the product.

With 8, a gate and its up are in the same thread, whichever side of the product they lie along: of WGMMA's accumulators
a thread holds rows 8 apart, and columns of each block of 8.
"""


def shared_memory(
    tile_m: Any, tile_n: Any, tile_k: Any, stages: Any, warp_groups: Any, groups: Any, element_bytes: int
) -> Any:
    """Bytes of shared memory that a block needs."""
    whole = grouped.shared_memory(tile_m, tile_n, tile_k, stages, warp_groups, groups, element_bytes)
    return whole - EPILOGUE_STAGES * warp_groups * MMA_ROWS * unit_columns(tile_n) // 2 * element_bytes


def block_bytes(shape: GemmShape, element_bytes: int) -> int:
    """Bytes of shared memory that a block of a kernel needs."""
    return int(
        shared_memory(
            shape.tile_m, shape.tile_n, shape.tile_k, shape.stages, shape.warp_groups, shape.groups, element_bytes
        )
    )
