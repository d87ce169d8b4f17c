"""The Hopper GEMM that ``gemm_sm90`` searches over: D = A @ B.T, in CuteDSL.

One block is one producer warp group and some consumer warp groups. A single producer warp issues TMA loads of A and B
into a ring of shared-memory stages; the consumer warp groups wait for a stage, multiply it with WGMMA into fp32
registers, and hand the stage back. Blocks are persistent: each walks the list of output tiles with the stride of the
grid. Blocks of a cluster share loads by TMA multicast: the blocks of one cluster row read the same tile of A, those of
one cluster column the same tile of B. Each consumer warp group stores its own rows of D through its own small
double-buffered shared-memory tile, so warp groups never wait for each other outside the ring.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute, pipeline, utils
from cutlass.cute.nvgpu import cpasync, warp, warpgroup
from cutlass.utils import hopper_helpers

from tilescout.spaces.gemm_sm90.layout import EPILOGUE_STAGES, MMA_ROWS, WARP_GROUP, GemmShape
from tilescout.spaces.gemm_sm90.scheduler import TileOrder

WARPS = 4  # in a warp group
EPILOGUE_BARRIER = 1  # named barriers 1, 2, ... belong to the consumer warp groups; 0 is __syncthreads
ALIGNMENT = 1024  # bytes after which the widest swizzle repeats


@dataclass(frozen=True)
class Operand:
    """A matrix in global memory, its tiles in shared memory, and the TMA copy between them.

    Attributes
    ----------
    copy
        The TMA atom: a load for A and B, a store for D.
    tiles
        Global tiles: [rows, columns, row tiles, column tiles, batches].
    shared
        Shared tiles: [rows, columns, stages].
    """

    copy: cute.CopyAtom
    tiles: cute.Tensor
    shared: cute.Tensor

    def partition(self, block: Any, blocks: int) -> tuple[cute.Tensor, cute.Tensor]:
        """Views (shared, global), a tile their first mode; of each tile, this block copies one of `blocks` parts."""
        parts: tuple[cute.Tensor, cute.Tensor] = cpasync.tma_partition(
            self.copy,
            block,
            cute.make_layout(blocks),
            cute.group_modes(self.shared, 0, 2),
            cute.group_modes(self.tiles, 0, 2),
        )
        return parts


@dataclass(frozen=True)
class Place:
    """Where a block stands: its coordinates in the cluster, and the work of the grid."""

    cluster: cute.Layout
    block: Any
    order: TileOrder

    def tile(self, shape: GemmShape, work: Int32) -> tuple[Int32, Int32, Int32]:
        """The tile (m, n, batch) that this block computes of a unit of work."""
        m, n, batch = self.order.at(work)
        return m * shape.cluster_m + self.block[0], n * shape.cluster_n + self.block[1], batch


@dataclass(frozen=True)
class GemmSm90:
    """A kernel generator: calling the instance under ``cute.compile`` emits the kernel of `shape`.

    Attributes
    ----------
    shape
        The compile-time parameters.
    dtype
        ``cutlass.BFloat16`` or ``cutlass.Float16``: the type of A, B and D.
    """

    shape: GemmShape
    dtype: Any

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, max_clusters: Int32, stream: cuda.CUstream
    ) -> None:
        """Launch on A [batch, m, k], B [batch, n, k], D [batch, m, n], at most `max_clusters` clusters at a time."""
        shape = self.shape
        # TMA and CuTe's tiling want the batch last.
        a = cute.make_tensor(a.iterator, cute.select(a.layout, mode=[1, 2, 0]))
        b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 2, 0]))
        d = cute.make_tensor(d.iterator, cute.select(d.layout, mode=[1, 2, 0]))
        load_a, a_tma = self.load_atom(a, self.a_layout(), (shape.tile_m, shape.tile_k), shape.cluster_n)
        load_b, b_tma = self.load_atom(b, self.b_layout(), (shape.tile_n, shape.tile_k), shape.cluster_m)
        store_d, d_tma = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            d,
            cute.slice_(self.d_layout(), (None, None, 0)),
            (MMA_ROWS, shape.epilogue_n),
        )
        order = TileOrder(
            cute.ceil_div(cute.size(d, mode=[0]), shape.tile_m * shape.cluster_m),
            cute.ceil_div(cute.size(d, mode=[1]), shape.tile_n * shape.cluster_n),
            cute.size(d, mode=[2]),
            shape.swizzle,
            shape.raster_along_m,
        )
        self.kernel(load_a, a_tma, load_b, b_tma, store_d, d_tma, order.count_m, order.count_n, order.batches).launch(
            grid=[shape.cluster_m, shape.cluster_n, min(order.count(), max_clusters)],
            block=[shape.threads, 1, 1],
            cluster=[shape.cluster_m, shape.cluster_n, 1],
            min_blocks_per_mp=1,
            stream=stream,
        )

    def a_layout(self) -> cute.ComposedLayout:
        """Shared memory of A."""
        return self.ring_layout(self.shape.tile_m, self.shape.tile_k, self.shape.stages)

    def b_layout(self) -> cute.ComposedLayout:
        """Shared memory of B."""
        return self.ring_layout(self.shape.tile_n, self.shape.tile_k, self.shape.stages)

    def d_layout(self) -> cute.ComposedLayout:
        """Shared memory of D: the stages of the first warp group, then those of the next."""
        return self.ring_layout(MMA_ROWS, self.shape.epilogue_n, EPILOGUE_STAGES * self.shape.warp_groups)

    def ring_layout(self, rows: int, columns: int, stages: int) -> cute.ComposedLayout:
        """A ring of row-major tiles with the widest swizzle that `columns` allows."""
        kind = hopper_helpers.get_smem_layout_atom(utils.LayoutEnum.ROW_MAJOR, self.dtype, columns)
        atom = warpgroup.make_smem_layout_atom(kind, self.dtype)
        return cute.tile_to_shape(atom, (rows, columns, stages), order=(0, 1, 2))

    def load_atom(
        self, tensor: cute.Tensor, layout: cute.ComposedLayout, tile: tuple[int, int], sharers: int
    ) -> tuple[cute.CopyAtom, cute.Tensor]:
        """The TMA load of a stage; of the blocks that share it, each fetches a part for all."""
        operation = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
        stage = cute.slice_(layout, (None, None, 0))
        atom: tuple[cute.CopyAtom, cute.Tensor] = cpasync.make_tiled_tma_atom(
            operation, tensor, stage, tile, num_multicast=sharers
        )
        return atom

    def mma(self, warp_groups: int) -> cute.TiledMma:
        """WGMMA over the tile's columns by warp groups stacked along m."""
        k_major = warpgroup.OperandMajorMode.K
        return hopper_helpers.make_trivial_tiled_mma(
            self.dtype, self.dtype, k_major, k_major, Float32, (warp_groups, 1, 1), (MMA_ROWS, self.shape.tile_n)
        )

    @cute.kernel
    def kernel(
        self,
        load_a: cute.CopyAtom,
        a_tma: cute.Tensor,
        load_b: cute.CopyAtom,
        b_tma: cute.Tensor,
        store_d: cute.CopyAtom,
        d_tma: cute.Tensor,
        count_m: Int32,
        count_n: Int32,
        batches: Int32,
    ) -> None:
        """What every block runs."""
        shape, dtype = self.shape, self.dtype
        a_layout, b_layout, d_layout = self.a_layout(), self.b_layout(), self.d_layout()
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(thread // 32)
        group_index = cute.arch.make_warp_uniform(thread // WARP_GROUP)

        if warp_index == 0:
            cpasync.prefetch_descriptor(load_a)
            cpasync.prefetch_descriptor(load_b)
            cpasync.prefetch_descriptor(store_d)

        @cute.struct
        class Shared:
            barriers: cute.struct.MemRange[cutlass.Int64, 2 * shape.stages]
            a: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(a_layout)], ALIGNMENT]
            b: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(b_layout)], ALIGNMENT]
            d: cute.struct.Align[cute.struct.MemRange[dtype, cute.cosize(d_layout)], ALIGNMENT]

        shared = utils.SmemAllocator().allocate(Shared)
        a = Operand(
            load_a,
            cute.local_tile(a_tma, (shape.tile_m, shape.tile_k), (None, None, None)),
            shared.a.get_tensor(a_layout.outer, swizzle=a_layout.inner),
        )
        b = Operand(
            load_b,
            cute.local_tile(b_tma, (shape.tile_n, shape.tile_k), (None, None, None)),
            shared.b.get_tensor(b_layout.outer, swizzle=b_layout.inner),
        )
        d = Operand(
            store_d,
            cute.local_tile(d_tma, (MMA_ROWS, shape.epilogue_n), (None, None, None)),
            shared.d.get_tensor(d_layout.outer, swizzle=d_layout.inner),
        )

        cluster = cute.make_layout((shape.cluster_m, shape.cluster_n, 1))
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        order = TileOrder(count_m, count_n, batches, shape.swizzle, shape.raster_along_m)
        place = Place(cluster, cluster.get_flat_coord(rank), order)

        # A stage is free once every consumer warp of every block that reads it has said so.
        readers = shape.cluster_m + shape.cluster_n - 1
        stage_bytes = cute.size_in_bytes(dtype, cute.slice_(a_layout, (None, None, 0)))
        stage_bytes += cute.size_in_bytes(dtype, cute.slice_(b_layout, (None, None, 0)))
        ring = pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.barriers.data_ptr(),
            num_stages=shape.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers * WARPS * shape.warp_groups),
            tx_count=stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, shape.cluster_m, shape.cluster_n, 1)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)

        if group_index == shape.warp_groups:
            if cutlass.const_expr(shape.reallocates):
                cute.arch.setmaxregister_decrease(shape.registers[0])
            if warp_index == WARPS * shape.warp_groups:
                self.produce(a, b, ring, place)
        else:
            if cutlass.const_expr(shape.reallocates):
                cute.arch.setmaxregister_increase(shape.registers[1])
            self.consume(a, b, d, ring, place, thread)

    @cute.jit
    def produce(self, a: Operand, b: Operand, ring: pipeline.PipelineTmaAsync, place: Place) -> None:
        """Fill the ring: one warp, for every tile of this block, for every step along k."""
        shape = self.shape
        a_mask = cute.make_layout_image_mask(place.cluster, place.block, mode=1) if shape.cluster_n > 1 else 0
        b_mask = cute.make_layout_image_mask(place.cluster, place.block, mode=0) if shape.cluster_m > 1 else 0
        a_shared, a_global = a.partition(place.block[1], shape.cluster_n)
        b_shared, b_global = b.partition(place.block[0], shape.cluster_m)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, shape.stages)
        _, _, work = cute.arch.block_idx()
        _, _, stride = cute.arch.grid_dim()
        while work < place.order.count():
            m, n, batch = place.tile(shape, work)
            a_row = a_global[(None, m, None, batch)]
            b_row = b_global[(None, n, None, batch)]
            for k in cutlass.range(cute.size(a.tiles, mode=[3]), unroll=1):
                ring.producer_acquire(state)
                full = ring.producer_get_barrier(state)
                cute.copy(a.copy, a_row[(None, k)], a_shared[(None, state.index)], tma_bar_ptr=full, mcast_mask=a_mask)
                cute.copy(b.copy, b_row[(None, k)], b_shared[(None, state.index)], tma_bar_ptr=full, mcast_mask=b_mask)
                state.advance()
            work += stride
        # A block must not leave while its cluster still signals its barriers.
        ring.producer_tail(state)

    @cute.jit
    def consume(
        self, a: Operand, b: Operand, d: Operand, ring: pipeline.PipelineTmaAsync, place: Place, thread: Int32
    ) -> None:
        """Drain the ring into registers and store each finished tile: a consumer warp group."""
        shape = self.shape
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        groups = cute.make_layout(shape.warp_groups, stride=WARP_GROUP)
        mma = self.mma(shape.warp_groups)
        mine = mma.get_slice(groups(group))
        a_fragments = mma.make_fragment_A(mine.partition_A(a.shared))
        b_fragments = mma.make_fragment_B(mine.partition_B(b.shared))
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((shape.tile_m, shape.tile_n)), Float32)

        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        k_blocks = cute.size(a_fragments, mode=[2])
        _, _, work = cute.arch.block_idx()
        _, _, stride = cute.arch.grid_dim()
        while work < place.order.count():
            m, n, batch = place.tile(shape, work)
            # The first product of a tile overwrites the accumulators, so nothing has to be cleared.
            mma.set(warpgroup.Field.ACCUMULATE, False)
            ring.consumer_wait(read)
            warpgroup.fence()
            for block in cutlass.range_constexpr(k_blocks):
                at = (None, None, block, read.index)
                cute.gemm(mma, accumulators, a_fragments[at], b_fragments[at], accumulators)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            read.advance()
            # One product stays in flight while the next is issued; a stage is released when its product is done.
            for _ in cutlass.range(1, cute.size(a.tiles, mode=[3]), unroll=1):
                ring.consumer_wait(read)
                warpgroup.fence()
                for block in cutlass.range_constexpr(k_blocks):
                    at = (None, None, block, read.index)
                    cute.gemm(mma, accumulators, a_fragments[at], b_fragments[at], accumulators)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                ring.consumer_release(release)
                read.advance()
                release.advance()
            warpgroup.wait_group(0)
            ring.consumer_release(release)
            release.advance()

            self.store(accumulators, d, group, thread % WARP_GROUP, (m, n, batch))
            work += stride
        # Shared memory must outlive the stores that read it.
        if cute.arch.make_warp_uniform(thread % WARP_GROUP // 32) == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def store(self, accumulators: cute.Tensor, d: Operand, group: Int32, lane: Int32, tile: tuple[Any, ...]) -> None:
        """Store one warp group's rows of a tile: registers to shared memory (stmatrix), then TMA to D."""
        shape = self.shape
        m, n, batch = tile
        leader = cute.arch.make_warp_uniform(lane // 32) == 0

        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.dtype)
        copy = cute.make_tiled_copy_S(atom, cute.make_tiled_copy_C_atom(atom, self.mma(1)))
        to_shared = copy.get_slice(lane).partition_D(d.shared)
        from_shared, to_global = d.partition(0, 1)

        rows = shape.tile_m // (MMA_ROWS * shape.warp_groups)
        strips = shape.tile_n // shape.epilogue_n
        # A thread's accumulators of one strip of columns are consecutive registers.
        by_strip = cute.make_tensor(
            accumulators.iterator, cute.make_layout((cute.size(accumulators) // (rows * strips), strips, rows))
        )
        converted = cute.make_rmem_tensor(cute.make_layout(cute.shape(to_shared)[:3]).shape, self.dtype)
        flat = cute.make_tensor(converted.iterator, cute.make_layout(cute.size(converted)))
        for row in cutlass.range_constexpr(rows):
            for strip in cutlass.range_constexpr(strips):
                index = row * strips + strip
                buffer = group * EPILOGUE_STAGES + index % EPILOGUE_STAGES
                flat.store(by_strip[(None, strip, row)].load().to(self.dtype))
                if leader:
                    # The last tile's stores have had a whole main loop to finish: waiting for all costs nothing.
                    cute.arch.cp_async_bulk_wait_group(EPILOGUE_STAGES - 1 if index > 0 else 0, read=True)
                cute.arch.barrier(barrier_id=EPILOGUE_BARRIER + group, number_of_threads=WARP_GROUP)
                cute.copy(copy, converted, to_shared[(None, None, None, buffer)])
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.barrier(barrier_id=EPILOGUE_BARRIER + group, number_of_threads=WARP_GROUP)
                if leader:
                    at = ((m * rows + row) * shape.warp_groups + group, n * strips + strip, batch)
                    cute.copy(d.copy, from_shared[(None, buffer)], to_global[(None, *at)])
                    cute.arch.cp_async_bulk_commit_group()
