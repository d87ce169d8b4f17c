"""The Hopper GEMM that ``gemm_sm90`` searches over, in CuteDSL.

One block is one producer warp group and some consumer warp groups. A single producer warp issues TMA loads of A and B
into a ring of shared-memory stages; the consumer warp groups wait for a stage, multiply it with WGMMA into fp32
registers, and hand the stage back. Consumers compute a tile together (cooperative) or take tiles in turn, so that one
stores while the other multiplies (pingpong). Blocks are persistent: each walks the list of output tiles with the stride
of the grid. Blocks of a cluster share loads by TMA multicast: the blocks of one cluster row read the same tile of A,
those of one cluster column the same tile of B. Blocks along the cluster's third dimension split a product along k and
add their shares at the end (`tilescout.spaces.gemm_sm90.exchange`). Each consumer warp group stores its own units of
the result (`tilescout.spaces.gemm_sm90.epilogue`); outside the ring, warp groups never wait for each other.

The product that is computed is A @ B.T, or with swapped operands its transpose, B @ A.T: then the tensor cores' 64 rows
lie along n, and their columns, of which 16 suffice, along m.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute, pipeline, utils
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import LayoutEnum, hopper_helpers

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.epilogue import Epilogue, register_copy
from tilescout.spaces.gemm_sm90.exchange import Exchange
from tilescout.spaces.gemm_sm90.layout import EPILOGUE_STAGES, MMA_ROWS, SWIZZLE_BYTES, WARP_GROUP, GemmShape
from tilescout.spaces.gemm_sm90.mainloop import multiply, multiply_promoted
from tilescout.spaces.gemm_sm90.scheduler import TileOrder

WARPS = 4  # in a warp group
TURN_BARRIER = 5  # named barriers 5 and 6: the turns of pingpong; 1 to 4 are the epilogue's
ELEMENTS = {
    "bf16": cutlass.BFloat16,
    "fp16": cutlass.Float16,
    "e4m3": cutlass.Float8E4M3FN,
    "fp32": cutlass.Float32,
}


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
    """Where a block stands: its coordinates in the cluster, and the work of the grid.

    Attributes
    ----------
    cluster
        The cluster's blocks.
    block
        This block's coordinates in it: along the rows and the columns of the product, and along k.
    order
        The units of work.
    k_tiles
        Stages of a product that each block multiplies. Those beyond the edge of k are zeros: TMA fills them in.
    """

    cluster: cute.Layout
    block: Any
    order: TileOrder
    k_tiles: Int32

    def tile(self, shape: GemmShape, work: Int32) -> tuple[Int32, Int32, Int32]:
        """The tile (m, n, batch) that this block computes of a unit of work."""
        m, n, batch = self.order.at(work)
        return m * shape.cluster_m + self.block[0], n * shape.cluster_n + self.block[1], batch


@dataclass(frozen=True)
class GemmSm90:
    """A kernel generator: its entry points under ``cute.compile`` emit the kernel of `shape`.

    Attributes
    ----------
    shape
        The compile-time parameters.
    problem
        A problem of the signature: types, layouts and epilogue.
    """

    shape: GemmShape
    problem: GemmProblem

    @cute.jit
    def plain(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream) -> None:
        """Launch on A [batch, m, k], B [batch, n, k], D [batch, m, n], at most `clusters` clusters at a time."""
        self.launch((a, b, None, None, d), clusters, stream)

    @cute.jit
    def with_alpha(
        self, a: cute.Tensor, b: cute.Tensor, alpha: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream
    ) -> None:
        """The same with a scale [1]."""
        self.launch((a, b, alpha, None, d), clusters, stream)

    @cute.jit
    def with_bias(
        self, a: cute.Tensor, b: cute.Tensor, bias: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream
    ) -> None:
        """The same with a bias [n]."""
        self.launch((a, b, None, bias, d), clusters, stream)

    @cute.jit
    def with_both(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        alpha: cute.Tensor,
        bias: cute.Tensor,
        d: cute.Tensor,
        clusters: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """The same with a scale [1] and a bias [n]."""
        self.launch((a, b, alpha, bias, d), clusters, stream)

    def entry(self) -> Any:
        """The entry point that takes what the problem's epilogue needs."""
        if self.problem.alpha:
            return self.with_both if self.problem.bias else self.with_alpha
        return self.with_bias if self.problem.bias else self.plain

    @cute.jit
    def launch(self, tensors: tuple[Any, ...], clusters: Int32, stream: cuda.CUstream) -> None:
        """Make the TMA descriptors and launch the grid."""
        shape = self.shape
        a, b, alpha, bias, d = tensors
        # TMA and CuTe's tiling want the batch last. Swapped, the product is D.T = B @ A.T.
        a = cute.make_tensor(a.iterator, cute.select(a.layout, mode=[1, 2, 0]))
        b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 2, 0]))
        left, right, modes = a, b, [1, 2, 0]
        if cutlass.const_expr(shape.swap_ab):
            left, right, modes = b, a, [2, 1, 0]
        d = cute.make_tensor(d.iterator, cute.select(d.layout, mode=modes))
        load_a, a_tma = self.load_atom(left, self.a_layout(), (shape.tile_m, shape.tile_k), shape.cluster_n)
        load_b, b_tma = self.load_atom(right, self.b_layout(), (shape.tile_n, shape.tile_k), shape.cluster_m)
        store_d, d_tma = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            d,
            cute.slice_(self.d_layout(), (None, None, 0)),
            (MMA_ROWS, shape.unit_n),
        )
        order = TileOrder(
            cute.ceil_div(cute.size(d, mode=[0]), shape.tile_m * shape.cluster_m),
            cute.ceil_div(cute.size(d, mode=[1]), shape.tile_n * shape.cluster_n),
            cute.size(d, mode=[2]),
            shape.swizzle,
            shape.raster_along_m,
        )
        counts = (order.count_m, order.count_n, order.batches)
        self.kernel(load_a, a_tma, load_b, b_tma, store_d, d_tma, alpha, bias, counts).launch(
            grid=[shape.cluster_m, shape.cluster_n, shape.split_k * min(order.count(), clusters)],
            block=[shape.threads, 1, 1],
            cluster=list(shape.cluster),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
        )

    @property
    def element(self) -> Any:
        """The element type of A and B."""
        return ELEMENTS[self.problem.dtype]

    @property
    def result(self) -> Any:
        """The element type of D."""
        return ELEMENTS[self.problem.out]

    @property
    def promotes(self) -> bool:
        """Whether the tensor cores' own sums are too short: those of 8-bit products keep 14 bits."""
        return bool(self.element.width == 8)

    def k_major(self, operand: int) -> bool:
        """Whether the left (0) or right (1) operand of the product is contiguous along k."""
        return self.problem.layout[1 - operand if self.shape.swap_ab else operand] == "k"

    def a_layout(self) -> cute.ComposedLayout:
        """Shared memory of the left operand."""
        return self.ring_layout(self.shape.tile_m, self.k_major(0))

    def b_layout(self) -> cute.ComposedLayout:
        """Shared memory of the right operand."""
        return self.ring_layout(self.shape.tile_n, self.k_major(1))

    def ring_layout(self, rows: int, k_major: bool) -> cute.ComposedLayout:
        """A ring of stages of `rows` rows of an operand."""
        return swizzled(self.element, (rows, self.shape.tile_k), self.shape.stages, k_major)

    def d_layout(self) -> cute.ComposedLayout:
        """Shared memory of D: the stages of the first warp group, then those of the next."""
        stages = EPILOGUE_STAGES * self.shape.warp_groups
        return swizzled(self.result, (MMA_ROWS, self.shape.unit_n), stages, not self.shape.swap_ab)

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
        """WGMMA over the tile's columns by warp groups stacked along the rows."""
        major = [warpgroup.OperandMajorMode.K if self.k_major(i) else warpgroup.OperandMajorMode.MN for i in (0, 1)]
        return hopper_helpers.make_trivial_tiled_mma(
            self.element, self.element, *major, Float32, (warp_groups, 1, 1), (MMA_ROWS, self.shape.tile_n)
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
        alpha: Any,
        bias: Any,
        counts: tuple[Int32, Int32, Int32],
    ) -> None:
        """What every block runs."""
        shape = self.shape
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
            exchange: cute.struct.MemRange[cutlass.Int64, 2 * shape.warp_groups]
            a: cute.struct.Align[cute.struct.MemRange[self.element, cute.cosize(a_layout)], SWIZZLE_BYTES]
            b: cute.struct.Align[cute.struct.MemRange[self.element, cute.cosize(b_layout)], SWIZZLE_BYTES]
            d: cute.struct.Align[cute.struct.MemRange[self.result, cute.cosize(d_layout)], SWIZZLE_BYTES]
            shares: cute.struct.Align[cute.struct.MemRange[Float32, shape.exchange_bytes // 4], 16]

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
            cute.local_tile(d_tma, (MMA_ROWS, shape.unit_n), (None, None, None)),
            shared.d.get_tensor(d_layout.outer, swizzle=d_layout.inner),
        )

        cluster = cute.make_layout(shape.cluster)
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        place = Place(
            cluster,
            cluster.get_flat_coord(rank),
            TileOrder(*counts, shape.swizzle, shape.raster_along_m),
            cute.ceil_div(cute.size(a.tiles, mode=[3]), shape.split_k),
        )
        barriers = shared.exchange.data_ptr()
        exchange = Exchange(shape, shared.shares.data_ptr(), barriers, barriers + shape.warp_groups, place.block)
        if cutlass.const_expr(shape.split_k > 1):  # noqa: SIM102 - decided here, the other by the GPU
            if thread == 0:
                exchange.initialise()

        # A stage is free once every consumer warp of every block that reads it has said so.
        readers = shape.cluster_m + shape.cluster_n - 1
        stage_bytes = cute.size_in_bytes(self.element, cute.slice_(a_layout, (None, None, 0)))
        stage_bytes += cute.size_in_bytes(self.element, cute.slice_(b_layout, (None, None, 0)))
        ring = pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.barriers.data_ptr(),
            num_stages=shape.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers * WARPS * shape.groups),
            tx_count=stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, *shape.cluster)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)
        # Programmatic dependent launch: all of the setup above ran beside the last kernel; what that one wrote is there
        # from here on, and the next kernel may set itself up.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()

        if group_index == shape.warp_groups:
            if cutlass.const_expr(shape.reallocates):
                cute.arch.setmaxregister_decrease(shape.registers[0])
            if warp_index == WARPS * shape.warp_groups:
                self.produce(a, b, ring, place)
        else:
            if cutlass.const_expr(shape.reallocates):
                cute.arch.setmaxregister_increase(shape.registers[1])
            mma = self.mma(1)
            copy = register_copy(mma, self.result, shape.swap_ab)
            lane = thread % WARP_GROUP
            from_shared, to_global = d.partition(0, 1)
            epilogue = Epilogue(
                shape,
                self.problem,
                self.result,
                alpha,
                bias,
                mma,
                copy,
                copy.get_slice(lane).partition_D(d.shared),
                from_shared,
                to_global,
                store_d,
                group_index,
                lane,
            )
            self.consume(a, b, ring, place, epilogue, exchange)

    @cute.jit
    def produce(self, a: Operand, b: Operand, ring: pipeline.PipelineTmaAsync, place: Place) -> None:
        """Fill the ring: one warp, for every tile of this block, for every step along k."""
        shape = self.shape
        a_mask = cute.make_layout_image_mask(place.cluster, place.block, mode=1) if shape.cluster_n > 1 else 0
        b_mask = cute.make_layout_image_mask(place.cluster, place.block, mode=0) if shape.cluster_m > 1 else 0
        a_shared, a_global = a.partition(place.block[1], shape.cluster_n)
        b_shared, b_global = b.partition(place.block[0], shape.cluster_m)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, shape.stages)
        first = place.block[2] * place.k_tiles
        work, stride = self.first_work()
        while work < place.order.count():
            m, n, batch = place.tile(shape, work)
            a_row = a_global[(None, m, None, batch)]
            b_row = b_global[(None, n, None, batch)]
            for k in cutlass.range(first, first + place.k_tiles, unroll=1):
                ring.producer_acquire(state)
                full = ring.producer_get_barrier(state)
                cute.copy(a.copy, a_row[(None, k)], a_shared[(None, state.index)], tma_bar_ptr=full, mcast_mask=a_mask)
                cute.copy(b.copy, b_row[(None, k)], b_shared[(None, state.index)], tma_bar_ptr=full, mcast_mask=b_mask)
                state.advance()
            work += stride
        # A block must not leave while its cluster still signals its barriers.
        ring.producer_tail(state)

    def first_work(self) -> tuple[Any, Any]:
        """The first unit of work of this block, and the step to the next."""
        _, _, work = cute.arch.block_idx()
        _, _, stride = cute.arch.grid_dim()
        return work // self.shape.split_k, stride // self.shape.split_k

    @cute.jit
    def consume(
        self,
        a: Operand,
        b: Operand,
        ring: pipeline.PipelineTmaAsync,
        place: Place,
        epilogue: Epilogue,
        exchange: Exchange,
    ) -> None:
        """Drain the ring into registers and store each finished tile: a consumer warp group."""
        shape = self.shape
        group = epilogue.group
        mma = self.mma(shape.groups)
        in_tile = Int32(0) if shape.pingpong else group  # among the warp groups of a tile
        mine = mma.get_slice(cute.make_layout(shape.groups, stride=WARP_GROUP)(in_tile))
        fragments = (
            mma.make_fragment_A(mine.partition_A(a.shared)),
            mma.make_fragment_B(mine.partition_B(b.shared)),
        )
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((shape.tile_m, shape.tile_n)), Float32)
        # A thread's accumulators of a unit are consecutive registers.
        by_unit = cute.make_tensor(
            accumulators.iterator, cute.make_layout((shape.unit_n // 2, shape.strips, shape.units // shape.strips))
        )

        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        phase = Int32(0)  # of the exchange
        work, stride = self.first_work()
        if cutlass.const_expr(shape.pingpong):
            work += group * stride
            stride = stride * 2
            # The other group multiplies the tile before.
            read.advance(place.k_tiles * group)
            release.advance(place.k_tiles * group)
            if group == 1:
                cute.arch.barrier_arrive(barrier_id=TURN_BARRIER, number_of_threads=2 * WARP_GROUP)
        while work < place.order.count():
            m, n, batch = place.tile(shape, work)
            if cutlass.const_expr(shape.pingpong):
                cute.arch.barrier(barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARP_GROUP)
            if cutlass.const_expr(self.promotes):
                step = (shape.groups * MMA_ROWS, shape.tile_n)
                read = multiply_promoted(mma, step, fragments, accumulators, ring, read, place.k_tiles)
            else:
                read, release = multiply(mma, fragments, accumulators, ring, read, release, place.k_tiles)
            if cutlass.const_expr(shape.pingpong):
                cute.arch.barrier_arrive(barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARP_GROUP)
            if cutlass.const_expr(not self.promotes):
                warpgroup.wait_group(0)
                ring.consumer_release(release)
                release.advance()
            if cutlass.const_expr(shape.pingpong):
                read.advance(place.k_tiles)
                release.advance(place.k_tiles)

            top = m * shape.tile_m // MMA_ROWS + in_tile  # in units; the warp groups of a tile take rows in turn
            left = n * shape.strips
            if cutlass.const_expr(shape.split_k == 1):
                for unit in cutlass.range_constexpr(shape.units):
                    row, strip = unit // shape.strips, unit % shape.strips
                    epilogue.finish(by_unit[(None, strip, row)], unit, (top + row * shape.groups, left + strip, batch))
            else:
                exchange.send(cute.group_modes(by_unit, 1, 3), group, epilogue.lane)
                if exchange.owns():
                    exchange.wait(group, phase)
                    for i in cutlass.range_constexpr(exchange.units):
                        unit = place.block[2] * exchange.units + i
                        row, strip = unit // shape.strips, unit % shape.strips
                        epilogue.finish(
                            exchange.total(i, group, epilogue.lane),
                            i,
                            (top + row * shape.groups, left + strip, batch),
                        )
                    exchange.free(group, epilogue.lane)
                exchange.wait_free(group, phase)
                phase ^= 1
            work += stride
        epilogue.drain()


def swizzled(dtype: Any, tile: tuple[int, int], stages: int, row_major: bool) -> cute.ComposedLayout:
    """Shared memory of `stages` tiles with the widest swizzle that their contiguous side allows."""
    order = LayoutEnum.ROW_MAJOR if row_major else LayoutEnum.COL_MAJOR
    kind = hopper_helpers.get_smem_layout_atom(order, dtype, tile[1] if row_major else tile[0])
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(atom, (*tile, stages), order=(0, 1, 2) if row_major else (1, 0, 2))
