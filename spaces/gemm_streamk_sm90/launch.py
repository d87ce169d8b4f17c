"""How blocks are launched and results are stored: apart from `layout`, whose text other kernels' tables rest on."""

from dataclasses import dataclass

from tilescout.spaces.gemm_sm90.layout import EPILOGUE_STAGES, MMA_ROWS
from tilescout.spaces.gemm_streamk_sm90.layout import STRIP, SharingShape, unit_columns
from tilescout.spaces.tiling import ceil_div


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
        """Columns of a unit: of swapped operands as few as cover a tile by as many units, so that few overlap.

        There a unit is contiguous along its 64 rows. Else it is along its columns, which then fill a swizzle.
        """
        most = unit_columns(self.tile_n)
        even = ceil_div(self.tile_n, STRIP * ceil_div(self.tile_n, most)) * STRIP
        return int(even if self.swap_ab and self.narrow else most)

    def shared_memory(self, element_bytes: int, result_bytes: int) -> int:
        """Bytes of shared memory that a block needs; `layout` knows the widest units only."""
        columns = int(unit_columns(self.tile_n)) - self.unit_n
        saved = EPILOGUE_STAGES * self.warp_groups * MMA_ROWS * columns * result_bytes
        return super().shared_memory(element_bytes, result_bytes) - saved
