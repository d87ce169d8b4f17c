"""How blocks are launched and results are stored: apart from `layout`, whose text other kernels' tables rest on."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tilescout.spaces.errors import BuildError
from tilescout.spaces.gemm_sm90.layout import EPILOGUE_STAGES, MMA_ROWS
from tilescout.spaces.gemm_streamk_sm90.layout import STRIP, SharingShape, unit_columns
from tilescout.spaces.knobs import Value
from tilescout.spaces.tiling import ceil_div

BITS = 16  # of the number of a launch
NUMBER = 0x5EED << BITS  # beside it, so that it can be found in the launch code
ALONG_N, WAY = 4, 3  # of that number: what bands along n add, and the place of the first bit of the way to share
EVENLY = 0  # the way in which the last wave is shared evenly; others are the parts of each tile


def launch_number(configuration: Mapping[str, Value]) -> int:
    """The number that a launch is told, with `NUMBER`: the parts of each tile, and the order of the tiles.

    The order is the binary logarithm of the width of a band, and its direction.
    """
    order = int(configuration["swizzle"]).bit_length() - 1 + (0 if configuration["raster"] == "m" else ALONG_N)
    way = EVENLY if configuration["stream_k"] == 1 else int(configuration["split"])
    return NUMBER | way << WAY | order


def relaunched(binary: bytes, old: int, new: int) -> bytes:
    """The bytes of a shared object that is launched by another number.

    The launch code has the number once, as an immediate operand.

    Raises
    ------
    BuildError
        If it is there another number of times: then nothing is known of what would be changed.
    """
    before, after = (struct.pack("<I", number) for number in (old, new))
    if (found := binary.count(before)) != 1:
        raise BuildError(f"the launch code has the number of the launch {found} times, expected 1")
    return binary.replace(before, after)


_HALF = 32  # columns of the narrower ones of two units that fill a swizzle


@dataclass(frozen=True)
class LaunchedShape(SharingShape):
    """The compile-time parameters of one kernel: also how its blocks are launched.

    Attributes
    ----------
    pairs
        Whether blocks are launched two by two, as clusters that share nothing. Each pair is on two multiprocessors next
        to one another, which ask the L2 for the same rows at the same time.
    narrow
        Whether units of swapped operands are as narrow as covers a tile; else they are as wide as those of others.
        Results of 16 bits alone have such: CuteDSL 4.8 aborts when a unit of 48 columns of fp32 is taken.
    """

    pairs: bool
    narrow: bool

    @property
    def together(self) -> int:
        """Blocks that are launched together, beside those of a cluster that shares loads."""
        return 2 if self.pairs else 1

    @property
    def unit_n(self) -> int:
        """Columns of a unit: so many that few of a tile are stored twice.

        A unit of swapped operands is contiguous along its 64 rows, and has as few as cover a tile by as many units.
        Else it is contiguous along its columns, which then fill a swizzle: half of 64 where these cover a tile closer.
        Kernels of 144 columns were 1.015 times as fast so, of 160 columns 1.029 times, and of 96 1.004 times (pairs of
        kernels in chains, H100, 2026-11-27; `experiments/results/stream-k.md`).
        """
        most = int(unit_columns(self.tile_n))
        if self.swap_ab:
            even = ceil_div(self.tile_n, STRIP * ceil_div(self.tile_n, most)) * STRIP
            return int(even) if self.narrow else most
        return _HALF if most > _HALF and ceil_div(self.tile_n, _HALF) % 2 else most

    def shared_memory(self, element_bytes: int, result_bytes: int) -> int:
        """Bytes of shared memory that a block needs; `layout` knows the widest units only."""
        columns = int(unit_columns(self.tile_n)) - self.unit_n
        saved = EPILOGUE_STAGES * self.warp_groups * MMA_ROWS * columns * result_bytes
        return super().shared_memory(element_bytes, result_bytes) - saved
