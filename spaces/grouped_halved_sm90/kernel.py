"""The kernel of ``grouped_gemm_sm90`` that loads no more of a trimmed tile than it multiplies, in CuteDSL.

Where tiles are trimmed, one that its group fills by half or less is multiplied as half a tile, but its rows of A were
loaded whole: rows of other groups, or none. Of a 128x192 tile with 64 elements of k, loads ask a multiprocessor for 640
clocks (64 bytes each), and its tensor cores for 768, or 384 for half: so half a tile waited for its loads. With half of
the tokens they ask for 512.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass, replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute, pipeline

from tilescout.spaces.grouped_gemm_sm90.groups import Groups
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90, Operand

inherited = cute.jit(GroupedGemmSm90.kernel.__wrapped__)
"""The body of the kernel of ``grouped_gemm_sm90``, to be part of another kernel."""


@dataclass(frozen=True)
class Loads:
    """The two loads of every stage of a tile.

    Attributes
    ----------
    operands
        What is loaded.
    bytes
        Of a stage, all together.
    """

    operands: tuple[Operand, Operand]
    bytes: int

    @cute.jit
    def run(
        self,
        rows: tuple[Int32, Int32],
        expert: Int32,
        ring: pipeline.PipelineTmaAsync,
        state: pipeline.PipelineState,
        k_tiles: Int32,
    ) -> pipeline.PipelineState:
        """Load all steps along k of a tile that begins at some rows of both operands."""
        left, right = self.operands
        left_views, right_views = left.stages_from(rows[0], expert), right.stages_from(rows[1], expert)
        for k in cutlass.range(k_tiles, unroll=1):
            ring.sync_object_empty.wait(state.index, state.phase)
            ring.sync_object_full.arrive_and_expect_tx(state.index, self.bytes)
            full = ring.producer_get_barrier(state)
            left.fetch(left_views, k, state.index, full)
            right.fetch(right_views, k, state.index, full)
            state.advance()
        return state


@dataclass(frozen=True)
class GroupedHalvedSm90(GroupedGemmSm90):
    """A kernel generator: its entry point under ``cute.compile`` emits the kernel.

    Attributes
    ----------
    gemm, mixed, trim
        As of `GroupedGemmSm90`; tiles are trimmed.
    halves
        The load of half a tile of the tokens: its TMA atom, and A as that sees it; while the kernel is launched, and
        in it.
    """

    halves: Any = None

    @cute.jit
    def halving(
        self, a: cute.Tensor, b: cute.Tensor, ends: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream
    ) -> None:
        """Launch on the operands of `GroupedGemmSm90`."""
        shape, half = self.shape, self.half_rows
        side = int(shape.swap_ab)
        sharers = shape.cluster_m if shape.swap_ab else shape.cluster_n
        layout = self.gemm.ring_layout(half, self.gemm.k_major(side))
        halves = self.gemm.load_atom(a, layout, (half, shape.tile_k), sharers)
        GroupedGemmSm90.__call__(replace(self, halves=halves), a, b, ends, d, clusters, stream)

    @property
    def half_rows(self) -> int:
        """Tokens of half a tile."""
        return self.trimmed.tile_n if self.shape.swap_ab else self.trimmed.tile_m

    def kernel(self, *arguments: Any) -> Any:
        """The kernel that is inherited, with the load of halves."""
        return self.with_halves(*arguments, *self.halves)

    @cute.kernel
    def with_halves(
        self,
        load_left: cute.CopyAtom,
        left_tma: cute.Tensor,
        load_right: cute.CopyAtom,
        right_tma: cute.Tensor,
        store: cute.CopyAtom,
        d_tma: cute.Tensor,
        ends: cute.Tensor,
        d: cute.Tensor,
        across: Int32,
        load_half: cute.CopyAtom,
        half_tma: cute.Tensor,
    ) -> None:
        """What every block runs."""
        halving = replace(self, halves=(load_half, half_tma))
        inherited(halving, load_left, left_tma, load_right, right_tma, store, d_tma, ends, d, across)

    @cute.jit
    def produce(
        self,
        left: Operand,
        right: Operand,
        ring: pipeline.PipelineTmaAsync,
        groups: Groups,
        count: Int32,
        k_tiles: Int32,
    ) -> None:
        """Fill the ring: one warp, for every tile of this block, for every step along k."""
        shape, most = self.shape, self.half_rows
        of_token = self.gemm.element.width // 8 * shape.tile_k
        stage = (shape.tile_m + shape.tile_n) * of_token
        load, matrix = self.halves
        tokens = right if shape.swap_ab else left
        half = replace(tokens, load=load, matrix=matrix, shared=tokens.first_rows(most), tile=(most, shape.tile_k))
        whole = Loads((left, right), stage)
        trimmed = Loads((left, half) if shape.swap_ab else (half, right), stage - most * of_token)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, shape.stages)
        _, _, work = cute.arch.block_idx()
        _, _, stride = cute.arch.grid_dim()
        chunk = Int32(0)
        while work < count:
            chunk, (expert, row, stop, column) = groups.at(work, count, chunk)
            rows = (column, row) if cutlass.const_expr(shape.swap_ab) else (row, column)
            if row + most < stop:
                state = whole.run(rows, expert, ring, state, k_tiles)
            else:
                state = trimmed.run(rows, expert, ring, state, k_tiles)
            work += stride
        # A block must not leave while its cluster still signals its barriers.
        ring.producer_tail(state)
