"""What a configuration of ``gemm_sm90`` occupies: pure arithmetic, shared by the rules and the kernel.

The functions take integers or columns of them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilescout.spaces.gemm import GemmProblem

WARP_GROUP = 128  # threads
MMA_ROWS = 64  # rows of the product that one WGMMA instruction computes
ALIGNMENT = 16  # bytes: what TMA demands of addresses and strides
SWIZZLE_BYTES = 1024  # bytes after which the widest swizzle repeats
EPILOGUE_STAGES = 2  # shared-memory tiles through which a warp group stores
BARRIER_BYTES = 1024  # the barriers (16 bytes a stage and a warp group), padded to the alignment of what follows

# Most fp32 accumulators a consumer thread can hold with 1, 2, 3, 4 consumer warp groups (index 0 is unused), read off
# ptxas for sm_90a: with one and two groups the kernel spills above (128x224 with one and a fused bias and gelu: 112
# bytes of stack; 256x208 with two: 1280); with three and four WGMMA's operands do not fit the registers that a thread
# starts with and ptxas refuses (192x208: "insufficient registers (128)"; 256x144: "(96)").
MAX_ACCUMULATORS = (0, 208, 192, 96, 64)

# Registers a thread of (the producer, a consumer) has after reallocation. All 64 Ki registers of an SM are shared out:
# a block of 128 * (groups + 1) threads starts with 168, 128 and 96 a thread. With one consumer group 255 a thread fit.
_REGISTERS = {2: (40, 232), 3: (32, 160), 4: (24, 112)}


def steps(problem: GemmProblem) -> dict[str, int]:
    """What m, n and k must be multiples of, in elements: TMA wants contiguous rows of 16 bytes."""
    found = {"m": 1, "n": ALIGNMENT // problem.result.bytes, "k": 1}
    for name in problem.layout:
        found[name] = max(found[name], ALIGNMENT // problem.element.bytes)
    return found


def groups_per_tile(warp_groups: Any, pingpong: Any) -> Any:
    """Consumer warp groups that compute one tile together: all of them, or each its own."""
    return 1 + (warp_groups - 1) * (1 - 1 * pingpong)


def accumulators(tile_m: Any, tile_n: Any, groups: Any) -> Any:
    """Fp32 accumulators that a consumer thread holds of a tile that `groups` warp groups compute."""
    return tile_m * tile_n // (WARP_GROUP * groups)


def held(tile_m: Any, tile_n: Any, groups: Any, element_bytes: int) -> Any:
    """Fp32 registers that a consumer thread needs for sums: of 8-bit products, 64 rows are held twice, to promote."""
    return accumulators(tile_m, tile_n, groups) + (tile_n // 2 if element_bytes == 1 else 0)


def unit_columns(tile_n: Any) -> Any:
    """Columns of a unit, the 64 rows of the product that a warp group stores at a time: the most that divide a tile.

    64 columns of 16 bits fill the widest swizzle.
    """
    return 16 * (1 + (tile_n % 32 == 0) + 2 * (tile_n % 64 == 0))


def units(tile_m: Any, tile_n: Any, groups: Any) -> Any:
    """Units of a tile that each of its warp groups stores."""
    return tile_m // (MMA_ROWS * groups) * (tile_n // unit_columns(tile_n))


def owners(tile_m: Any, tile_n: Any, groups: Any, split_k: Any) -> Any:
    """Of the blocks that split a product along k, how many finish it: each sums an equal share of the units."""
    return np.gcd(units(tile_m, tile_n, groups), split_k)


def exchange_bytes(tile_m: Any, tile_n: Any, warp_groups: Any, groups: Any, split_k: Any) -> Any:
    """Bytes of shared memory into which the blocks of a split product put their shares of what this block finishes."""
    share = units(tile_m, tile_n, groups) // owners(tile_m, tile_n, groups, split_k)
    return 4 * warp_groups * split_k * share * MMA_ROWS * unit_columns(tile_n) * (split_k > 1)


@dataclass(frozen=True)
class GemmShape:
    """The compile-time parameters of one kernel, in elements, blocks and warp groups."""

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    split_k: int
    stages: int
    swizzle: int
    raster_along_m: bool
    warp_groups: int
    pingpong: bool
    swap_ab: bool

    @property
    def threads(self) -> int:
        """Threads a block: the consumer warp groups and the producer's."""
        return WARP_GROUP * (self.warp_groups + 1)

    @property
    def groups(self) -> int:
        """Consumer warp groups that compute one tile together."""
        return int(groups_per_tile(self.warp_groups, self.pingpong))

    @property
    def cluster(self) -> tuple[int, int, int]:
        """Blocks of a cluster along the rows and columns of the product, and along k."""
        return self.cluster_m, self.cluster_n, self.split_k

    @property
    def unit_n(self) -> int:
        """Columns that a warp group stores at a time."""
        return int(unit_columns(self.tile_n))

    @property
    def strips(self) -> int:
        """Units of a tile along n."""
        return self.tile_n // self.unit_n

    @property
    def units(self) -> int:
        """Units of a tile that each of its warp groups stores."""
        return int(units(self.tile_m, self.tile_n, self.groups))

    @property
    def owners(self) -> int:
        """Blocks that finish a product which is split along k."""
        return int(owners(self.tile_m, self.tile_n, self.groups, self.split_k))

    @property
    def exchange_bytes(self) -> int:
        """Bytes of shared memory for the shares of a product that is split along k."""
        return int(exchange_bytes(self.tile_m, self.tile_n, self.warp_groups, self.groups, self.split_k))

    @property
    def reallocates(self) -> bool:
        """Whether the consumers take over registers of the producer."""
        return self.warp_groups in _REGISTERS

    @property
    def registers(self) -> tuple[int, int]:
        """Registers a thread of (the producer, a consumer) after reallocation."""
        return _REGISTERS[self.warp_groups]

    def shared_memory(self, element_bytes: int, result_bytes: int) -> int:
        """Bytes of shared memory that a block needs."""
        return int(
            shared_memory(
                self.tile_m, self.tile_n, self.tile_k, self.stages, self.warp_groups, self.groups, self.split_k,
                element_bytes, result_bytes,
            )
        )  # fmt: skip


def shared_memory(
    tile_m: Any, tile_n: Any, tile_k: Any, stages: Any, warp_groups: Any, groups: Any, split_k: Any,
    element_bytes: int, result_bytes: int,
) -> Any:  # fmt: skip
    """Bytes of shared memory that a block needs: the ring of stages, the epilogue's tiles, the exchange, barriers."""
    ring = stages * (tile_m + tile_n) * tile_k * element_bytes
    epilogue = EPILOGUE_STAGES * warp_groups * MMA_ROWS * unit_columns(tile_n) * result_bytes
    return BARRIER_BYTES + ring + epilogue + exchange_bytes(tile_m, tile_n, warp_groups, groups, split_k)
