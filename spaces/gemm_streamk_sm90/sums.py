"""The sums over parts of k that blocks leave in memory, and how they are added up, in a fixed order."""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from tilescout.spaces.gemm_sm90.layout import MMA_ROWS, WARP_GROUP
from tilescout.spaces.gemm_streamk_sm90.layout import STEP, STRIP, VECTOR, SharingShape
from tilescout.spaces.gemm_streamk_sm90.partition import slot

_AT_ONCE = 8  # parts whose sums are loaded before the first of them is added


@dataclass(frozen=True)
class Sums:
    """The workspace: fp32 sums of tiles, as the threads of a warp group hold them.

    Attributes
    ----------
    start
        Pointer to [slots, blocks of a cluster, 64-row units, vectors, threads, 4].
    shape
        The compile-time parameters of the kernel that leaves them.
    """

    start: Any
    shape: SharingShape

    def of_thread(self, slot: Any, block: Any, row: Any, lane: Any) -> cute.Tensor:
        """A thread's sums of 64 rows of a tile: [4, vectors]."""
        shape = self.shape
        tile = slot * (shape.cluster_m * shape.cluster_n) + block
        place = self.start + (tile * (shape.tile_m // MMA_ROWS) + row) * (MMA_ROWS * shape.tile_n) + lane * VECTOR
        layout = cute.make_layout((VECTOR, shape.tile_n // (2 * VECTOR)), stride=(1, WARP_GROUP * VECTOR))
        return cute.make_tensor(place.align(min_align=VECTOR * Float32.width // 8), layout)

    @cute.jit
    def total(
        self, tile: Int32, first: Int32, last: Int32, block: Int32, row: Int32, column: Int32, lane: Int32
    ) -> cute.Tensor:
        """A thread's sums over all parts, from the first to the last, of 64 rows of a strip that begins at a column."""
        vectors = STRIP // (2 * VECTOR)
        total = cute.make_rmem_tensor(cute.make_layout((VECTOR, vectors)), Float32)
        shares = cute.make_rmem_tensor(cute.make_layout((VECTOR, vectors, _AT_ONCE)), Float32)
        total.fill(0.0)
        for begin in cutlass.range(first, last + 1, _AT_ONCE, unroll=1):
            shares.fill(0.0)
            for i in cutlass.range_constexpr(_AT_ONCE):
                if begin + i <= last:
                    here = self.of_thread(slot(begin + i, tile), block, row, lane)
                    for vector in cutlass.range_constexpr(vectors):
                        cute.autovec_copy(here[(None, column // STEP + vector)], shares[(None, vector, i)])
            for i in cutlass.range_constexpr(_AT_ONCE):
                total.store(total.load() + shares[(None, None, i)].load())
        return cute.make_tensor(total.iterator, cute.make_layout(STRIP // 2))
