"""The main loop of 8-bit products that keeps the tensor cores at work while their sums are promoted to fp32.

The loop of ``gemm_sm90`` waits for each product, adds it to the accumulators, and begins the next. Warp groups that
share a tile wait for the same stage, so that they do this at the same time, and the tensor cores rest meanwhile. Here a
warp group holds two products, and adds one while the other is computed.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T, dsl_user_op

from tilescout.spaces.gemm_sm90.layout import WARP_GROUP

# Of a piece of a stage: matrix instructions that overwrite its product and that add to it, and the product.
Turn = tuple[cute.TiledMma, cute.TiledMma, cute.Tensor]
Fragments = tuple[cute.Tensor, tuple[cute.Tensor, ...]]  # the left operand's, and the right one's of each part of a row
_AHEAD = 8  # steps
_AGAIN = 16  # steps; more than a ring has stages, so that no warp group is there twice before the next one was


@cute.jit
def issue(
    turn: Turn,
    fragments: Fragments,
    piece: cutlass.Constexpr,
    stage: Any,
) -> None:
    """Begin to multiply a piece of a stage: 64 rows and a matrix instruction's columns."""
    overwrites, adds, product = turn
    a, parts = fragments
    row, part = divmod(piece, len(parts))
    warpgroup.fence()
    for block in cutlass.range_constexpr(cute.size(a, mode=[2])):
        rows = cute.append_ones(a[(None, row, block, stage)], up_to_rank=2)
        columns = cute.append_ones(parts[part][(None, 0, block, stage)], up_to_rank=2)
        mma = overwrites if block == 0 else adds
        cute.gemm(mma, product, rows, columns, product)
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
def add(accumulators: cute.Tensor, product: cute.Tensor, first: cutlass.Constexpr) -> None:
    """Add a product that was waited for to the accumulators from a first one on."""
    size = cute.size(product)
    there = waited_for([product[i] for i in range(size)])
    for i in cutlass.range_constexpr(size):
        accumulators[first + i] = accumulators[first + i] + there[i]


@cute.jit
def multiply_staggered(
    mma: cute.TiledMma,
    step: tuple[int, int],
    fragments: tuple[cute.Tensor, cute.Tensor],
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    k_tiles: Int32,
    group: Int32,
    groups: cutlass.Constexpr,
    barrier: cutlass.Constexpr,
) -> pipeline.PipelineState:
    """Multiply all stages of a tile; each product is added before the next one begins, by one warp group after another.

    Every `_AGAIN` stages each of them begins only when the one before it has a product, so that one adds while another
    computes. In between nothing makes them wait for each other: warp groups that share the tensor cores stay as far
    apart as they were.
    """
    a, b = fragments
    product = cute.make_rmem_tensor(mma.partition_shape_C(step), Float32)
    by_rows = cute.make_tensor(accumulators.iterator, cute.make_layout((cute.size(product), cute.size(a, mode=[1]))))
    accumulators.fill(0.0)
    for _ in cutlass.range(k_tiles, unroll=1):
        ring.consumer_wait(read)
        apart = read.count % _AGAIN == 0
        if apart & (group > 0):
            cute.arch.barrier(barrier_id=barrier + group - 1, number_of_threads=2 * WARP_GROUP)
        for rows in cutlass.range_constexpr(cute.size(a, mode=[1])):
            mma.set(warpgroup.Field.ACCUMULATE, False)
            warpgroup.fence()
            for block in cutlass.range_constexpr(cute.size(a, mode=[2])):
                a_rows = cute.append_ones(a[(None, rows, block, read.index)], up_to_rank=2)
                cute.gemm(mma, product, a_rows, b[(None, None, block, read.index)], product)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            if cutlass.const_expr(rows == 0):  # noqa: SIM102 - decided here, the other by the GPU
                if apart & (group < groups - 1):
                    cute.arch.barrier_arrive(barrier_id=barrier + group, number_of_threads=2 * WARP_GROUP)
            if cutlass.const_expr(rows == cute.size(a, mode=[1]) - 1):
                ring.consumer_release(read)
            flat = cute.make_tensor(product.iterator, cute.make_layout(cute.size(product)))
            by_rows[(None, rows)].store(by_rows[(None, rows)].load() + flat.load())
        read.advance()
    return read


@cute.jit
def multiply_ahead(
    turns: tuple[Turn, Turn],
    fragments: Fragments,
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
        read = ahead(turns, fragments, accumulators, ring, read, _AHEAD)
    for _ in cutlass.range(k_tiles - runs * _AHEAD, unroll=1):
        read = ahead(turns, fragments, accumulators, ring, read, 1)
    return read


@cute.jit
def ahead(
    turns: tuple[Turn, Turn],
    fragments: Fragments,
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    steps: cutlass.Constexpr,
) -> pipeline.PipelineState:
    """Multiply so many stages, a piece of a warp group's tile at a time; the products are held by turns."""
    pieces = cute.size(fragments[0], mode=[1]) * len(fragments[1])
    sizes = [cute.size(turns[piece % 2][2]) for piece in range(pieces)]
    release = read.clone()
    for at in cutlass.range_constexpr(steps * pieces + 1):
        if cutlass.const_expr(at < steps * pieces):
            if cutlass.const_expr(at % pieces == 0):
                ring.consumer_wait(read)
            issue(turns[at % 2], fragments, at % pieces, read.index)
            if cutlass.const_expr(at % pieces == pieces - 1):
                read.advance()
        if cutlass.const_expr(at > 0):
            warpgroup.wait_group(1 if at < steps * pieces else 0)
            if cutlass.const_expr(at % pieces == 0):
                ring.consumer_release(release)
                release.advance()
            add(accumulators, turns[(at - 1) % 2][2], sum(sizes[: (at - 1) % pieces]))
    return read
