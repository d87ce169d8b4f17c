"""The main loops of 8-bit products: how a warp group promotes the tensor cores' sums to fp32.

The loop of ``gemm_sm90`` waits for each product, adds it to the accumulators, and begins the next. Warp groups that
share a tile wait for the same stage, so that they do this at the same time, and the tensor cores rest meanwhile. Each
loop here keeps them at work in another way.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T, dsl_user_op

from tilescout.spaces.gemm_sm90.kernel import TURN_BARRIER
from tilescout.spaces.gemm_sm90.layout import WARP_GROUP

Mmas = tuple[cute.TiledMma, cute.TiledMma]  # the first overwrites the product, the second adds to it
_AHEAD = 8  # steps


@cute.jit
def issue(
    mmas: Mmas,
    fragments: tuple[cute.Tensor, cute.Tensor],
    product: cute.Tensor,
    rows: cutlass.Constexpr,
    stage: Any,
    apart: cutlass.Constexpr = False,
) -> None:
    """Begin to multiply 64 rows of a stage; with `apart` the last matrix instruction is a group of its own."""
    a, b = fragments
    warpgroup.fence()
    for block in cutlass.range_constexpr(cute.size(a, mode=[2])):
        a_rows = cute.append_ones(a[(None, rows, block, stage)], up_to_rank=2)
        mma = mmas[0] if block == 0 else mmas[1]
        if cutlass.const_expr(apart and block == cute.size(a, mode=[2]) - 1):
            warpgroup.commit_group()
        cute.gemm(mma, product, a_rows, b[(None, None, block, stage)], product)
    warpgroup.commit_group()


@dsl_user_op
def waited_for(values: list[Float32], *, loc: Any = None, ip: Any = None) -> list[Float32]:
    """The same numbers, which nothing can use before this place in the program.

    Without it the compiler moves additions in front of a wait, and ptxas then waits after every matrix instruction.
    """
    count = len(values)
    constraints = ",".join(["=f"] * count + [str(at) for at in range(count)])
    structure = llvm.StructType.get_literal([T.f32()] * count)
    operands = [value.ir_value(loc=loc, ip=ip) for value in values]
    whole = llvm.inline_asm(structure, operands, "", constraints, has_side_effects=True, loc=loc, ip=ip)
    return [Float32(llvm.extractvalue(T.f32(), whole, [at], loc=loc, ip=ip)) for at in range(count)]


@cute.jit
def add(accumulators: cute.Tensor, product: cute.Tensor, rows: cutlass.Constexpr) -> None:
    """Add a product that was waited for to the accumulators of its rows."""
    size = cute.size(product)
    there = waited_for([product[i] for i in range(size)])
    for i in cutlass.range_constexpr(size):
        accumulators[rows * size + i] = accumulators[rows * size + i] + there[i]


@cute.jit
def multiply_in_turns(
    mmas: Mmas,
    product: cute.Tensor,
    fragments: tuple[cute.Tensor, cute.Tensor],
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    k_tiles: Int32,
    group: Int32,
) -> pipeline.PipelineState:
    """Multiply all stages of a tile; of two warp groups, one multiplies while the other adds."""
    pieces = cute.size(fragments[0], mode=[1])
    accumulators.fill(0.0)
    for _ in cutlass.range(k_tiles, unroll=1):
        ring.consumer_wait(read)
        for rows in cutlass.range_constexpr(pieces):
            cute.arch.barrier(barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARP_GROUP)
            issue(mmas, fragments, product, rows, read.index, apart=True)
            # The other warp group needs some time to wake up. The tensor cores have one instruction left meanwhile.
            warpgroup.wait_group(1)
            cute.arch.barrier_arrive(barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARP_GROUP)
            warpgroup.wait_group(0)
            if cutlass.const_expr(rows == pieces - 1):
                ring.consumer_release(read)
            add(accumulators, product, rows)
        read.advance()
    return read


@cute.jit
def multiply_ahead(
    mmas: Mmas,
    products: tuple[cute.Tensor, cute.Tensor],
    fragments: tuple[cute.Tensor, cute.Tensor],
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    k_tiles: Int32,
) -> pipeline.PipelineState:
    """Multiply all stages of a tile; each product is added while the next one is computed, but for every last of few.

    No product may be in flight where a loop begins again: ptxas then waits after every matrix instruction.
    """
    accumulators.fill(0.0)
    runs = k_tiles // _AHEAD
    for _ in cutlass.range(runs, unroll=1):
        read = ahead(mmas, products, fragments, accumulators, ring, read, _AHEAD)
    for _ in cutlass.range(k_tiles - runs * _AHEAD, unroll=1):
        read = ahead(mmas, products, fragments, accumulators, ring, read, 1)
    return read


@cute.jit
def ahead(
    mmas: Mmas,
    products: tuple[cute.Tensor, cute.Tensor],
    fragments: tuple[cute.Tensor, cute.Tensor],
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    steps: cutlass.Constexpr,
) -> pipeline.PipelineState:
    """Multiply so many stages, 64 rows of a warp group at a time; the products are held by turns."""
    pieces = cute.size(fragments[0], mode=[1])
    release = read.clone()
    for at in cutlass.range_constexpr(steps * pieces + 1):
        if cutlass.const_expr(at < steps * pieces):
            if cutlass.const_expr(at % pieces == 0):
                ring.consumer_wait(read)
            issue(mmas, fragments, products[at % 2], at % pieces, read.index)
            if cutlass.const_expr(at % pieces == pieces - 1):
                read.advance()
        if cutlass.const_expr(at > 0):
            warpgroup.wait_group(1 if at < steps * pieces else 0)
            if cutlass.const_expr(at % pieces == 0):
                ring.consumer_release(release)
                release.advance()
            add(accumulators, products[(at - 1) % 2], (at - 1) % pieces)
    return read
