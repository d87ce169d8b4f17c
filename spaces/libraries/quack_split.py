"""How Quack's kernels split k, and the memory that takes: arithmetic that the rules and the kernels' callers share.

The functions take integers, columns of them, or CuteDSL's numbers.
"""

from collections.abc import Mapping
from typing import Any

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Value
from tilescout.spaces.tiling import computed_extents

WORD = 4  # bytes


def block_rows(knobs: Mapping[str, Any], arch: str) -> Any:
    """Rows of a tile that a block computes: of those of Blackwell's, two blocks of a cluster compute half each."""
    halves = 2 - knobs["cluster_m"] % 2 if arch == "sm_100a" else 1
    return knobs["tile_m"] // halves


def whole_tiles(extent: Any, size: int, blocks: int) -> Any:
    """Tiles of a size along an extent by clusters of so many blocks, which are full, also where tiles lie outside."""
    return (extent + size * blocks - 1) // (size * blocks) * blocks


def scratch_bytes(knobs: Mapping[str, Value], problem: GemmProblem, arch: str) -> int:
    """Bytes of memory that the blocks that share a tile need beside D, for one configuration.

    One after the other (serial) they add to the fp32 sums of the tile and count themselves in a flag; separately, each
    leaves its own sums, in the shape of D, for another kernel to add up.
    """
    if knobs["split_k"] == 1:
        return 0
    if knobs["split_mode"] == "separate":
        return WORD * int(knobs["split_k"]) * problem.batch * problem.m * problem.n
    tile = int(block_rows(knobs, arch)), int(knobs["tile_n"])
    cluster = int(knobs.get("cluster_m", 1)), int(knobs.get("cluster_n", 1))
    along_m, along_n = map(whole_tiles, computed_extents(knobs, problem), tile, cluster)
    return WORD * problem.batch * int(along_m * along_n) * (tile[0] * tile[1] + 1)
