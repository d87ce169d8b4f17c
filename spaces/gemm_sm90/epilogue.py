"""What happens to a finished tile of ``gemm_sm90``: scale, bias, activation, rounding, and the store to D.

A tile is stored in units of 64 rows: registers to shared memory, then TMA. The product that the tensor cores compute is
D, or with swapped operands the transpose of D; the unit is then stored transposed.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import CopyUniversalOp, warp

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.layout import EPILOGUE_STAGES, MMA_ROWS, WARP_GROUP, GemmShape

EPILOGUE_BARRIER = 1  # named barriers 1, 2, ... belong to the consumer warp groups; 0 is __syncthreads


@dataclass(frozen=True)
class Epilogue:
    """The stores of one consumer warp group.

    Attributes
    ----------
    shape, problem
        The compile-time parameters, and a problem of the signature.
    dtype
        The element type of D.
    alpha, bias
        What the product is scaled by [1] and what is added to it [n], in global memory; None if nothing.
    mma, copy
        The tensor cores' operation on 64 rows, and the copy of its registers to shared memory.
    to_shared, from_shared, to_global
        The staging tiles as this thread writes them, as TMA reads them, and where TMA puts them.
    store
        The TMA atom.
    group, lane
        The warp group, and the thread in it.
    """

    shape: GemmShape
    problem: GemmProblem
    dtype: Any
    alpha: Any
    bias: Any
    mma: cute.TiledMma
    copy: cute.TiledCopy
    to_shared: cute.Tensor
    from_shared: cute.Tensor
    to_global: cute.Tensor
    store: cute.CopyAtom
    group: Int32
    lane: Int32

    @cute.jit
    def finish(self, values: cute.Tensor, number: int, at: tuple[Any, Any, Any]) -> None:
        """Store a unit of this thread's warp group.

        Parameters
        ----------
        values
            The thread's fp32 accumulators of the unit.
        number
            How many units of the tile were stored before.
        at
            The unit's coordinates, in units, along the rows and columns of the product and the batch.
        """
        leader = cute.arch.make_warp_uniform(self.lane // 32) == 0
        buffer = self.group * EPILOGUE_STAGES + number % EPILOGUE_STAGES
        converted = cute.make_rmem_tensor(cute.make_layout(cute.shape(self.to_shared)[:3]).shape, self.dtype)
        flat = cute.make_tensor(converted.iterator, cute.make_layout(cute.size(converted)))
        flat.store(self.fused(values, at).to(self.dtype))
        if leader:
            # The last tile's stores have had a whole main loop to finish: waiting for all costs nothing.
            cute.arch.cp_async_bulk_wait_group(EPILOGUE_STAGES - 1 if number > 0 else 0, read=True)
        self.sync()
        cute.copy(self.copy, converted, self.to_shared[(None, None, None, buffer)])
        cute.arch.fence_proxy("async.shared", space="cta")
        self.sync()
        if leader:
            cute.copy(self.store, self.from_shared[(None, buffer)], self.to_global[(None, *at)])
            cute.arch.cp_async_bulk_commit_group()

    def sync(self) -> None:
        """Wait for the other threads of the warp group."""
        cute.arch.barrier(barrier_id=EPILOGUE_BARRIER + self.group, number_of_threads=WARP_GROUP)

    @cute.jit
    def fused(self, values: cute.Tensor, at: tuple[Any, Any, Any]) -> Any:
        """The values with the problem's epilogue applied."""
        result = values.load()
        if cutlass.const_expr(self.problem.alpha):
            result = result * self.alpha[0]
        if cutlass.const_expr(self.problem.bias):
            result = result + self.bias_of(at)
        if cutlass.const_expr(self.problem.activation == "relu"):
            result = cute.where(result > 0.0, result, cute.full_like(result, 0.0))
        if cutlass.const_expr(self.problem.activation == "gelu"):
            result = result * (cute.math.erf(result * 0.5**0.5) * 0.5 + 0.5)
        if cutlass.const_expr(self.problem.activation == "silu"):
            result = result / (cute.math.exp(-result) + 1.0)
        return result

    @cute.jit
    def bias_of(self, at: tuple[Any, Any, Any]) -> Any:
        """The bias of each of the thread's values: along the product's columns, or its rows with swapped operands."""
        shape = self.shape
        rows, columns = MMA_ROWS, shape.unit_n
        here = self.mma.get_slice(self.lane).partition_C(cute.make_identity_tensor((rows, shape.tile_n)))
        last = cute.size(self.bias) - 1
        bias = cute.make_rmem_tensor(cute.make_layout(columns // 2), Float32)
        for i in cutlass.range_constexpr(columns // 2):
            row, column = here[i]
            index = at[0] * rows + row if cutlass.const_expr(shape.swap_ab) else at[1] * columns + column
            # Beyond the edge of D anything will do: TMA does not store it.
            bias[i] = self.bias[min(Int32(index), last)].to(Float32)
        return bias.load()

    @cute.jit
    def drain(self) -> None:
        """Wait until TMA has read the staging tiles: shared memory must outlive the stores that read it."""
        if cute.arch.make_warp_uniform(self.lane // 32) == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)


def register_copy(mma: cute.TiledMma, dtype: Any, transposed: bool) -> cute.TiledCopy:
    """The copy of a unit from registers to shared memory: stmatrix for 16-bit elements, plain stores for fp32."""
    layout = cute.make_tiled_copy_C_atom(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), cutlass.Float16), mma)
    operation = warp.StMatrix8x8x16bOp(transposed, 4) if dtype.width == 16 else CopyUniversalOp()
    return cute.make_tiled_copy_S(cute.make_copy_atom(operation, dtype), layout)
