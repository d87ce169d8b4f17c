"""Where the tiles of the groups are: the table that every block of ``grouped_gemm_sm90`` makes for itself.

The sizes of the groups are known on the device alone. All threads of a block read the offsets, and leave in shared
memory how many units of work come up to the end of each group. A warp then finds the group of a
unit by one comparison a lane for every 32 groups, from the group of its last unit on.
"""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from tilescout.spaces.gemm_sm90.layout import GemmShape
from tilescout.spaces.gemm_sm90.scheduler import TileOrder

LANES = 32


@dataclass(frozen=True)
class Groups:
    """The table, and the order of work. A unit of work is a tile for every block of a cluster.

    Attributes
    ----------
    shape
        The compile-time parameters.
    mixed
        Whether bands of tiles go over all groups, instead of over one after the other.
    ends
        The ends of the groups in A, in global memory: [experts].
    tokens
        Rows of A.
    units
        Units along the tokens up to the end of each group, in shared memory; behind the last one, as many as there are.
    totals
        Shared memory for a number of each warp.
    across
        Units along the columns of D.
    block
        The block's coordinates in its cluster.
    """

    shape: GemmShape
    mixed: bool
    ends: cute.Tensor
    tokens: Int32
    units: cute.Tensor
    totals: cute.Tensor
    across: Int32
    block: Any

    @property
    def token_axis(self) -> int:
        """The side of the product along which tokens lie: its rows, or its columns with swapped operands."""
        return int(self.shape.swap_ab)

    @property
    def sizes(self) -> tuple[int, int]:
        """Tokens and columns of D of a block's tile."""
        tile = self.shape.tile_m, self.shape.tile_n
        return tile[self.token_axis], tile[1 - self.token_axis]

    @property
    def cluster(self) -> tuple[int, int]:
        """Blocks of a cluster along the tokens and along the columns of D."""
        blocks = self.shape.cluster_m, self.shape.cluster_n
        return blocks[self.token_axis], blocks[1 - self.token_axis]

    @cute.jit
    def fill(self, thread: Int32) -> Int32:
        """Make the table, by all threads of the block; return how many units of work there are."""
        step, threads = self.sizes[0] * self.cluster[0], self.shape.threads
        # Under their own names: what a branch writes to is carried through it, and with `self` all that it holds.
        units, totals = self.units, self.totals
        experts = cute.size(self.ends)
        padded = cute.round_up(experts, LANES)
        warp, lane = thread // LANES, thread % LANES
        total = Int32(0)
        for first in cutlass.range(0, padded, threads, unroll=1):
            expert = first + thread
            start, stop = self.rows_of(min(expert, experts - 1))
            count = (max(stop - start, Int32(0)) + (step - 1)) // step
            if expert >= experts:
                count = Int32(0)
            for distance in cutlass.range_constexpr(5):
                other = cute.arch.shuffle_sync_up(count, 1 << distance, mask_and_clamp=0)
                if lane >= 1 << distance:
                    count += other
            if lane == LANES - 1:
                totals[warp] = count
            cute.arch.barrier()
            before = total
            for other_warp in cutlass.range_constexpr(threads // LANES):
                of_warp = totals[other_warp]
                total += of_warp
                if other_warp < warp:
                    before += of_warp
            if expert < padded:
                units[expert] = before + count
            cute.arch.barrier()
        return total * self.across

    @cute.jit
    def at(self, work: Int32, count: Int32, chunk: Int32) -> tuple[Int32, tuple[Int32, Int32, Int32, Int32]]:
        """The tile of this block of a unit of work, found by a whole warp.

        Parameters
        ----------
        work, count
            The unit of work, and how many there are.
        chunk
            The 32 groups in which the search begins: those of an earlier unit.

        Returns
        -------
        chunk, tile
            The 32 groups in which it was found; and the tile's group, its first row of A, the end of the group's rows,
            and the tile's first column of D.
        """
        if cutlass.const_expr(self.mixed):
            # All groups are one long matrix: bands go over several, and earlier units say nothing of where this one is.
            place = self.walk(work, count // self.across)
            unit = place[self.token_axis]
            chunk, expert, first, _ = self.find(unit, Int32(1), Int32(0))
            token_unit, column_unit = unit - first, place[1 - self.token_axis]
        else:
            chunk, expert, first, last = self.find(work, self.across, chunk)
            place = self.walk(work - first * self.across, last - first)
            token_unit, column_unit = place[self.token_axis], place[1 - self.token_axis]
        start, stop = self.rows_of(expert)
        row = start + (token_unit * self.cluster[0] + self.block[self.token_axis]) * self.sizes[0]
        column = (column_unit * self.cluster[1] + self.block[1 - self.token_axis]) * self.sizes[1]
        return chunk, (expert, row, stop, column)

    @cute.jit
    def walk(self, work: Int32, along: Int32) -> tuple[Int32, Int32]:
        """The place, along the rows and the columns of the product, of a unit of work among so many tokens' units."""
        counts = (self.across, along) if cutlass.const_expr(self.shape.swap_ab) else (along, self.across)
        m, n, _ = TileOrder(*counts, Int32(1), self.shape.swizzle, self.shape.raster_along_m).at(work)
        return m, n

    @cute.jit
    def find(self, number: Int32, each: Int32, chunk: Int32) -> tuple[Int32, Int32, Int32, Int32]:
        """The group of a number, each unit along the tokens counting as `each`; the search begins at some 32 groups.

        Returns
        -------
        chunk, expert
            The 32 groups in which it was found, and the group.
        first, last
            Units along the tokens before the group, and up to its end.
        """
        lane = cute.arch.lane_idx()
        behind = cute.arch.popc(cute.arch.vote_ballot_sync(self.units[chunk * LANES + lane] * each <= number))
        while behind == LANES:
            chunk += 1
            behind = cute.arch.popc(cute.arch.vote_ballot_sync(self.units[chunk * LANES + lane] * each <= number))
        expert = chunk * LANES + behind
        first, last = self.units_of(expert)
        return chunk, expert, first, last

    @cute.jit
    def units_of(self, expert: Int32) -> tuple[Int32, Int32]:
        """Units along the tokens before a group, and up to its end."""
        first = Int32(0)
        if expert > 0:
            first = self.units[expert - 1]
        return first, self.units[expert]

    @cute.jit
    def rows_of(self, expert: Int32) -> tuple[Int32, Int32]:
        """The first row of A of a group, and the end of its rows.

        Offsets that decrease or lie beyond the rows make groups empty or end with the rows: nothing is read or written
        elsewhere.
        """
        start = Int32(0)
        if expert > 0:
            start = min(max(self.ends[expert - 1], Int32(0)), self.tokens)
        return start, min(max(self.ends[expert], Int32(0)), self.tokens)
