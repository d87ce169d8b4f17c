"""What a configuration of ``grouped_gemm_sm90`` occupies: what it would of ``gemm_sm90``, and the table of groups."""

from typing import Any

from tilescout.spaces.gemm_sm90 import layout as gemm
from tilescout.spaces.gemm_sm90.layout import BARRIER_BYTES, SWIZZLE_BYTES, GemmShape

MOST_EXPERTS = 512
MOST_WARPS = 20
_MOST_STAGES = 8

# A number for each group and each warp stands behind the barriers, 16 bytes a stage, and what follows is aligned.
_FRONT = 16 * _MOST_STAGES + 4 * (MOST_EXPERTS + MOST_WARPS)
TABLE_BYTES = -(-_FRONT // SWIZZLE_BYTES) * SWIZZLE_BYTES - BARRIER_BYTES
"""Bytes of the table of the groups that do not fit behind the barriers."""


def shared_memory(
    tile_m: Any, tile_n: Any, tile_k: Any, stages: Any, warp_groups: Any, groups: Any, element_bytes: int
) -> Any:
    """Bytes of shared memory that a block needs."""
    whole = gemm.shared_memory(tile_m, tile_n, tile_k, stages, warp_groups, groups, 1, element_bytes, element_bytes)
    return whole + TABLE_BYTES


def block_bytes(shape: GemmShape, element_bytes: int) -> int:
    """Bytes of shared memory that a block of a kernel needs."""
    return shape.shared_memory(element_bytes, element_bytes) + TABLE_BYTES
