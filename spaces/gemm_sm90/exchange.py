"""How the blocks of a cluster that split a product along k add their shares, in a fixed order.

Each of them computes the whole tile over its part of k. A tile is stored in units; the blocks share out the units and
each finishes its own: all send it their accumulators of those units, by asynchronous stores into its shared memory
that an mbarrier counts, and it adds what came in the order of the senders. So a result is the same to the bit on every
run. Warp group g talks to the warp groups g of the other blocks alone, thread t to the threads t, because their
accumulators are laid out alike.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Float32, Int32, cute

from tilescout.spaces.gemm_sm90.layout import MMA_ROWS, WARP_GROUP, GemmShape

_VECTOR = 4  # fp32 numbers that one store sends


@dataclass(frozen=True)
class Exchange:
    """The shares that a block receives, and the barriers that say they have come and gone.

    Attributes
    ----------
    shape
        The compile-time parameters.
    shares
        Pointer to fp32 shared memory: [warp groups, senders, units, vectors, threads, 4].
    arrived
        Pointer to an mbarrier a warp group: all shares are there.
    freed
        Pointer to an mbarrier a warp group: every owner has read what this block sent it.
    block
        The block's coordinates in the cluster.
    """

    shape: GemmShape
    shares: Any
    arrived: Any
    freed: Any
    block: Any

    @cute.jit
    def initialise(self) -> None:
        """Set up the barriers: one thread of the block, before the cluster synchronises."""
        for group in cutlass.range_constexpr(self.shape.warp_groups):
            cute.arch.mbarrier_init(self.arrived + group, 1)
            cute.arch.mbarrier_init(self.freed + group, self.shape.owners)

    def owns(self) -> Any:
        """Whether this block finishes units."""
        return self.block[2] < self.shape.owners

    @property
    def units(self) -> int:
        """Units that an owner finishes."""
        return self.shape.units // self.shape.owners

    @cute.jit
    def send(self, accumulators: cute.Tensor, group: Int32, lane: Int32) -> None:
        """Send every unit to its owner; `accumulators` [registers of a unit, units] are a thread's."""
        shape = self.shape
        if lane == 0 and self.owns():
            share = shape.split_k * self.units * MMA_ROWS * shape.unit_n * Float32.width // 8
            cute.arch.mbarrier_arrive_and_expect_tx(self.arrived + group, share)
        bits = cute.recast_tensor(accumulators, Int32)
        for unit in cutlass.range_constexpr(shape.units):
            place = self.place(group, self.block[2], unit % self.units, lane)
            for vector in cutlass.range_constexpr(shape.unit_n // 2 // _VECTOR):
                first = vector * _VECTOR
                cute.arch.store_async_dsmem(
                    (place + vector * WARP_GROUP * _VECTOR).align(min_align=16),
                    tuple(bits[first + i, unit] for i in range(_VECTOR)),
                    self.arrived + group,
                    self.rank(unit // self.units),
                )

    @cute.jit
    def wait(self, group: Int32, phase: Int32) -> None:
        """Wait for the shares of all senders."""
        cute.arch.mbarrier_wait(self.arrived + group, phase)

    @cute.jit
    def total(self, unit: Int32, group: Int32, lane: Int32) -> cute.Tensor:
        """The sum over the senders of a thread's accumulators of one of the owner's units."""
        vectors = self.shape.unit_n // 2 // _VECTOR
        layout = cute.make_layout((_VECTOR, vectors), stride=(1, WARP_GROUP * _VECTOR))
        total = cute.make_rmem_tensor(cute.make_layout((_VECTOR, vectors)), Float32)
        share = cute.make_rmem_tensor(cute.make_layout((_VECTOR, vectors)), Float32)
        for sender in cutlass.range_constexpr(self.shape.split_k):
            place = self.place(group, sender, unit, lane).align(min_align=16)
            cute.autovec_copy(cute.make_tensor(place, layout), share)
            if cutlass.const_expr(sender == 0):
                total.store(share.load())
            else:
                total.store(total.load() + share.load())
        return cute.make_tensor(total.iterator, cute.make_layout(self.shape.unit_n // 2))

    @cute.jit
    def free(self, group: Int32, lane: Int32) -> None:
        """Tell all senders that their shares are read: once every thread of the owner's warp group has read its own."""
        if lane < self.shape.split_k:
            cute.arch.mbarrier_arrive(self.freed + group, self.rank(lane))

    @cute.jit
    def wait_free(self, group: Int32, phase: Int32) -> None:
        """Wait until the owners have read what this block sent: before it sends more, or leaves."""
        cute.arch.mbarrier_wait(self.freed + group, phase)

    def place(self, group: Any, sender: Any, unit: Any, lane: Any) -> Any:
        """Where a sender puts the first vector of a thread's part of a unit."""
        slot = (group * self.shape.split_k + sender) * self.units + unit
        return self.shares + slot * (MMA_ROWS * self.shape.unit_n) + lane * _VECTOR

    def rank(self, along_k: Any) -> Any:
        """The rank in the cluster of the block that computes the same tile over another part of k."""
        return self.block[0] + self.shape.cluster_m * (self.block[1] + self.shape.cluster_n * along_k)
