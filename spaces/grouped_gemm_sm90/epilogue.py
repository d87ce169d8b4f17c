"""How a finished tile of ``grouped_gemm_sm90`` is stored: by TMA, and where a group ends within a unit, row by row.

A tile is stored in units of 64 rows of the product, through shared memory. TMA clips at the edges of D alone, and the
rows behind a group are another group's. So a unit that the group does not fill is copied by the threads, 16 bytes each,
as far as the group goes.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import CopyUniversalOp, cpasync

from tilescout.spaces.gemm_sm90.epilogue import EPILOGUE_BARRIER
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, EPILOGUE_STAGES, MMA_ROWS, WARP_GROUP, GemmShape


@dataclass(frozen=True)
class Store:
    """The stores of one consumer warp group.

    Attributes
    ----------
    shape
        The compile-time parameters.
    dtype
        The element type of D.
    copy, to_shared
        The copy of a unit's registers to shared memory, and the staging tiles as this thread writes them.
    staged
        The staging tiles: [rows of the product, columns, stages].
    store, d_tma
        The TMA atom, and the product D, or with swapped operands its transpose, as TMA sees it.
    d
        D in global memory: [tokens, n].
    group, lane
        The warp group, and the thread in it.
    """

    shape: GemmShape
    dtype: Any
    copy: cute.TiledCopy
    to_shared: cute.Tensor
    staged: cute.Tensor
    store: cute.CopyAtom
    d_tma: cute.Tensor
    d: cute.Tensor
    group: Int32
    lane: Int32

    @cute.jit
    def finish(self, values: cute.Tensor, number: int, token: Int32, column: Int32, stop: Int32) -> None:
        """Store a unit of this thread's warp group.

        Parameters
        ----------
        values
            The thread's fp32 accumulators of the unit.
        number
            How many units of the tile come before.
        token, column
            The unit's first row and column of D.
        stop
            The end of the group: rows of D from there on are not written.
        """
        shape = self.shape
        leader = cute.arch.make_warp_uniform(self.lane // 32) == 0
        buffer = self.group * EPILOGUE_STAGES + number % EPILOGUE_STAGES
        if token < stop:
            converted = cute.make_rmem_tensor(cute.make_layout(cute.shape(self.to_shared)[:3]).shape, self.dtype)
            flat = cute.make_tensor(converted.iterator, cute.make_layout(cute.size(converted)))
            flat.store(values.load().to(self.dtype))
            if leader:
                # The last tile's stores have had a whole main loop to finish: waiting for all costs nothing.
                cute.arch.cp_async_bulk_wait_group(EPILOGUE_STAGES - 1 if number > 0 else 0, read=True)
            self.sync()
            cute.copy(self.copy, converted, self.to_shared[(None, None, None, buffer)])
            cute.arch.fence_proxy("async.shared", space="cta")
            self.sync()
            if token + self.unit_tokens <= stop:
                if leader:
                    at = (column, token) if cutlass.const_expr(shape.swap_ab) else (token, column)
                    tile = (MMA_ROWS, shape.unit_n)
                    to_global = cute.local_tile(cute.domain_offset(at, self.d_tma), tile, (0, 0))
                    source, target = cpasync.tma_partition(
                        self.store,
                        0,
                        cute.make_layout(1),
                        cute.group_modes(self.staged, 0, 2),
                        cute.group_modes(to_global, 0, 2),
                    )
                    cute.copy(self.store, source[(None, buffer)], target)
            else:
                self.copy_rows(buffer, token, column, stop)
        if leader:
            # One group for every unit, whether TMA stores it or not: the wait above counts units.
            cute.arch.cp_async_bulk_commit_group()

    @property
    def unit_tokens(self) -> int:
        """Rows of D in a unit."""
        return self.shape.unit_n if self.shape.swap_ab else MMA_ROWS

    @cute.jit
    def copy_rows(self, buffer: Int32, token: Int32, column: Int32, stop: Int32) -> None:
        """Copy the rows of a staging tile that belong to the group."""
        shape = self.shape
        elements = ALIGNMENT * 8 // self.dtype.width
        tokens = self.unit_tokens
        columns = MMA_ROWS * shape.unit_n // tokens
        across = columns // elements
        copy = cute.make_tiled_copy_tv(
            cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=ALIGNMENT * 8),
            cute.make_layout((WARP_GROUP // across, across), stride=(across, 1)),
            cute.make_layout((1, elements)),
        )
        mine = copy.get_slice(self.lane)
        staged = self.staged
        if cutlass.const_expr(shape.swap_ab):
            staged = cute.make_tensor(staged.iterator, cute.select(staged.layout, [1, 0, 2]))
        width = cute.size(self.d, mode=[1])
        start = cute.assume(Int64(token) * width + column, divby=elements)
        place = cute.make_tensor(
            (self.d.iterator + start).align(ALIGNMENT),
            cute.make_layout((tokens, columns), stride=(cute.assume(width, divby=elements), 1)),
        )
        source = mine.partition_S(staged[(None, None, buffer)])
        target = mine.partition_D(place)
        here = mine.partition_S(cute.make_identity_tensor((tokens, columns)))
        for i in cutlass.range_constexpr(tokens * across // WARP_GROUP):
            row, first = here[(0, 0), i, 0]
            if token + row < stop and column + first < width:
                vector = cute.make_rmem_tensor(source[(None, i, 0)].shape, self.dtype)
                cute.copy(copy, source[(None, i, 0)], vector)
                cute.copy(copy, vector, target[(None, i, 0)])

    def sync(self) -> None:
        """Wait for the other threads of the warp group."""
        cute.arch.barrier(barrier_id=EPILOGUE_BARRIER + self.group, number_of_threads=WARP_GROUP)

    @cute.jit
    def drain(self) -> None:
        """Wait until TMA has read the staging tiles: shared memory must outlive the stores that read it."""
        if cute.arch.make_warp_uniform(self.lane // 32) == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
