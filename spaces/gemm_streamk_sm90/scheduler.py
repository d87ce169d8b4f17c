"""The jobs of ``gemm_streamk_sm90`` where none is shared, and the order of tiles: a number that a launch passes."""

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute

from tilescout.spaces.gemm_streamk_sm90.launch import ALONG_N, ORDER


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
        1 if bands run along n, else 0.
    """

    count_m: Any
    count_n: Any
    per_batch: Any
    batches: Int32
    shift: Int32
    along_n: Int32

    @classmethod
    def passed(cls, count_m: Int32, count_n: Int32, batches: Int32, number: int) -> tuple[Any, Any, Any]:
        """What a launch passes of an order, in three parts, as the kernel that is inherited takes it."""
        counts = (count_m, count_n, count_m * count_n)
        along_m, along_n, per_batch = (cute.fast_divmod_create_divisor_v2(cutlass.max(each, 1)) for each in counts)
        return along_m, along_n, (per_batch, batches, Int32(number))

    @classmethod
    def of(cls, count_m: Any, count_n: Any, rest: tuple[Any, Int32, Int32]) -> Any:
        """The order that was `passed`, in the place of a `TileOrder`."""
        per_batch, batches, number = rest
        code = number - ORDER
        return cls(count_m, count_n, per_batch, batches, code % ALONG_N, code // ALONG_N)

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
