"""What a configuration of ``gemm_sm90`` occupies: pure arithmetic, shared by the rules and the kernel.

The functions take integers or columns of them.
"""

from dataclasses import dataclass
from typing import Any

WARP_GROUP = 128  # threads
MMA_ROWS = 64  # rows of D that one WGMMA instruction computes
EPILOGUE_STAGES = 2  # shared-memory tiles through which a warp group stores
BARRIER_BYTES = 1024  # the ring's barriers (16 bytes a stage), padded to the alignment of what follows

# Most fp32 accumulators a consumer thread can hold with 1, 2, 3, 4 consumer warp groups (index 0 is unused), read off
# ptxas for sm_90a: with one and two groups the kernel spills above (128x256 with one: 1144 bytes of stack; 256x224
# with two: 944); with three and four WGMMA's operands do not fit the registers that a thread starts with and ptxas
# refuses (192x224: "insufficient registers (128)"; 256x160: "(96)").
MAX_ACCUMULATORS = (0, 208, 208, 96, 64)

# Registers a thread of (the producer, a consumer) has after reallocation. All 64 Ki registers of an SM are shared out:
# a block of 128 * (groups + 1) threads starts with 168, 128 and 96 a thread. With one consumer group 255 a thread fit.
_REGISTERS = {2: (40, 232), 3: (32, 160), 4: (24, 112)}


def accumulators(tile_m: Any, tile_n: Any, warp_groups: Any) -> Any:
    """Fp32 accumulators that a consumer thread holds."""
    return tile_m * tile_n // (WARP_GROUP * warp_groups)


def epilogue_columns(tile_n: Any) -> Any:
    """Columns that one store moves: 64 16-bit elements fill the widest swizzle, where the tile's width allows."""
    return 32 + 32 * (tile_n % 64 == 0)


def shared_memory(tile_m: Any, tile_n: Any, tile_k: Any, stages: Any, warp_groups: Any, element_bytes: int) -> Any:
    """Bytes of shared memory that a block needs."""
    ring = stages * (tile_m + tile_n) * tile_k
    epilogue = EPILOGUE_STAGES * warp_groups * MMA_ROWS * epilogue_columns(tile_n)
    return BARRIER_BYTES + (ring + epilogue) * element_bytes


@dataclass(frozen=True)
class GemmShape:
    """The compile-time parameters of one kernel, in elements, blocks and warp groups."""

    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    stages: int
    swizzle: int
    raster_along_m: bool
    warp_groups: int

    @property
    def threads(self) -> int:
        """Threads a block: the consumer warp groups and the producer's."""
        return WARP_GROUP * (self.warp_groups + 1)

    @property
    def epilogue_n(self) -> int:
        """Columns that one store moves."""
        return int(epilogue_columns(self.tile_n))

    @property
    def reallocates(self) -> bool:
        """Whether the consumers take over registers of the producer."""
        return self.warp_groups in _REGISTERS

    @property
    def registers(self) -> tuple[int, int]:
        """Registers a thread of (the producer, a consumer) after reallocation."""
        return _REGISTERS[self.warp_groups]
