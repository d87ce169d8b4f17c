"""The grouped product of ``grouped_gemm_sm90`` with SwiGLU behind it, in CuteDSL.

The weights of an expert are the rows of the gate and those of up. TMA sees them as 8 rows of the gate, 8 of up, and so
on, in a tensor of five dimensions: so a tile has both, and no weight is moved for that, whether the rows of the gate
come before those of up in memory or alternate with them.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass, fields
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Int32, cute, pipeline
from cutlass.cute.nvgpu import cpasync

from tilescout.spaces.gemm_sm90.kernel import GemmSm90, swizzled
from tilescout.spaces.gemm_sm90.layout import EPILOGUE_STAGES, MMA_ROWS
from tilescout.spaces.grouped_gemm_sm90.epilogue import Store
from tilescout.spaces.grouped_gemm_sm90.groups import Groups
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90, Operand
from tilescout.spaces.grouped_swiglu_sm90.epilogue import GatedStore
from tilescout.spaces.grouped_swiglu_sm90.layout import INTERLEAVED


@dataclass(frozen=True)
class GatedGemm(GemmSm90):
    """The product of one expert: of its tiles half are stored."""

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns, of D or with swapped operands its transpose, of what is stored at a time."""
        if self.shape.swap_ab:
            return MMA_ROWS // 2, self.shape.unit_n
        return MMA_ROWS, self.shape.unit_n // 2

    def d_layout(self) -> cute.ComposedLayout:
        """Shared memory of D: the stages of the first warp group, then those of the next."""
        return swizzled(self.result, self.unit, EPILOGUE_STAGES * self.shape.warp_groups, not self.shape.swap_ab)


@dataclass(frozen=True)
class GroupedSwigluSm90(GroupedGemmSm90):
    """A kernel generator: its entry point under ``cute.compile`` emits the kernel.

    Attributes
    ----------
    gemm
        The product of one expert, a `GatedGemm`.
    mixed, trim
        As of `GroupedGemmSm90`.
    pairs
        Whether rows of gate and up alternate in memory, instead of all of the gate before all of up.
    """

    gemm: GatedGemm
    pairs: bool

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, ends: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream
    ) -> None:
        """Launch on A [tokens, k], B [experts, n, k], the ends of the groups [experts], D [tokens, n / 2]."""
        shape = self.shape
        b = self.interleaved(b)
        left, right, product = a, b, d
        if cutlass.const_expr(shape.swap_ab):
            left, right = b, a
            product = cute.make_tensor(d.iterator, cute.select(d.layout, mode=[1, 0]))
        left_layout, right_layout = self.gemm.a_layout(), self.gemm.b_layout()
        left_tile, right_tile = (shape.tile_m, shape.tile_k), (shape.tile_n, shape.tile_k)
        load_left, left_tma = self.gemm.load_atom(left, left_layout, left_tile, shape.cluster_n)
        load_right, right_tma = self.gemm.load_atom(right, right_layout, right_tile, shape.cluster_m)
        store, d_tma = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            product,
            cute.slice_(self.gemm.d_layout(), (None, None, 0)),
            self.gemm.unit,
        )
        tokens, columns = self.steps()
        across = cute.ceil_div(cute.size(b, mode=[0]), columns)
        # Every group but one in `tokens` may have a unit that is not full.
        most = (cute.size(d, mode=[0]) + cute.size(ends) * (tokens - 1)) // tokens * across
        self.kernel(load_left, left_tma, load_right, right_tma, store, d_tma, ends, d, across).launch(
            grid=[shape.cluster_m, shape.cluster_n, min(most, clusters)],
            block=[shape.threads, 1, 1],
            cluster=[shape.cluster_m, shape.cluster_n, 1],
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
        )

    def interleaved(self, b: cute.Tensor) -> cute.Tensor:
        """The weights [experts, n, k] as [n, k, experts], their rows 8 of the gate, 8 of up, and so on."""
        experts, n, k = b.shape
        expert, row, _ = b.stride
        half = n // 2
        between = (2 * row, row) if self.pairs else (row, half * row)
        blocks = half // INTERLEAVED
        shape = ((INTERLEAVED, 2, blocks), k, experts)
        stride = ((between[0], between[1], INTERLEAVED * between[0]), 1, expert)
        return cute.make_tensor(b.iterator, cute.make_layout(shape, stride=stride))

    def consume(
        self,
        operands: tuple[Operand, Operand],
        ring: pipeline.PipelineTmaAsync,
        groups: Groups,
        stores: Store,
        count: Int32,
        k_tiles: Int32,
    ) -> Any:
        """Drain the ring and store each finished tile, gated: a consumer warp group."""
        gated = GatedStore(**{field.name: getattr(stores, field.name) for field in fields(stores)})
        return GroupedGemmSm90.consume(self, operands, ring, groups, gated, count, k_tiles)
