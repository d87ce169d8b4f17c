"""The Hopper GEMM that ``gemm_streamk_sm90`` searches over, in CuteDSL.

It is the kernel of ``gemm_sm90``, but clusters share tiles (`tilescout.spaces.gemm_streamk_sm90.partition`): each
multiplies a part of their steps along k. What a cluster computes of a tile that it does not have whole, it leaves as
fp32 sums in a workspace. A second kernel adds up the parts of each tile in their order, so that a result is the same to
the bit on every run, and finishes the tile. It is launched with the first, and waits for it by programmatic dependent
launch. No flag is kept in memory: the workspace may hold anything before and after.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import cutlass
from cutlass import Float32, Int32, Int64, cute, pipeline, utils
from cutlass.cute.nvgpu import cpasync, warpgroup

from tilescout.spaces.gemm_sm90.caching import EVICT_FIRST, EVICT_NORMAL, KEPT_IN_L2
from tilescout.spaces.gemm_sm90.epilogue import Epilogue, register_copy
from tilescout.spaces.gemm_sm90.exchange import Exchange
from tilescout.spaces.gemm_sm90.kernel import TURN_BARRIER, GemmSm90, Operand, Place
from tilescout.spaces.gemm_sm90.layout import MMA_ROWS, SWIZZLE_BYTES, WARP_GROUP
from tilescout.spaces.gemm_sm90.mainloop import multiply
from tilescout.spaces.gemm_streamk_sm90.launch import EVENLY, WAY, LaunchedShape
from tilescout.spaces.gemm_streamk_sm90.layout import STEP, STRIP, VECTOR, most_clusters, stage_rows
from tilescout.spaces.gemm_streamk_sm90.mainloop import multiply_ahead, multiply_beside
from tilescout.spaces.gemm_streamk_sm90.partition import slot
from tilescout.spaces.gemm_streamk_sm90.parts import Parts, used
from tilescout.spaces.gemm_streamk_sm90.scheduler import BandedOrder, SharedTiles, WholeTiles, number_of
from tilescout.spaces.gemm_streamk_sm90.sums import Sums

WARP = 32
# Waves of tiles in which blocks stay together. Where kernels of up to 2 waves let a large operand go, they took 0.95 to
# 1.00 times as long, and those of 9 and of 60 waves 1.005 times (H200, 2026-11-23; `experiments/results/promotion.md`).
# An operand that no two tiles share makes way at any number: 12 kernels of 4.4 to 13 waves took 0.97 times as long in
# the mean, from 0.93 to 1.05 times (H100, 2026-11-27; `experiments/results/stream-k.md`).
FEW_WAVES = 4


@dataclass(frozen=True)
class GemmStreamKSm90(GemmSm90):
    """A kernel generator: its entry point under ``cute.compile`` emits the kernels of `shape`.

    Attributes
    ----------
    shape
        The compile-time parameters, how 8-bit products are promoted, and how blocks are launched.
    shares
        Whether a tile may have several parts.
    launch_number
        What a launch is told, see `tilescout.spaces.gemm_streamk_sm90.launch`; no part of the names of the kernels.
    """

    shape: LaunchedShape
    shares: bool
    launch_number: int = field(repr=False)

    @cute.jit
    def run(self, *arguments: Any) -> None:
        """Launch on A, B[, alpha][, bias], D, at most so many clusters at a time[, a workspace], a stream."""
        a, b, alpha, bias, d, clusters, workspace, stream = self.named(arguments)
        shape = self.shape
        # TMA and CuTe's tiling want the batch last. Swapped, the product is D.T = B @ A.T.
        a = cute.make_tensor(a.iterator, cute.select(a.layout, mode=[1, 2, 0]))
        b = cute.make_tensor(b.iterator, cute.select(b.layout, mode=[1, 2, 0]))
        left, right, modes = a, b, [1, 2, 0]
        if cutlass.const_expr(shape.swap_ab):
            left, right, modes = b, a, [2, 1, 0]
        d = cute.make_tensor(d.iterator, cute.select(d.layout, mode=modes))
        load_a, a_tma = self.load_atom(left, self.a_layout(), (shape.tile_m, shape.tile_k), shape.cluster_n)
        load_b, b_tma = self.load_atom(right, self.b_layout(), (shape.tile_n, shape.tile_k), shape.cluster_m)
        number = number_of(self.launch_number)
        counts = BandedOrder.passed(
            cute.ceil_div(cute.size(d, mode=[0]), shape.tile_m * shape.cluster_m),
            cute.ceil_div(cute.size(d, mode=[1]), shape.tile_n * shape.cluster_n),
            cute.size(d, mode=[2]),
            number & ((1 << WAY) - 1),
        )
        order = BandedOrder.of(*counts)
        steps = Int32(cute.ceil_div(cute.size(left, mode=[1]), shape.tile_k))
        if cutlass.const_expr(self.shares):
            way = number >> WAY
            if way == EVENLY:
                clusters = cutlass.min(clusters, most_clusters(shape.cluster_m * shape.cluster_n))
            counts = (*counts[:2], (*counts[2], *SharedTiles.passed(way, order.count(), steps, clusters)))
            order = BandedOrder.of(*counts)
        partition = self.partition(order, steps)
        store_d, d_tma = self.store_atom(d)
        sums = cute.recast_ptr(workspace.iterator, dtype=Float32) if self.shares else None
        self.kernel(load_a, a_tma, load_b, b_tma, store_d, d_tma, (alpha, sums), bias, counts).launch(
            grid=[
                shape.cluster_m,
                shape.cluster_n,
                cutlass.min(clusters, cute.ceil_div(partition.jobs, shape.together)) * shape.together,
            ],
            block=[shape.threads, 1, 1],
            cluster=[shape.cluster_m, shape.cluster_n, shape.together],
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=True,
        )
        if cutlass.const_expr(self.shares):
            finisher = self.finisher()
            store_d, d_tma = finisher.store_atom(d)
            finisher.add_up(shape, store_d, d_tma, alpha, bias, sums, counts, steps).launch(
                grid=[
                    cute.ceil_div(shape.tile_n, STRIP),
                    shape.tile_m // MMA_ROWS,
                    partition.shared * (shape.cluster_m * shape.cluster_n),
                ],
                block=[WARP_GROUP, 1, 1],
                stream=stream,
                use_pdl=True,
            )

    @property
    def promoting_loop(self) -> Callable[..., pipeline.PipelineState]:
        """The main loop of 8-bit products: whether a product is added while the next one is computed."""
        return multiply_ahead if self.shape.promotion in ("ahead", "halves") else multiply_beside

    @property
    def parts(self) -> Parts:
        """The products that are computed one behind the other, each added while the next one is computed."""
        return Parts(self.shape, self.problem)

    def named(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """All that an entry point may be passed, in order; None for what this one is not."""
        rest = list(arguments)
        a, b = rest.pop(0), rest.pop(0)
        alpha = rest.pop(0) if self.problem.alpha else None
        bias = rest.pop(0) if self.problem.bias else None
        d, clusters = rest.pop(0), rest.pop(0)
        workspace = rest.pop(0) if self.shares else None
        (stream,) = rest
        return a, b, alpha, bias, d, clusters, workspace, stream

    def used(self, operand: Operand) -> Operand:
        """The right operand without the rows of a stage that are not used."""
        shared = operand.shared
        return replace(operand, shared=cute.make_tensor(shared.iterator, used(shared.layout, self.shape.tile_n)))

    def partition(self, order: Any, steps: Any) -> Any:
        """How the tiles are divided."""
        return SharedTiles.of(order.count(), order.divided) if self.shares else WholeTiles(order.count(), steps)

    def finisher(self) -> "GemmStreamKSm90":
        """The generator of the second kernel: its tiles are strips."""
        return replace(self, shape=replace(self.shape, tile_n=STRIP, warp_groups=1, pingpong=False, promotion="step"))

    def ring_layout(self, rows: int, k_major: bool) -> cute.ComposedLayout:
        """A ring of stages of `rows` rows of an operand, or of some more that are not used."""
        return super().ring_layout(stage_rows(rows), k_major)

    def load_atom(
        self, tensor: cute.Tensor, layout: cute.ComposedLayout, tile: tuple[int, int], sharers: int
    ) -> tuple[cute.CopyAtom, cute.Tensor]:
        """The TMA load of the rows of a stage that are used."""
        operation = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharers > 1 else cpasync.CopyBulkTensorTileG2SOp()
        stage = cute.make_composed_layout(layout.inner, 0, cute.select(used(layout.outer, tile[0]), mode=[0, 1]))
        atom: tuple[cute.CopyAtom, cute.Tensor] = cpasync.make_tiled_tma_atom(
            operation, tensor, stage, tile, num_multicast=sharers
        )
        return atom

    def store_atom(self, d: cute.Tensor) -> tuple[cute.CopyAtom, cute.Tensor]:
        """The TMA store of a unit, and D as units that begin at every `STEP` columns."""
        columns = self.shape.unit_n
        atom, whole = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileS2GOp(),
            d,
            cute.slice_(self.d_layout(), (None, None, 0)),
            (MMA_ROWS, columns),
        )
        rows, along, batch = whole.stride
        shape = (cute.size(d, mode=[0]), (columns, cute.ceil_div(cute.size(d, mode=[1]), STEP)), cute.size(d, mode=[2]))
        layout = cute.make_layout(shape, stride=(rows, (along, STEP * along), batch))
        return atom, cute.make_tensor(whole.iterator, layout)

    @cute.jit
    def produce(self, a: Operand, b: Operand, ring: pipeline.PipelineTmaAsync, place: Place) -> None:
        """Fill the ring: one warp, for every step of this block's jobs."""
        shape = self.shape
        a_mask = cute.make_layout_image_mask(place.cluster, place.block, mode=1) if shape.cluster_n > 1 else 0
        b_mask = cute.make_layout_image_mask(place.cluster, place.block, mode=0) if shape.cluster_m > 1 else 0
        b, place = self.used(b), walked(place)
        ring.sync_object_full.tx_count = (shape.tile_m + shape.tile_n) * shape.tile_k * self.element.width // 8
        a_shared, a_global = a.partition(place.block[1], shape.cluster_n)
        b_shared, b_global = b.partition(place.block[0], shape.cluster_m)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, shape.stages)
        job, stride = self.first_work()
        a_policy, b_policy = self.policies(place, stride)
        partition = self.partition(place.order, place.k_tiles)
        while job < partition.jobs:
            step, end = partition.begin(job), partition.begin(job + 1)
            while step < end:
                tile, first, last = partition.segment(step, end)
                m, n, batch = place.tile(shape, tile)
                a_row = a_global[(None, m, None, batch)]
                b_row = b_global[(None, n, None, batch)]
                for k in cutlass.range(first, last, unroll=1):
                    ring.producer_acquire(state)
                    full = ring.producer_get_barrier(state)
                    to_a, to_b = a_shared[(None, state.index)], b_shared[(None, state.index)]
                    from_a, from_b = a_row[(None, k)], b_row[(None, k)]
                    cute.copy(a.copy, from_a, to_a, tma_bar_ptr=full, mcast_mask=a_mask, cache_policy=a_policy)
                    cute.copy(b.copy, from_b, to_b, tma_bar_ptr=full, mcast_mask=b_mask, cache_policy=b_policy)
                    state.advance()
                step += last - first
            job += stride
        # A block must not leave while its cluster still signals its barriers.
        ring.producer_tail(state)

    @cute.jit
    def policies(self, place: Place, clusters: Int32) -> tuple[Int64, Int64]:
        """How the L2 keeps the left and the right operand: a large one that is read once makes way first.

        Where one row of tiles covers D, no two of them share what they read of the right operand, and where one column
        does, of the left one. Else the tiles of a band share one operand. Where so many clusters run at once that all
        tiles of a band do, no other tile reads it again; the other operand, which every band reads, then stays. After
        some waves the blocks are no longer at the same step, and read it from memory again.
        """
        shape = self.shape
        order: Any = place.order
        a_policy, b_policy = Int64(EVICT_NORMAL), Int64(EVICT_NORMAL)
        together = order.count() <= FEW_WAVES * clusters
        kept = KEPT_IN_L2 * 8 // (shape.tile_k * self.element.width)  # rows of one step along k
        kept = kept // place.k_tiles
        along_m, along_n = Int32(order.count_m.divisor), Int32(order.count_n.divisor)
        if along_m * (shape.cluster_m * shape.tile_m) > kept:  # noqa: SIM102 - the GPU decides both
            if along_n == 1 or (order.along_n > 0 and together and along_n << order.shift <= clusters):
                a_policy = Int64(EVICT_FIRST)
        if along_n * (shape.cluster_n * shape.tile_n) > kept:  # noqa: SIM102
            if along_m == 1 or (order.along_n == 0 and together and along_m << order.shift <= clusters):
                b_policy = Int64(EVICT_FIRST)
        return a_policy, b_policy

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
        """Drain the ring into registers, and store each finished tile, or leave its sums: a consumer warp group."""
        shape, place = self.shape, walked(place)
        if cutlass.const_expr(shape.pairs):
            # The ring takes the second block's place in the cluster for one among blocks that share its stages.
            ring = replace(ring, is_signaling_thread=epilogue.lane % WARP == 0)
        group = epilogue.group
        mma = self.mma(shape.groups)
        in_tile = Int32(0) if shape.pingpong else group  # among the warp groups of a tile
        mine = mma.get_slice(cute.make_layout(shape.groups, stride=WARP_GROUP)(in_tile))
        left, right = mine.partition_A(a.shared), self.used(b).shared
        if cutlass.const_expr(self.promotes):
            fragments = (mma.make_fragment_A(left), self.parts.fragments(right, in_tile))
        else:
            fragments = (mma.make_fragment_A(left), mma.make_fragment_B(mine.partition_B(right)))
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((shape.tile_m, shape.tile_n)), Float32)
        job, stride = self.first_work()
        partition = self.partition(place.order, place.k_tiles)
        alpha, workspace = epilogue.alpha  # both come this way through the kernel that is inherited
        epilogue = Stepped(**{**vars(epilogue), "alpha": alpha})
        ending = Ending(accumulators, in_tile, epilogue, Sums(workspace, shape), place, partition)

        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        release = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, shape.stages)
        turn = Int32(0)  # of pingpong: the warp group that multiplies next
        if cutlass.const_expr(shape.pingpong):  # noqa: SIM102 - decided here, the other by the GPU
            if group == 1:
                cute.arch.barrier_arrive(barrier_id=TURN_BARRIER, number_of_threads=2 * WARP_GROUP)
        while job < partition.jobs:
            step, end = partition.begin(job), partition.begin(job + 1)
            while step < end:
                tile, first, last = partition.segment(step, end)
                steps = last - first
                if cutlass.const_expr(not shape.pingpong):
                    read, release = self.multiply(mma, fragments, accumulators, ring, read, release, steps)
                    ending.end(job, tile, steps)
                elif turn == group:
                    cute.arch.barrier(barrier_id=TURN_BARRIER + group, number_of_threads=2 * WARP_GROUP)
                    read, release = self.multiply(mma, fragments, accumulators, ring, read, release, steps, group)
                    ending.end(job, tile, steps)
                else:
                    # The other group multiplies these.
                    read.advance(steps)
                    release.advance(steps)
                turn = 1 - turn
                step += steps
            job += stride
        epilogue.drain()

    @cute.jit
    def multiply(
        self,
        mma: cute.TiledMma,
        fragments: tuple[cute.Tensor, cute.Tensor],
        accumulators: cute.Tensor,
        ring: pipeline.PipelineTmaAsync,
        read: pipeline.PipelineState,
        release: pipeline.PipelineState,
        steps: Int32,
        group: Any = None,
    ) -> tuple[pipeline.PipelineState, pipeline.PipelineState]:
        """Multiply some steps of a tile and release their stages; with pingpong, `group` then hands on its turn."""
        shape = self.shape
        if cutlass.const_expr(self.promotes):
            mmas, products = self.parts.mmas(), self.parts.products()
            read = self.promoting_loop(mmas, products, fragments, accumulators, ring, read, steps)
        else:
            read, release = multiply(mma, fragments, accumulators, ring, read, release, steps)
        if cutlass.const_expr(shape.pingpong):
            cute.arch.barrier_arrive(barrier_id=TURN_BARRIER + 1 - group, number_of_threads=2 * WARP_GROUP)
        if cutlass.const_expr(not self.promotes):
            warpgroup.wait_group(0)
            ring.consumer_release(release)
            release.advance()
        return read, release

    @cute.kernel
    def add_up(
        self,
        shape: cutlass.Constexpr,
        store_d: cute.CopyAtom,
        d_tma: cute.Tensor,
        alpha: Any,
        bias: Any,
        workspace: Any,
        counts: Any,
        steps: Int32,
    ) -> None:
        """Add up what the kernel of `shape` left of a tile: a block for 64 rows of a strip of each shared tile."""
        strip, row, shared_tile = cute.arch.block_idx()
        lane, _, _ = cute.arch.thread_idx()
        d_layout = self.d_layout()

        @cute.struct
        class Shared:
            d: cute.struct.Align[cute.struct.MemRange[self.result, cute.cosize(d_layout)], SWIZZLE_BYTES]

        shared = utils.SmemAllocator().allocate(Shared)
        d = Operand(
            store_d,
            cute.local_tile(d_tma, (MMA_ROWS, STRIP), (None, None, None)),
            shared.d.get_tensor(d_layout.outer, swizzle=d_layout.inner),
        )
        mma = self.mma(1)
        copy = register_copy(mma, self.result, self.shape.swap_ab)
        from_shared, to_global = d.partition(0, 1)
        to_shared = copy.get_slice(lane).partition_D(d.shared)
        epilogue = Stepped(
            self.shape, self.problem, self.result, alpha, bias, mma, copy, to_shared, from_shared, to_global, store_d,
            Int32(0), lane,
        )  # fmt: skip
        cluster = cute.make_layout(shape.cluster)
        order = BandedOrder.of(*counts)
        partition = self.partition(order, steps)
        tile, block = shared_tile // cute.size(cluster), shared_tile % cute.size(cluster)
        place = Place(cluster, cluster.get_flat_coord(block), order, steps)
        m, n, batch = place.tile(shape, tile)
        first, last = partition.parts_of(tile)
        # What the kernel before wrote is there from here on.
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        if first < last:
            column = cutlass.min(strip * STRIP, shape.tile_n - STRIP)
            total = Sums(workspace, shape).total(tile, first, last, block, row, column, lane)
            at = (m * (shape.tile_m // MMA_ROWS) + row, (n * shape.tile_n + column) // STEP, batch)
            epilogue.finish(total, 0, at)
            epilogue.drain()


def walked(place: Place) -> Place:
    """A place as the kernel that is inherited makes it, with its own order of the tiles."""
    order = place.order
    return replace(place, order=BandedOrder.of(order.count_m, order.count_n, cast(tuple[Any, ...], order.batches)))


@dataclass(frozen=True)
class Stepped(Epilogue):
    """The stores of a warp group whose units begin at any multiple of `STEP` columns, in which they are counted."""

    @cute.jit
    def bias_of(self, at: tuple[Any, Any, Any]) -> Any:
        """The bias of each of the thread's values."""
        columns = self.shape.unit_n
        here = self.mma.get_slice(self.lane).partition_C(cute.make_identity_tensor((MMA_ROWS, self.shape.tile_n)))
        last = cute.size(self.bias) - 1
        bias = cute.make_rmem_tensor(cute.make_layout(columns // 2), Float32)
        for i in cutlass.range_constexpr(columns // 2):
            row, column = here[i]
            index = at[0] * MMA_ROWS + row if cutlass.const_expr(self.shape.swap_ab) else at[1] * STEP + column
            # Beyond the edge of D anything will do: TMA does not store it.
            bias[i] = self.bias[min(Int32(index), last)].to(Float32)
        return bias.load()


@dataclass(frozen=True)
class Ending:
    """The end of a tile, or of a part of one, for a consumer warp group.

    Attributes
    ----------
    accumulators
        The thread's sums of its rows of a tile.
    in_tile
        The warp group, among those of a tile.
    epilogue
        The stores of a whole tile.
    sums
        The workspace.
    place, partition
        Where the block stands, and how the tiles are divided.
    """

    accumulators: cute.Tensor
    in_tile: Int32
    epilogue: Epilogue
    sums: Sums
    place: Place
    partition: SharedTiles | WholeTiles

    @cute.jit
    def end(self, job: Int32, tile: Int32, steps: Int32) -> None:
        """Store a tile that a job has whole, or leave the sums over its part of the steps."""
        if cutlass.const_expr(self.sums.start is None):  # noqa: SIM114 - decided here, the other by the GPU
            self.store(tile)
        elif steps == self.partition.steps:
            self.store(tile)
        else:
            self.leave(slot(job, tile))

    @cute.jit
    def store(self, tile: Int32) -> None:
        """Finish a tile and store it."""
        shape = self.sums.shape
        m, n, batch = self.place.tile(shape, tile)
        top = m * shape.tile_m // MMA_ROWS + self.in_tile  # in units; the warp groups of a tile take rows in turn
        left = n * shape.tile_n // STEP
        # A thread's accumulators of a unit are consecutive registers. They are taken one by one: vectors that overlap
        # would keep all of them in memory.
        values = cute.make_rmem_tensor(cute.make_layout(shape.unit_n // 2), Float32)
        for unit in cutlass.range_constexpr(shape.units):
            row, start = unit // shape.strips, shape.starts[unit % shape.strips]
            for i in cutlass.range_constexpr(shape.unit_n // 2):
                values[i] = self.accumulators[(row * shape.tile_n + start) // 2 + i]
            self.epilogue.finish(values, unit, (top + row * shape.groups, left + start // STEP, batch))

    @cute.jit
    def leave(self, slot: Int32) -> None:
        """Write the sums to a slot of the workspace."""
        shape = self.sums.shape
        block = self.place.block[0] + shape.cluster_m * self.place.block[1]
        vectors, rows = shape.tile_n // (2 * VECTOR), shape.tile_m // (MMA_ROWS * shape.groups)
        by_row = cute.make_tensor(self.accumulators.iterator, cute.make_layout((VECTOR, vectors, rows)))
        for row in cutlass.range_constexpr(rows):
            to = self.sums.of_thread(slot, block, row * shape.groups + self.in_tile, self.epilogue.lane)
            for vector in cutlass.range_constexpr(vectors):
                cute.autovec_copy(by_row[(None, vector, row)], to[(None, vector)])
