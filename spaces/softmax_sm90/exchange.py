"""How the threads that share a row come to one maximum and one sum.

Threads of a warp exchange by shuffles; warps of a block through its shared memory; blocks of a cluster by asynchronous
stores into each other's shared memory, which an mbarrier counts. Every warp then combines the partial results of all by
itself, in the same order, so that all agree to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from tilescout.spaces.softmax_sm90.layout import WARP, SoftmaxShape

Partial = tuple[Any, ...]
"""Numbers that describe a part of a row: its maximum, its sum, or both."""

Combine = Callable[[Partial, Partial], Partial]


@dataclass(frozen=True)
class Exchange:
    """One exchange of partial results; a kernel that needs two has two of them, each with memory of its own.

    Attributes
    ----------
    shape
        The compile-time parameters.
    partials
        Pointer to fp32 shared memory: [rows, partials, width].
    arrived
        Pointer to the mbarrier that counts what the cluster sends to this block; unused without clusters.
    rank
        The block's rank in its cluster.
    thread
        The thread's number in the block.
    """

    shape: SoftmaxShape
    partials: Any
    arrived: Any
    rank: Any
    thread: Any

    @cute.jit
    def initialise(self) -> None:
        """Expect what every warp of the cluster will send: one thread of the block, before the cluster synchronises."""
        cute.arch.mbarrier_init(self.arrived, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(self.arrived, self.shape.exchange_bytes)

    @cute.jit
    def reduce(self, mine: Partial, combine: Combine) -> Partial:
        """The combination of the partial results of all threads that share the row."""
        shape = self.shape
        total = within_warp(mine, combine, min(WARP, shape.row_threads))
        if cutlass.const_expr(shape.partials > 1):
            lane, warp = self.thread % WARP, self.thread // WARP
            row_warps = shape.partials // shape.cluster
            first = warp // row_warps * shape.partials  # of the row, among the block's
            mine_at = first + self.rank * row_warps + warp % row_warps
            if cutlass.const_expr(shape.cluster > 1):
                self.send(total, mine_at, lane)
            else:
                self.write(total, mine_at, lane)
            total = self.read(first + lane % shape.partials)
            for further in cutlass.range_constexpr(WARP, shape.partials, WARP):
                total = combine(total, self.read(first + further + lane))
            total = within_warp(total, combine, min(WARP, shape.partials))
        return total

    @cute.jit
    def write(self, total: Partial, place: Int32, lane: Int32) -> None:
        """Leave a warp's partial result in the block's shared memory, and wait for the others'."""
        slot = self.slot(place)
        if lane == 0:
            for number in cutlass.range_constexpr(self.shape.width):
                slot[number] = total[number]
        cute.arch.sync_threads()

    @cute.jit
    def send(self, total: Partial, place: Int32, lane: Int32) -> None:
        """Send a warp's partial result to every block of the cluster, and wait for the others'."""
        numbers = cute.make_rmem_tensor(self.shape.width, Float32)
        for number in cutlass.range_constexpr(self.shape.width):
            numbers[number] = total[number]
        bits = cute.recast_tensor(numbers, Int32)
        if lane < self.shape.cluster:
            cute.arch.store_async_dsmem(
                (self.partials + place * self.shape.width).align(min_align=4 * self.shape.width),
                tuple(bits[number] for number in range(self.shape.width)),
                self.arrived,
                lane,
            )
        cute.arch.mbarrier_wait(self.arrived, 0)

    def read(self, place: Any) -> Partial:
        """A partial result."""
        slot = self.slot(place)
        return tuple(slot[number] for number in range(self.shape.width))

    def slot(self, place: Any) -> Any:
        """Where a partial result lies."""
        return cute.make_tensor(self.partials + place * self.shape.width, cute.make_layout(self.shape.width))


def within_warp(mine: Partial, combine: Combine, threads: int) -> Partial:
    """The combination of the partial results of `threads` neighbouring threads; each of them gets it."""
    offset = threads // 2
    while offset:
        other = tuple(cute.arch.shuffle_sync_bfly(number, offset=offset) for number in mine)
        mine = combine(mine, other)
        offset //= 2
    return mine
