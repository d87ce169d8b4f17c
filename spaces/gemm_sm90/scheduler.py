"""The order in which the persistent grid of ``gemm_sm90`` walks the tiles of D."""

from dataclasses import dataclass

import cutlass
from cutlass import Int32, cute


@dataclass(frozen=True)
class TileOrder:
    """The units of work of a grid, each a tile of D for every block of a cluster.

    Tiles are walked in bands `swizzle` wide: along m, each band takes `swizzle` neighbouring columns of tiles row by
    row (along n, the mirror image). Blocks that run at the same time then read few distinct rows of A and B, which stay
    in the L2. The last band may be narrower.

    Attributes
    ----------
    count_m, count_n
        Tiles along m and n, in clusters.
    batches
        Number of products.
    swizzle
        Width of a band.
    along_m
        Whether bands run along m.
    """

    count_m: Int32
    count_n: Int32
    batches: Int32
    swizzle: int
    along_m: bool

    def count(self) -> Int32:
        """Units of work."""
        return self.count_m * self.count_n * self.batches

    @cute.jit
    def at(self, work: Int32) -> tuple[Int32, Int32, Int32]:
        """The (m, n, batch) coordinates of a unit of work."""
        per_batch = self.count_m * self.count_n
        batch = work // per_batch
        index = work % per_batch
        along, across = self.count_m, self.count_n
        if cutlass.const_expr(not self.along_m):
            along, across = self.count_n, self.count_m
        if cutlass.const_expr(self.swizzle == 1):
            position = index % along
            lane = index // along
        else:
            band = index // (self.swizzle * along)
            within = index % (self.swizzle * along)
            width = min(Int32(self.swizzle), across - band * self.swizzle)
            position = within // width
            lane = band * self.swizzle + within % width
        m, n = position, lane
        if cutlass.const_expr(not self.along_m):
            m, n = lane, position
        return m, n, batch
