"""How a finished tile of ``grouped_swiglu_sm90`` is stored: gate and up become one value, which leaves half a tile.

The product's columns are 8 of the gate, 8 of up, and so on, so that both are in one thread's registers. What is left of
a unit of 64 rows are 64 rows of half as many columns of D; with swapped operands 32 columns of D, for as many tokens as
before. They go the way of ``grouped_gemm_sm90``: through shared memory, by TMA, and row by row where a group ends.
"""

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, EPILOGUE_STAGES, MMA_ROWS, WARP_GROUP
from tilescout.spaces.grouped_gemm_sm90.epilogue import Store
from tilescout.spaces.grouped_swiglu_sm90.layout import INTERLEAVED

_WARP_ROWS = 2 * INTERLEAVED  # of the product, that a warp holds of a unit


@dataclass(frozen=True)
class GatedStore(Store):
    """The stores of one consumer warp group; its unit is what SwiGLU leaves of a unit of the product."""

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns, of D or with swapped operands its transpose, of a unit."""
        if self.shape.swap_ab:
            return MMA_ROWS // 2, self.shape.unit_n
        return MMA_ROWS, self.shape.unit_n // 2

    @property
    def unit_tokens(self) -> int:
        """Rows of D in a unit."""
        return self.unit[int(self.shape.swap_ab)]

    @cute.jit
    def finish(self, values: cute.Tensor, number: int, token: Int32, column: Int32, stop: Int32) -> None:
        """Store a unit; the arguments are those of `Store.finish`, the column one of the product."""
        shape = self.shape
        leader = cute.arch.make_warp_uniform(self.lane // 32) == 0
        buffer = self.group * EPILOGUE_STAGES + number % EPILOGUE_STAGES
        column = column // 2
        if token < stop:
            gated = self.gated(values)
            if leader:
                # The last tile's stores have had a whole main loop to finish: waiting for all costs nothing.
                cute.arch.cp_async_bulk_wait_group(EPILOGUE_STAGES - 1 if number > 0 else 0, read=True)
            self.sync()
            if cutlass.const_expr(shape.swap_ab):
                self.put(gated, buffer)
            else:
                converted = cute.make_rmem_tensor(cute.make_layout(cute.shape(self.to_shared)[:3]).shape, self.dtype)
                flat = cute.make_tensor(converted.iterator, cute.make_layout(cute.size(converted)))
                flat.store(gated.load())
                cute.copy(self.copy, converted, self.to_shared[(None, None, None, buffer)])
            cute.arch.fence_proxy("async.shared", space="cta")
            self.sync()
            if token + self.unit_tokens <= stop:
                if leader:
                    at = (column, token) if cutlass.const_expr(shape.swap_ab) else (token, column)
                    to_global = cute.local_tile(cute.domain_offset(at, self.d_tma), self.unit, (0, 0))
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

    @cute.jit
    def gated(self, values: cute.Tensor) -> cute.Tensor:
        """Gates times their ups, rounded, of a thread's accumulators, in the order of the gates among them."""
        # Of each block of 8 columns a thread has two columns of two rows, 8 apart: the rows are gate and up where the
        # weights lie along them, and otherwise the blocks are in turn.
        step = 2 if cutlass.const_expr(self.shape.swap_ab) else 4
        result = cute.make_rmem_tensor(cute.make_layout(cute.size(values) // 2), Float32)
        for i in cutlass.range_constexpr(cute.size(result)):
            at = i // step * 2 * step + i % step
            gate, up = values[at], values[at + step]
            # The approximate reciprocal is off by 1 in the last of 23 bits, and bf16 keeps 7.
            result[i] = gate * up * cute.arch.rcp_approx(1.0 + cute.math.exp(-gate, fastmath=True))
        rounded = cute.make_rmem_tensor(result.layout, self.dtype)
        rounded.store(result.load().to(self.dtype))
        return rounded

    @cute.jit
    def put(self, gated: cute.Tensor, buffer: Int32) -> None:
        """Write a unit of the transpose of D into its staging tile."""
        warp, lane = self.lane // 32, self.lane % 32
        row = warp * INTERLEAVED + lane // 4
        for i in cutlass.range_constexpr(cute.size(gated)):
            token = i // 2 * 8 + lane % 4 * 2 + i % 2
            self.staged[row, token, buffer] = gated[i]

    @cute.jit
    def copy_rows(self, buffer: Int32, token: Int32, column: Int32, stop: Int32) -> None:
        """Copy the rows of a staging tile that belong to the group."""
        elements = ALIGNMENT * 8 // self.dtype.width
        tokens = self.unit_tokens
        columns = self.unit[1 - int(self.shape.swap_ab)]
        across = columns // elements
        deep = WARP_GROUP // across  # rows that the threads copy at a time
        staged = self.staged
        if cutlass.const_expr(self.shape.swap_ab):
            staged = cute.make_tensor(staged.iterator, cute.select(staged.layout, [1, 0, 2]))
        width = cute.size(self.d, mode=[1])
        row, first = self.lane // across, self.lane % across * elements
        for i in cutlass.range_constexpr(-(-tokens // deep)):
            here = row + i * deep
            if here < tokens and token + here < stop and column + first < width:
                start = cute.assume(Int64(token + here) * width + column + first, divby=elements)
                target = cute.make_tensor((self.d.iterator + start).align(ALIGNMENT), cute.make_layout(elements))
                vector = cute.make_rmem_tensor(cute.make_layout(elements), self.dtype)
                for each in cutlass.range_constexpr(elements):
                    vector[each] = staged[here, first + each, buffer]
                cute.autovec_copy(vector, target)
