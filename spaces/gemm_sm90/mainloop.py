"""The main loop of ``gemm_sm90``: a consumer warp group drains the ring into its accumulators."""

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass.cute.nvgpu import warpgroup


@cute.jit
def multiply(
    mma: cute.TiledMma,
    fragments: tuple[cute.Tensor, cute.Tensor],
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    release: pipeline.PipelineState,
    k_tiles: Int32,
) -> tuple[pipeline.PipelineState, pipeline.PipelineState]:
    """Multiply all stages of a tile; the last product stays in flight, and its stage is not released."""
    a, b = fragments
    # The first product of a tile overwrites the accumulators, so nothing has to be cleared.
    mma.set(warpgroup.Field.ACCUMULATE, False)
    ring.consumer_wait(read)
    warpgroup.fence()
    for block in cutlass.range_constexpr(cute.size(a, mode=[2])):
        at = (None, None, block, read.index)
        cute.gemm(mma, accumulators, a[at], b[at], accumulators)
        mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()
    read.advance()
    # One product stays in flight while the next is issued; a stage is released when its product is done.
    for _ in cutlass.range(1, k_tiles, unroll=1):
        ring.consumer_wait(read)
        warpgroup.fence()
        for block in cutlass.range_constexpr(cute.size(a, mode=[2])):
            at = (None, None, block, read.index)
            cute.gemm(mma, accumulators, a[at], b[at], accumulators)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        ring.consumer_release(release)
        read.advance()
        release.advance()
    return read, release


@cute.jit
def multiply_promoted(
    mma: cute.TiledMma,
    step: tuple[int, int],
    fragments: tuple[cute.Tensor, cute.Tensor],
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    k_tiles: Int32,
) -> pipeline.PipelineState:
    """Multiply all stages of a tile, each from zero: its product is added to the accumulators in fp32.

    That is done 64 rows of a warp group at a time (`step` is the size of such a product), which leaves registers for
    larger tiles; the tensor cores meanwhile work for the other warp groups. (Two products held in turn, so that one is
    added while the next is computed, took 1.25 times as long at 4096x4096x4096 on an H200.)
    """
    a, b = fragments
    product = cute.make_rmem_tensor(mma.partition_shape_C(step), Float32)
    by_rows = cute.make_tensor(accumulators.iterator, cute.make_layout((cute.size(product), cute.size(a, mode=[1]))))
    accumulators.fill(0.0)
    for _ in cutlass.range(k_tiles, unroll=1):
        ring.consumer_wait(read)
        for rows in cutlass.range_constexpr(cute.size(a, mode=[1])):
            mma.set(warpgroup.Field.ACCUMULATE, False)
            warpgroup.fence()
            for block in cutlass.range_constexpr(cute.size(a, mode=[2])):
                a_rows = cute.append_ones(a[(None, rows, block, read.index)], up_to_rank=2)
                cute.gemm(mma, product, a_rows, b[(None, None, block, read.index)], product)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            if cutlass.const_expr(rows == cute.size(a, mode=[1]) - 1):
                ring.consumer_release(read)
            flat = cute.make_tensor(product.iterator, cute.make_layout(cute.size(product)))
            by_rows[(None, rows)].store(by_rows[(None, rows)].load() + flat.load())
        read.advance()
    return read
