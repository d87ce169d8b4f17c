"""The grouped Hopper GEMM that ``grouped_gemm_sm90`` searches over, in CuteDSL.

It is built as ``gemm_sm90`` is, with the same ring, main loop and warp groups: a product for every expert, of the rows
of A that are its own with its B. Blocks are persistent, and walk the tiles of all groups, which are known once the
kernel runs (`tilescout.spaces.grouped_gemm_sm90.groups`). One TMA descriptor serves the A of all groups: a tile begins
at any row, and where its group ends before the tile does, the rows of the next groups are multiplied for nothing and
not stored (`tilescout.spaces.grouped_gemm_sm90.epilogue`). B is one tensor of three dimensions.

The product of an expert is A @ B.T, or with swapped operands its transpose, B @ A.T: then the tensor cores' 64 rows lie
along n, and their columns, of which 16 suffice, along the tokens, of which an expert may have few.

The last tile of a group may be mostly empty. Where tiles are trimmed, one that its group fills by half or less is
multiplied as half a tile: by the same loop, with half of the rows or columns of the tokens' operand.

Weights that nothing else of the launch reads leave the L2 first, if all of them are more than it keeps.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass, replace
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Boolean, Float32, Int32, Int64, cute, pipeline, utils
from cutlass.cute.nvgpu import cpasync, warpgroup

from tilescout.spaces.gemm_sm90.caching import EVICT_FIRST, EVICT_NORMAL, KEPT_IN_L2
from tilescout.spaces.gemm_sm90.epilogue import register_copy
from tilescout.spaces.gemm_sm90.kernel import TURN_BARRIER, WARPS, GemmSm90
from tilescout.spaces.gemm_sm90.layout import MMA_ROWS, SWIZZLE_BYTES, WARP_GROUP, GemmShape
from tilescout.spaces.gemm_sm90.mainloop import multiply
from tilescout.spaces.grouped_gemm_sm90.epilogue import Store
from tilescout.spaces.grouped_gemm_sm90.groups import Groups
from tilescout.spaces.grouped_gemm_sm90.layout import MOST_EXPERTS, MOST_WARPS


@cute.jit
def pass_by(
    ring: pipeline.PipelineTmaAsync, read: pipeline.PipelineState, release: pipeline.PipelineState, k_tiles: Int32
) -> tuple[pipeline.PipelineState, pipeline.PipelineState]:
    """Let all stages of a tile go by, as `multiply` does: the last one is not released."""
    ring.consumer_wait(read)
    read.advance()
    for _ in cutlass.range(1, k_tiles, unroll=1):
        ring.consumer_wait(read)
        ring.consumer_release(release)
        read.advance()
        release.advance()
    return read, release


@cute.jit
def weights_policy(groups: Groups, expert: Int32, outgrown: Boolean) -> Int64:
    """How the L2 keeps the weights of an expert: those that nothing reads again make way first.

    No other tile does where the expert has one unit of work along its tokens, and no later launch finds them where all
    weights together have `outgrown` what the L2 keeps.
    """
    policy = Int64(EVICT_NORMAL)
    first, last = groups.units_of(expert)
    if outgrown and last - first == 1:
        policy = Int64(EVICT_FIRST)
    return policy


@dataclass(frozen=True)
class Operand:
    """A and B in global memory, as the left or right operand of the product, its tiles in shared memory, and the load.

    Attributes
    ----------
    load
        The TMA atom.
    matrix
        The matrix as TMA sees it: A [tokens, k] or B [n, k, experts].
    shared
        Shared tiles: [rows, k, stages].
    tile
        Rows and depth of a tile.
    part, parts
        Of each tile, this block copies one of so many parts for those that share it.
    mask
        The blocks that share it; 0 if this block alone reads it.
    """

    load: cute.CopyAtom
    matrix: cute.Tensor
    shared: cute.Tensor
    tile: tuple[int, int]
    part: Any
    parts: int
    mask: Any

    @property
    def has_weights(self) -> bool:
        """Whether it is B, the weights."""
        return bool(cute.rank(self.matrix) == 3)

    @cute.jit
    def stages_from(self, row: Int32, expert: Int32) -> tuple[cute.Tensor, cute.Tensor]:
        """Views (shared, global) of tiles that begin at a row: [(a tile), stages], [(a tile), steps along k]."""
        if cutlass.const_expr(self.has_weights):
            rows = cute.domain_offset((row, 0), self.matrix[(None, None, expert)])
        else:
            rows = cute.domain_offset((row, 0), self.matrix)
        tiles = cute.local_tile(rows, self.tile, (0, None))
        views: tuple[cute.Tensor, cute.Tensor] = cpasync.tma_partition(
            self.load,
            self.part,
            cute.make_layout(self.parts),
            cute.group_modes(self.shared, 0, 2),
            cute.group_modes(tiles, 0, 2),
        )
        return views

    @cute.jit
    def fetch(
        self, views: tuple[cute.Tensor, cute.Tensor], k: Int32, stage: Int32, full: cute.Pointer, of_weights: Int64
    ) -> None:
        """Load a step along k into a stage, weights by their policy, and have the barrier count its bytes."""
        shared, matrix = views
        source, target = matrix[(None, k)], shared[(None, stage)]
        policy = of_weights if cutlass.const_expr(self.has_weights) else None
        cute.copy(self.load, source, target, tma_bar_ptr=full, mcast_mask=self.mask, cache_policy=policy)

    def first_rows(self, rows: int) -> cute.Tensor:
        """The first rows of every stage: [rows, k, stages]."""
        if rows == self.tile[0]:
            return self.shared
        return cute.local_tile(self.shared, (rows, self.tile[1]), (0, 0, None))


@dataclass(frozen=True)
class Product:
    """What a consumer warp group multiplies: instructions, its operands in the ring, and its accumulators."""

    mma: cute.TiledMma
    fragments: tuple[cute.Tensor, cute.Tensor]
    accumulators: cute.Tensor

    @cute.jit
    def run(
        self,
        ring: pipeline.PipelineTmaAsync,
        read: pipeline.PipelineState,
        release: pipeline.PipelineState,
        k_tiles: Int32,
    ) -> tuple[pipeline.PipelineState, pipeline.PipelineState]:
        """Multiply all stages of a tile; see `multiply`."""
        read, release = multiply(self.mma, self.fragments, self.accumulators, ring, read, release, k_tiles)
        return read, release


@dataclass(frozen=True)
class GroupedGemmSm90:
    """A kernel generator: its entry point under ``cute.compile`` emits the kernel.

    Attributes
    ----------
    gemm
        The product of one expert: its layouts in shared memory, its loads and its instructions. k is not split.
    mixed
        Whether bands of tiles go over all groups, instead of over one after the other.
    trim
        Whether a tile that its group fills by half or less is multiplied as half a tile.
    """

    gemm: GemmSm90
    mixed: bool
    trim: bool

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, ends: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream
    ) -> None:
        """Launch on A [tokens, k], B [experts, n, k], the ends of the groups [experts], D [tokens, n]."""
        shape = self.shape
        b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 2, 0]))
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
            (MMA_ROWS, shape.unit_n),
        )
        tokens, columns = self.steps()
        across = cute.ceil_div(cute.size(d, mode=[1]), columns)
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

    @property
    def shape(self) -> GemmShape:
        """The compile-time parameters of a tile."""
        return self.gemm.shape

    @property
    def trimmed(self) -> GemmShape:
        """The same for half of the tokens."""
        shape = self.shape
        if shape.swap_ab:
            return replace(shape, tile_n=shape.tile_n // 2)
        return replace(shape, tile_m=shape.tile_m // 2)

    def steps(self) -> tuple[int, int]:
        """Tokens and columns of D of a unit of work."""
        along = self.shape.tile_m * self.shape.cluster_m, self.shape.tile_n * self.shape.cluster_n
        return (along[1], along[0]) if self.shape.swap_ab else along

    def outgrows_l2(self, groups: Groups, k_tiles: Int32) -> Boolean:
        """Whether the weights of all experts are more than the L2 keeps from one launch to the next."""
        _, columns = self.steps()
        step_bytes = self.shape.tile_k * self.gemm.element.width // 8
        rows = Int64(groups.across * columns) * cute.size(groups.ends)
        return rows * (k_tiles * step_bytes) > KEPT_IN_L2

    @cute.kernel
    def kernel(
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
    ) -> None:
        """What every block runs."""
        shape = self.shape
        element = self.gemm.element
        left_layout, right_layout, d_layout = self.gemm.a_layout(), self.gemm.b_layout(), self.gemm.d_layout()
        thread, _, _ = cute.arch.thread_idx()
        warp_index = cute.arch.make_warp_uniform(thread // 32)
        group_index = cute.arch.make_warp_uniform(thread // WARP_GROUP)

        if warp_index == 0:
            cpasync.prefetch_descriptor(load_left)
            cpasync.prefetch_descriptor(load_right)
            cpasync.prefetch_descriptor(store)

        @cute.struct
        class Shared:
            barriers: cute.struct.MemRange[Int64, 2 * shape.stages]
            units: cute.struct.MemRange[Int32, MOST_EXPERTS]
            totals: cute.struct.MemRange[Int32, MOST_WARPS]
            left: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(left_layout)], SWIZZLE_BYTES]
            right: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(right_layout)], SWIZZLE_BYTES]
            d: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(d_layout)], SWIZZLE_BYTES]

        shared = utils.SmemAllocator().allocate(Shared)
        cluster = cute.make_layout((shape.cluster_m, shape.cluster_n, 1))
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        block = cluster.get_flat_coord(rank)

        def operand(
            load: cute.CopyAtom, matrix: cute.Tensor, shared: cute.Tensor, rows: int, mode: int, sharers: int
        ) -> Operand:
            # The blocks along one side of the cluster read the same tile of the operand that lies along the other.
            mask = cute.make_layout_image_mask(cluster, block, mode=mode) if sharers > 1 else 0
            return Operand(load, matrix, shared, (rows, shape.tile_k), block[mode], sharers, mask)

        left_shared = shared.left.get_tensor(left_layout.outer, swizzle=left_layout.inner)
        right_shared = shared.right.get_tensor(right_layout.outer, swizzle=right_layout.inner)
        left = operand(load_left, left_tma, left_shared, shape.tile_m, 1, shape.cluster_n)
        right = operand(load_right, right_tma, right_shared, shape.tile_n, 0, shape.cluster_m)
        tokens = Int32(cute.size(d, mode=[0]))
        groups = Groups(
            shape,
            self.mixed,
            ends,
            tokens,
            shared.units.get_tensor(cute.make_layout(MOST_EXPERTS)),
            shared.totals.get_tensor(cute.make_layout(MOST_WARPS)),
            across,
            block,
        )

        # A stage is free once every consumer warp of every block that reads it has said so.
        readers = shape.cluster_m + shape.cluster_n - 1
        stage_bytes = cute.size_in_bytes(element, cute.slice_(left_layout, (None, None, 0)))
        stage_bytes += cute.size_in_bytes(element, cute.slice_(right_layout, (None, None, 0)))
        ring = pipeline.PipelineTmaAsync.create(
            barrier_storage=shared.barriers.data_ptr(),
            num_stages=shape.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, readers * WARPS * shape.groups),
            tx_count=stage_bytes,
            cta_layout_vmnk=cute.make_layout((1, shape.cluster_m, shape.cluster_n, 1)),
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)
        # Programmatic dependent launch: all of the setup above ran beside the last kernel; what that one wrote is there
        # from here on, and the next kernel may set itself up.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        count = groups.fill(thread)
        k_tiles = cute.ceil_div(cute.size(left_tma, mode=[1]), shape.tile_k)

        if group_index == shape.warp_groups:
            if cutlass.const_expr(shape.reallocates):
                cute.arch.setmaxregister_decrease(shape.registers[0])
            if warp_index == WARPS * shape.warp_groups:
                self.produce(left, right, ring, groups, count, k_tiles)
        else:
            if cutlass.const_expr(shape.reallocates):
                cute.arch.setmaxregister_increase(shape.registers[1])
            copy = register_copy(self.gemm.mma(1), element, shape.swap_ab)
            lane = thread % WARP_GROUP
            staged = shared.d.get_tensor(d_layout.outer, swizzle=d_layout.inner)
            to_shared = copy.get_slice(lane).partition_D(staged)
            stores = Store(shape, element, copy, to_shared, staged, store, d_tma, d, group_index, lane)
            self.consume((left, right), ring, groups, stores, count, k_tiles)

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
        shape = self.shape
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, shape.stages)
        _, _, work = cute.arch.block_idx()
        _, _, stride = cute.arch.grid_dim()
        outgrown = self.outgrows_l2(groups, k_tiles)
        chunk = Int32(0)
        while work < count:
            chunk, (expert, row, _, column) = groups.at(work, count, chunk)
            policy = weights_policy(groups, expert, outgrown)
            rows = (column, row) if cutlass.const_expr(shape.swap_ab) else (row, column)
            left_views, right_views = left.stages_from(rows[0], expert), right.stages_from(rows[1], expert)
            for k in cutlass.range(k_tiles, unroll=1):
                ring.producer_acquire(state)
                full = ring.producer_get_barrier(state)
                left.fetch(left_views, k, state.index, full, policy)
                right.fetch(right_views, k, state.index, full, policy)
                state.advance()
            work += stride
        # A block must not leave while its cluster still signals its barriers.
        ring.producer_tail(state)

    def product(self, shape: GemmShape, operands: tuple[Operand, Operand], group: Int32, registers: Any) -> Product:
        """The product of a tile of some shape, by a warp group of those that share it, in registers that it has."""
        mma = replace(self.gemm, shape=shape).mma(shape.groups)
        mine = mma.get_slice(cute.make_layout(shape.groups, stride=WARP_GROUP)(group))
        left, right = operands[0].first_rows(shape.tile_m), operands[1].first_rows(shape.tile_n)
        fragments = mma.make_fragment_A(mine.partition_A(left)), mma.make_fragment_B(mine.partition_B(right))
        held = mma.partition_shape_C((shape.tile_m, shape.tile_n))
        if registers is None:
            return Product(mma, fragments, cute.make_rmem_tensor(held, Float32))
        # In the order in which the whole tile has them: 64 rows after 64 rows, as far apart as its columns ask for.
        apart = self.shape.tile_n // 2
        layout = cute.make_layout(held, stride=((1, 2, 4), apart, 0))
        return Product(mma, fragments, cute.make_tensor(registers.iterator, layout))

    @cute.jit
    def consume(
        self,
        operands: tuple[Operand, Operand],
        ring: pipeline.PipelineTmaAsync,
        groups: Groups,
        stores: Store,
        count: Int32,
        k_tiles: Int32,
    ) -> None:
        """Drain the ring into registers and store each finished tile: a consumer warp group."""
        shape = self.shape
        group = stores.group
        in_tile = Int32(0) if shape.pingpong else group  # among the warp groups of a tile
        whole = self.product(shape, operands, in_tile, None)
        accumulators = whole.accumulators
        half = self.product(self.trimmed, operands, in_tile, accumulators) if self.trim else whole
        # A thread's accumulators of a unit are consecutive registers.
        by_unit = cute.make_tensor(
            accumulators.iterator, cute.make_layout((shape.unit_n // 2, shape.strips, shape.units // shape.strips))
        )

        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        _, _, work = cute.arch.block_idx()
        _, _, stride = cute.arch.grid_dim()
        chunk = Int32(0)
        if cutlass.const_expr(shape.pingpong):
            work += group * stride
            stride = stride * 2
            # The other group multiplies the tile before.
            read.advance(k_tiles * group)
            release.advance(k_tiles * group)
            if group == 1:
                cute.arch.barrier_arrive(barrier_id=TURN_BARRIER, number_of_threads=2 * WARP_GROUP)
        alike = shape.swap_ab or shape.groups == 1  # the warp groups of a tile have the same tokens
        most = self.trimmed.tile_n if shape.swap_ab else self.trimmed.tile_m  # tokens of half a tile
        while work < count:
            chunk, (_, row, stop, column) = groups.at(work, count, chunk)
            if cutlass.const_expr(shape.pingpong):
                cute.arch.barrier(barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARP_GROUP)
            first = row if cutlass.const_expr(alike) else row + in_tile * MMA_ROWS  # of this warp group's tokens
            if cutlass.const_expr(not self.trim and alike):  # decided here, the others by the GPU
                read, release = whole.run(ring, read, release, k_tiles)
            elif first < stop:
                if cutlass.const_expr(not self.trim):  # noqa: SIM114
                    read, release = whole.run(ring, read, release, k_tiles)
                elif row + most < stop:
                    read, release = whole.run(ring, read, release, k_tiles)
                else:
                    read, release = half.run(ring, read, release, k_tiles)
            else:
                # The group ends above this warp group's rows: the tensor cores are left to the others.
                read, release = pass_by(ring, read, release, k_tiles)
            if cutlass.const_expr(shape.pingpong):
                cute.arch.barrier_arrive(barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARP_GROUP)
            warpgroup.wait_group(0)
            ring.consumer_release(release)
            release.advance()
            if cutlass.const_expr(shape.pingpong):
                read.advance(k_tiles)
                release.advance(k_tiles)
            for unit in cutlass.range_constexpr(shape.units):
                down = (unit // shape.strips * shape.groups + in_tile) * MMA_ROWS  # warp groups take rows in turn
                right = unit % shape.strips * shape.unit_n
                values = by_unit[(None, unit % shape.strips, unit // shape.strips)]
                if cutlass.const_expr(shape.swap_ab):
                    stores.finish(values, unit, row + right, column + down, stop)
                else:
                    stores.finish(values, unit, row + down, column + right, stop)
            work += stride
        stores.drain()
