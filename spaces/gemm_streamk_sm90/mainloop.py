"""The main loops of 8-bit products that keep the tensor cores at work while their sums are promoted to fp32.

The loop of ``gemm_sm90`` waits for each product, adds it to the accumulators, waits for the next stage, and begins the
next product. The tensor cores work for the other warp groups meanwhile, but not for so long. In one loop here a warp
group holds two products, and adds one while the other is computed. Where registers do not suffice for that, the other
loop has it wait for the next stage while a product is computed.
"""

from collections.abc import Sequence
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute, pipeline
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup
from cutlass.cutlass_dsl import T, dsl_user_op

Mmas = tuple[cute.TiledMma, cute.TiledMma]  # the first overwrites the product, the second adds to it
Fragments = tuple[cute.Tensor, tuple[cute.Tensor, ...]]  # of the left operand, and of each part of the columns
_AHEAD = 8  # steps


@cute.jit
def issue(
    mmas: Mmas, left: cute.Tensor, right: cute.Tensor, product: cute.Tensor, row: cutlass.Constexpr, stage: Any
) -> None:
    """Begin to multiply a piece of a stage: 64 rows and a matrix instruction's columns."""
    warpgroup.fence()
    for block in cutlass.range_constexpr(cute.size(left, mode=[2])):
        rows = cute.append_ones(left[(None, row, block, stage)], up_to_rank=2)
        columns = cute.append_ones(right[(None, 0, block, stage)], up_to_rank=2)
        mma = mmas[0] if block == 0 else mmas[1]
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
def add(accumulators: cute.Tensor, product: cute.Tensor, start: cutlass.Constexpr) -> None:
    """Add a product that was waited for to the accumulators from `start` on."""
    size = cute.size(product)
    there = waited_for([product[i] for i in range(size)])
    for i in cutlass.range_constexpr(size):
        accumulators[start + i] = accumulators[start + i] + there[i]


@cute.jit
def multiply_beside(
    mmas: Sequence[Mmas],
    products: tuple[cute.Tensor, cute.Tensor],
    fragments: Fragments,
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    k_tiles: Int32,
) -> pipeline.PipelineState:
    """Multiply all stages of a tile; each product is added before the next one begins.

    Of two warp groups one adds while the tensor cores work for the other, as long as what lies between two products of
    one takes no longer than a product of the other. So the next stage is waited for while a product is computed: of
    the cycles of 128x176 in clusters of 2x1 the tensor cores were at work for 97 % in place of 92 % (Nsight Compute,
    H200, 2026-12-01; `experiments/results/promotion.md`). It is only tried: to wait for it would keep the last one from
    being released, and took 1.09 times as long as halves in clusters of 1x2.
    """
    left, (right,) = fragments
    pieces, product = cute.size(left, mode=[1]), products[0]
    accumulators.fill(0.0)
    following = read.clone()
    following.advance()
    full = ring.consumer_try_wait(read)
    for step in cutlass.range(k_tiles, unroll=1):
        ring.consumer_wait(read, full)
        for row in cutlass.range_constexpr(pieces):
            issue(mmas[0], left, right, product, row, read.index)
            if cutlass.const_expr(row == pieces - 1):  # noqa: SIM102 - decided here, the other by the GPU
                if step + 1 < k_tiles:
                    full = ring.consumer_try_wait(following)
            warpgroup.wait_group(0)
            if cutlass.const_expr(row == pieces - 1):
                ring.consumer_release(read)
            add(accumulators, product, row * cute.size(product))
        read.advance()
        following.advance()
    return read


@cute.jit
def multiply_ahead(
    mmas: Sequence[Mmas],
    products: tuple[cute.Tensor, cute.Tensor],
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
        read = ahead(mmas, products, fragments, accumulators, ring, read, _AHEAD)
    for _ in cutlass.range(k_tiles - runs * _AHEAD, unroll=1):
        read = ahead(mmas, products, fragments, accumulators, ring, read, 1)
    return read


@cute.jit
def ahead(
    mmas: Sequence[Mmas],
    products: tuple[cute.Tensor, cute.Tensor],
    fragments: Fragments,
    accumulators: cute.Tensor,
    ring: pipeline.PipelineTmaAsync,
    read: pipeline.PipelineState,
    steps: cutlass.Constexpr,
) -> pipeline.PipelineState:
    """Multiply so many stages, a piece of a warp group's tile at a time; the products are held by turns."""
    left, rights = fragments
    pieces = cute.size(left, mode=[1]) * len(rights)
    sums = cute.size(accumulators) // cute.size(left, mode=[1])  # of 64 rows
    release = read.clone()
    for at in cutlass.range_constexpr(steps * pieces + 1):
        if cutlass.const_expr(at < steps * pieces):
            if cutlass.const_expr(at % pieces == 0):
                ring.consumer_wait(read)
            row, part = divmod(at % pieces, len(rights))
            issue(mmas[part], left, rights[part], products[at % 2], row, read.index)
            if cutlass.const_expr(at % pieces == pieces - 1):
                read.advance()
        if cutlass.const_expr(at > 0):
            warpgroup.wait_group(1 if at < steps * pieces else 0)
            if cutlass.const_expr(at % pieces == 0):
                ring.consumer_release(release)
                release.advance()
            row, part = divmod((at - 1) % pieces, len(rights))
            add(accumulators, products[(at - 1) % 2], row * sums + part * cute.size(products[0]))
    return read
