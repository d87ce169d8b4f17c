"""The kernel of ``grouped_gemm_sm90`` whose clusters share a thin last wave of tiles along k, in CuteDSL.

The tiles of the last wave, where it is thin (`tilescout.spaces.grouped_streamk_sm90.sharing`), come first, each split
into parts along k for several clusters (`tilescout.spaces.gemm_streamk_sm90.partition`). What a cluster computes of a
tile that it does not have whole it leaves as fp32 sums in a workspace. A second kernel, which waits for the first by
programmatic dependent launch, adds up the parts of each tile in their order and stores it. How many tiles there are the
device alone knows, so each block of both kernels works out the division from its table of the groups.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import cuda.bindings.driver as cuda
import cutlass
from cutlass import Float32, Int32, cute, pipeline, utils
from cutlass.cute.nvgpu import cpasync, warpgroup

from tilescout.spaces.gemm_sm90.epilogue import register_copy
from tilescout.spaces.gemm_sm90.kernel import TURN_BARRIER
from tilescout.spaces.gemm_sm90.layout import MMA_ROWS, SWIZZLE_BYTES, WARP_GROUP, GemmShape
from tilescout.spaces.gemm_streamk_sm90.layout import STEP, VECTOR, SharingShape, most_clusters
from tilescout.spaces.gemm_streamk_sm90.partition import Partition, slot
from tilescout.spaces.gemm_streamk_sm90.sums import Sums
from tilescout.spaces.grouped_gemm_sm90.epilogue import Store
from tilescout.spaces.grouped_gemm_sm90.groups import Groups
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90, Operand, Product, pass_by, weights_policy
from tilescout.spaces.grouped_gemm_sm90.layout import MOST_EXPERTS, MOST_WARPS
from tilescout.spaces.grouped_streamk_sm90.sharing import is_worth_splitting, parts_that_fit

inherited = cute.jit(GroupedGemmSm90.kernel.__wrapped__)
"""The body of the kernel of ``grouped_gemm_sm90``, to be part of another kernel."""


def sums_at(start: Any, shape: GemmShape) -> Sums:
    """The workspace that begins somewhere; of a shape it takes what a `GemmShape` has."""
    return Sums(start, cast(SharingShape, shape))


@cute.jit
def split_tiles(count: Int32, clusters: Int32, k: Int32) -> tuple[Int32, Int32]:
    """How many of so many tiles are split, those of the last wave or none, and in how many parts each."""
    shared, parts = Int32(0), Int32(0)
    if count > 0:
        last = (count - 1) % clusters + 1
        fitting = parts_that_fit(last, clusters, cutlass.min)
        if is_worth_splitting(fitting, k):
            shared, parts = last, fitting
    return shared, parts


@dataclass(frozen=True)
class Turns:
    """What a cluster has: a part of a shared tile or none, then every so many-th of the whole ones.

    Attributes
    ----------
    partition
        The division. Where nothing is shared it has no parts, and is not asked where one begins.
    clusters
        Clusters of the grid.
    """

    partition: Partition
    clusters: Int32

    @classmethod
    def of(cls, count: Int32, steps: Int32, depth: int, clusters: Int32) -> "Turns":
        """The division of so many tiles, of steps along k of some depth each."""
        shared, parts = split_tiles(count, clusters, steps * depth)
        return cls(Partition(count, steps, shared, shared * parts, cutlass.min), clusters)

    @cute.jit
    def first(self, cluster: Int32) -> tuple[Int32, Int32, Int32]:
        """Of a cluster, the first step of its part, the end of it, and its first whole tile."""
        step, end = Int32(0), Int32(0)
        if cluster < self.partition.parts:
            step, end = self.partition.begin(cluster), self.partition.begin(cluster + 1)
        return step, end, self.partition.shared + cluster

    @cute.jit
    def take(self, at: tuple[Int32, Int32, Int32]) -> tuple[tuple[Int32, Int32, Int32], tuple[Int32, Int32, Int32]]:
        """The tile that comes next, with its first step and the end of its steps, and where the cluster is then."""
        step, end, whole = at
        # Whole tiles ask for no division: it would keep the ring waiting between two tiles.
        tile, first, last = whole, Int32(0), self.partition.steps
        if step < end:
            tile, first, last = self.partition.segment(step, end)
            step += last - first
        else:
            whole += self.clusters
        return (tile, first, last), (step, end, whole)


@dataclass(frozen=True)
class Ending:
    """The end of a tile, or of a part of one, for a consumer warp group.

    Attributes
    ----------
    shape
        The compile-time parameters.
    stores
        The stores of a whole tile.
    sums
        The workspace.
    groups, count
        Where the tiles are, and how many there are.
    """

    shape: Any
    stores: Store
    sums: Sums
    groups: Groups
    count: Int32

    @cute.jit
    def store(self, accumulators: cute.Tensor, in_tile: Int32, at: tuple[Int32, Int32, Int32]) -> None:
        """Store a whole tile; it begins at a row and a column, and its group ends at a row."""
        shape = self.shape
        row, column, stop = at
        # A thread's accumulators of a unit are consecutive registers.
        by_unit = cute.make_tensor(
            accumulators.iterator, cute.make_layout((shape.unit_n // 2, shape.strips, shape.units // shape.strips))
        )
        for unit in cutlass.range_constexpr(shape.units):
            down = (unit // shape.strips * shape.groups + in_tile) * MMA_ROWS  # warp groups take rows in turn
            right = unit % shape.strips * shape.unit_n
            values = by_unit[(None, unit % shape.strips, unit // shape.strips)]
            if cutlass.const_expr(shape.swap_ab):
                self.stores.finish(values, unit, row + right, column + down, stop)
            else:
                self.stores.finish(values, unit, row + down, column + right, stop)

    @cute.jit
    def leave(self, accumulators: cute.Tensor, in_tile: Int32, slot: Int32) -> None:
        """Write the sums to a slot of the workspace."""
        shape = self.shape
        block = self.groups.block[0] + shape.cluster_m * self.groups.block[1]
        vectors, rows = shape.tile_n // (2 * VECTOR), shape.tile_m // (MMA_ROWS * shape.groups)
        by_row = cute.make_tensor(accumulators.iterator, cute.make_layout((VECTOR, vectors, rows)))
        for row in cutlass.range_constexpr(rows):
            to = self.sums.of_thread(slot, block, row * shape.groups + in_tile, self.stores.lane)
            for vector in cutlass.range_constexpr(vectors):
                cute.autovec_copy(by_row[(None, vector, row)], to[(None, vector)])


@dataclass(frozen=True)
class GroupedStreamKSm90(GroupedGemmSm90):
    """A kernel generator: its entry points under ``cute.compile`` emit the kernels.

    Attributes
    ----------
    gemm, mixed, trim
        As of `GroupedGemmSm90`; where the last wave may be shared, no tile is trimmed.
    sums
        The pointer to the workspace, while the kernels are launched and in them.
    """

    sums: Any = None

    @cute.jit
    def sharing(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        ends: cute.Tensor,
        d: cute.Tensor,
        clusters: Int32,
        workspace: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on the operands of `GroupedGemmSm90`, and a workspace: a thin last wave is shared by all clusters."""
        shape = self.shape
        blocks = shape.cluster_m * shape.cluster_n
        tokens, columns = self.steps()
        across = cute.ceil_div(cute.size(d, mode=[1]), columns)
        most = (cute.size(d, mode=[0]) + cute.size(ends) * (tokens - 1)) // tokens * across
        clusters = cutlass.min(cutlass.min(clusters, most_clusters(blocks)), most)
        sums = cute.recast_ptr(workspace.iterator, dtype=Float32)
        GroupedGemmSm90.__call__(replace(self, sums=sums), a, b, ends, d, clusters, stream)
        product = d
        if cutlass.const_expr(shape.swap_ab):
            product = cute.make_tensor(d.iterator, cute.select(d.layout, mode=[1, 0]))
        store, d_tma = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            product,
            cute.slice_(self.gemm.d_layout(), (None, None, 0)),
            (MMA_ROWS, shape.unit_n),
        )
        steps = Int32(cute.ceil_div(cute.size(a, mode=[1]), shape.tile_k))
        self.add_up(store, d_tma, ends, d, sums, across, steps, clusters).launch(
            grid=[cute.ceil_div(shape.units * shape.groups, shape.warp_groups), blocks, clusters],
            block=[shape.threads, 1, 1],
            stream=stream,
            use_pdl=True,
        )

    def kernel(self, *arguments: Any) -> Any:
        """The kernel that is inherited, with a workspace."""
        return self.with_workspace(*arguments, self.sums)

    @cute.kernel
    def with_workspace(
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
        sums: Any,
    ) -> None:
        """What every block runs."""
        inherited(replace(self, sums=sums), load_left, left_tma, load_right, right_tma, store, d_tma, ends, d, across)

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
        """Fill the ring, for every step that this cluster has."""
        shape = self.shape
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, shape.stages)
        _, _, cluster = cute.arch.block_idx()
        _, _, clusters = cute.arch.grid_dim()
        turns = Turns.of(count, k_tiles, shape.tile_k, clusters)
        step, end, whole = turns.first(cluster)
        outgrown = self.outgrows_l2(groups, k_tiles)
        chunk = Int32(0)
        while step < end or whole < count:
            (tile, first, last), (step, end, whole) = turns.take((step, end, whole))
            chunk, (expert, row, _, column) = groups.at(tile, count, chunk)
            policy = weights_policy(groups, expert, outgrown)
            rows = (column, row) if cutlass.const_expr(shape.swap_ab) else (row, column)
            left_views, right_views = left.stages_from(rows[0], expert), right.stages_from(rows[1], expert)
            for k in cutlass.range(first, last, unroll=1):
                ring.producer_acquire(state)
                full = ring.producer_get_barrier(state)
                left.fetch(left_views, k, state.index, full, policy)
                right.fetch(right_views, k, state.index, full, policy)
                state.advance()
        # A block must not leave while its cluster still signals its barriers.
        ring.producer_tail(state)

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
        """Drain the ring, and store each finished tile, or leave its sums: a consumer warp group."""
        shape = self.shape
        group = stores.group
        ending = Ending(shape, stores, sums_at(self.sums, shape), groups, count)
        in_tile = Int32(0) if shape.pingpong else group  # among the warp groups of a tile
        whole = self.product(shape, operands, in_tile, None)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        _, _, cluster = cute.arch.block_idx()
        _, _, clusters = cute.arch.grid_dim()
        turns = Turns.of(count, k_tiles, shape.tile_k, clusters)
        step, end, next_whole = turns.first(cluster)
        chunk = Int32(0)
        turn = Int32(0)  # of pingpong: the warp group that multiplies next
        if cutlass.const_expr(shape.pingpong):  # noqa: SIM102 - decided here, the other by the GPU
            if group == 1:
                cute.arch.barrier_arrive(barrier_id=TURN_BARRIER, number_of_threads=2 * WARP_GROUP)
        while step < end or next_whole < count:
            (tile, first, last), (step, end, next_whole) = turns.take((step, end, next_whole))
            steps = last - first
            place = slot(cluster, tile), tile, steps, steps == k_tiles
            if cutlass.const_expr(not shape.pingpong):  # noqa: SIM114 - decided here, the other by the GPU
                read, release, chunk = self.part(whole, ring, read, release, ending, chunk, place)
            elif turn == group:
                read, release, chunk = self.part(whole, ring, read, release, ending, chunk, place)
            else:
                # The other group multiplies these.
                read.advance(steps)
                release.advance(steps)
            turn = 1 - turn
        stores.drain()

    @cute.jit
    def part(
        self,
        whole: Product,
        ring: pipeline.PipelineTmaAsync,
        read: pipeline.PipelineState,
        release: pipeline.PipelineState,
        ending: Ending,
        chunk: Int32,
        place: tuple[Int32, Int32, Int32, Any],
    ) -> tuple[pipeline.PipelineState, pipeline.PipelineState, Int32]:
        """Multiply so many steps along k of a tile, and end it, by its slot unless it is whole; return its groups too.

        With pingpong that is a turn, which begins once the tile is found, and ends before it is stored.
        """
        shape = self.shape
        slot, tile, steps, is_whole = place
        group = ending.stores.group
        in_tile = Int32(0) if shape.pingpong else group
        chunk, (_, row, stop, column) = ending.groups.at(tile, ending.count, chunk)
        if cutlass.const_expr(shape.pingpong):
            cute.arch.barrier(barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARP_GROUP)
        if cutlass.const_expr(shape.swap_ab or shape.groups == 1):
            # The warp groups of a tile have the same tokens.
            read, release = whole.run(ring, read, release, steps)
        elif row + in_tile * MMA_ROWS < stop:
            read, release = whole.run(ring, read, release, steps)
        else:
            read, release = pass_by(ring, read, release, steps)
        if cutlass.const_expr(shape.pingpong):
            cute.arch.barrier_arrive(barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARP_GROUP)
        warpgroup.wait_group(0)
        ring.consumer_release(release)
        release.advance()
        if is_whole:
            ending.store(whole.accumulators, in_tile, (row, column, stop))
        else:
            ending.leave(whole.accumulators, in_tile, slot)
        return read, release, chunk

    @cute.kernel
    def add_up(
        self,
        store: cute.CopyAtom,
        d_tma: cute.Tensor,
        ends: cute.Tensor,
        d: cute.Tensor,
        start: Any,
        across: Int32,
        steps: Int32,
        clusters: Int32,
    ) -> None:
        """Add up what was left of a tile: a warp group for a unit of 64 rows of each tile of the last wave."""
        shape, element = self.shape, self.gemm.element
        first_unit, rank, tile = cute.arch.block_idx()
        thread, _, _ = cute.arch.thread_idx()
        group = cute.arch.make_warp_uniform(thread // WARP_GROUP)
        lane = thread % WARP_GROUP
        d_layout = self.gemm.d_layout()

        @cute.struct
        class Shared:
            units: cute.struct.MemRange[Int32, MOST_EXPERTS]
            totals: cute.struct.MemRange[Int32, MOST_WARPS]
            d: cute.struct.Align[cute.struct.MemRange[element, cute.cosize(d_layout)], SWIZZLE_BYTES]

        shared = utils.SmemAllocator().allocate(Shared)
        cluster = cute.make_layout((shape.cluster_m, shape.cluster_n, 1))
        groups = Groups(
            shape,
            self.mixed,
            ends,
            Int32(cute.size(d, mode=[0])),
            shared.units.get_tensor(cute.make_layout(MOST_EXPERTS)),
            shared.totals.get_tensor(cute.make_layout(MOST_WARPS)),
            across,
            cluster.get_flat_coord(rank),
        )
        # The offsets are older than the kernel before this one, which waited for them before it let this one begin.
        count = groups.fill(thread)
        partition = Turns.of(count, steps, shape.tile_k, clusters).partition
        # What the kernel before wrote is there from here on.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        unit = first_unit * shape.warp_groups + group
        if group < shape.warp_groups and unit < shape.units * shape.groups and tile < partition.shared:
            first, last = partition.parts_of(tile)
            if first < last:
                copy = register_copy(self.gemm.mma(1), element, shape.swap_ab)
                staged = shared.d.get_tensor(d_layout.outer, swizzle=d_layout.inner)
                to_shared = copy.get_slice(lane).partition_D(staged)
                stores = Store(shape, element, copy, to_shared, staged, store, d_tma, d, group, lane)
                _, (_, row, stop, column) = groups.at(tile, count, Int32(0))
                down, right = unit // shape.strips, unit % shape.strips * shape.unit_n
                sums = sums_at(start, shape)
                vectors = shape.unit_n // (2 * VECTOR)
                total = cute.make_rmem_tensor(cute.make_layout((VECTOR, vectors)), Float32)
                part = cute.make_rmem_tensor(cute.make_layout((VECTOR, vectors)), Float32)
                total.fill(0.0)
                for each in cutlass.range(first, last + 1, unroll=1):
                    here = sums.of_thread(slot(each, tile), rank, down, lane)
                    for vector in cutlass.range_constexpr(vectors):
                        cute.autovec_copy(here[(None, right // STEP + vector)], part[(None, vector)])
                    total.store(total.load() + part.load())
                values = cute.make_tensor(total.iterator, cute.make_layout(shape.unit_n // 2))
                if cutlass.const_expr(shape.swap_ab):
                    stores.finish(values, 0, row + right, column + down * MMA_ROWS, stop)
                else:
                    stores.finish(values, 0, row + down * MMA_ROWS, column + right, stop)
                stores.drain()
