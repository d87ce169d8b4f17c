"""The choices of a launch of ``gemm_streamk_sm90``: the order of tiles, and how their steps along k are divided."""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from tilescout.spaces.gemm_streamk_sm90.launch import ALONG_N, BITS, EVENLY
from tilescout.spaces.gemm_streamk_sm90.partition import Partition, divide


@dsl_user_op
def number_of(launch: int, *, loc: Any = None, ip: Any = None) -> Int32:
    """The number of a launch, given with `NUMBER`: whole, as one operand, that is all that the launch code has of it.

    The compiler takes it for unknown, as the assembly, which is empty, might have changed the register.
    """
    whole = Int32(launch).ir_value(loc=loc, ip=ip)
    passed = llvm.inline_asm(T.i32(), [whole], "", "=r,0", has_side_effects=False, loc=loc, ip=ip)
    return Int32(passed) & ((1 << BITS) - 1)


@dataclass(frozen=True)
class BandedOrder:
    """Units of work in bands, as those of `tilescout.spaces.gemm_sm90.scheduler.TileOrder`; the band is an argument.

    The host finds what to multiply and shift by in the place of dividing, which takes long on a GPU.

    Attributes
    ----------
    count_m, count_n, per_batch
        Tiles along m and n, in clusters, and of a product: divisors.
    batches
        Number of products.
    shift
        The binary logarithm of the width of a band.
    along_n
        Positive if bands run along n, else 0.
    divided
        How the steps of the tiles are divided, see `SharedTiles.passed`; nothing if each tile is whole.
    """

    count_m: Any
    count_n: Any
    per_batch: Any
    batches: Int32
    shift: Int32
    along_n: Int32
    divided: tuple[Any, ...] = ()

    @classmethod
    def passed(cls, count_m: Int32, count_n: Int32, batches: Int32, order: Int32) -> tuple[Any, Any, Any]:
        """Return the parts of an order that a launch passes, three, as the kernel that is inherited takes them."""
        counts = (count_m, count_n, count_m * count_n)
        along_m, along_n, per_batch = map(divisor, counts)
        return along_m, along_n, (per_batch, batches, order)

    @classmethod
    def of(cls, count_m: Any, count_n: Any, rest: tuple[Any, ...]) -> Any:
        """The order that was `passed`, in the place of a `TileOrder`; behind it, how the tiles are divided."""
        per_batch, batches, order, *divided = rest
        return cls(count_m, count_n, per_batch, batches, order & (ALONG_N - 1), order & ALONG_N, tuple(divided))

    def count(self) -> Int32:
        """Units of work."""
        return Int32(self.per_batch.divisor) * self.batches

    @cute.jit
    def at(self, work: Int32) -> tuple[Int32, Int32, Int32]:
        """The (m, n, batch) coordinates of a unit of work."""
        batch, index = Int32(0), work
        if self.batches > 1:
            batch = Int32(work // self.per_batch)
            index = work - batch * Int32(self.per_batch.divisor)
        along, across = Int32(self.count_m.divisor), Int32(self.count_n.divisor)
        line = Int32(index // self.count_m)
        if self.along_n > 0:
            along, across = across, along
            line = Int32(index // self.count_n)
        first = line >> self.shift << self.shift
        within = index - first * along
        whole = Int32(1) << self.shift
        position, lane = within >> self.shift, within & (whole - 1)
        width = across - first
        if width < whole:  # the last band
            position = within // width
            lane = within - position * width
        m, n = position, first + lane
        if self.along_n > 0:
            m, n = n, m
        return m, n, batch


def divisor(number: Int32) -> Any:
    """A divisor by a number, or by one if that is smaller: it multiplies and shifts."""
    return cute.fast_divmod_create_divisor_v2(cutlass.max(number, 1))


@cute.jit
def shared_by(way: Int32, tiles: Int32, steps: Int32, clusters: Int32) -> tuple[Int32, Int32]:
    """The tiles that are shared, and their parts, by a number for the way to share."""
    fixed = divide(way, False, tiles, steps, clusters, cutlass.min)
    evenly = divide(way, True, tiles, steps, clusters, cutlass.min)
    shared, parts = Int32(fixed.shared), Int32(fixed.parts)
    if way == EVENLY:
        shared, parts = Int32(evenly.shared), Int32(evenly.parts)
    return shared, parts


@dataclass(frozen=True)
class SharedTiles(Partition):
    """A partition that a launch passes, with what is divided by, and the quotients that all jobs need.

    Attributes
    ----------
    by_steps, by_parts
        Divisors.
    each, rest
        Steps that every part has, and those that are left: so many parts have one more.
    """

    by_steps: Any
    by_parts: Any
    each: Int32
    rest: Int32

    @classmethod
    def passed(cls, way: Int32, tiles: Int32, steps: Int32, clusters: Int32) -> tuple[Any, ...]:
        """Return what a launch passes: the tiles that are shared, divisors, and quotients.

        Parameters
        ----------
        way
            Parts of each tile, or `EVENLY`.
        tiles, steps, clusters
            See `divide`.
        """
        shared, parts = shared_by(way, tiles, steps, clusters)
        by_steps, by_parts = divisor(steps), divisor(parts)
        parts = Int32(by_parts.divisor)
        return shared, by_steps, by_parts, shared * steps // parts, shared * steps % parts

    @classmethod
    def of(cls, tiles: Any, divided: tuple[Any, ...]) -> Any:
        """The partition that was `passed`."""
        shared, by_steps, by_parts, each, rest = divided
        steps, parts = Int32(by_steps.divisor), Int32(by_parts.divisor)
        return cls(tiles, steps, shared, parts, cutlass.min, by_steps, by_parts, each, rest)

    def begin(self, job: Any) -> Any:
        part = self.least(job, self.parts)
        return part * self.each + part * self.rest // self.by_parts + (job - part) * self.steps

    def segment(self, step: Any, end: Any) -> tuple[Any, Any, Any]:
        tile = step // self.by_steps
        before = tile * self.steps
        return tile, step - before, self.least(self.steps, end - before)


@dataclass(frozen=True)
class WholeTiles:
    """The partition where each job is a tile; see `tilescout.spaces.gemm_streamk_sm90.partition`.

    Nothing is divided, which takes long on a GPU: a job begins at its tile, however many steps that has.

    Attributes
    ----------
    tiles, steps
        Tiles in all, and steps along k of each.
    """

    tiles: Any
    steps: Any

    @property
    def jobs(self) -> Any:
        """The tiles."""
        return self.tiles

    def begin(self, job: Any) -> Any:
        """The tile of a job; where one job ends the next begins."""
        return job

    def segment(self, tile: Any, _: Any) -> tuple[Any, Any, Any]:
        """The tile that a job is at, and all of its steps: having done them, it is beyond its end."""
        return tile, 0, self.steps
