"""The 8-bit products that a warp group computes one behind the other: each is added while the next is computed."""

from dataclasses import dataclass, replace

from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import GemmSm90
from tilescout.spaces.gemm_sm90.layout import MMA_ROWS, WARP_GROUP
from tilescout.spaces.gemm_streamk_sm90.layout import SharingShape, halves
from tilescout.spaces.gemm_streamk_sm90.mainloop import Mmas


@dataclass(frozen=True)
class Parts:
    """The columns of a tile, whole or as two halves: a product is of 64 rows and those of a part.

    Attributes
    ----------
    shape, problem
        The kernel's.
    """

    shape: SharingShape
    problem: GemmProblem

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns of each part."""
        return halves(self.shape.tile_n) if self.shape.promotion == "halves" else (self.shape.tile_n,)

    def mmas(self) -> list[Mmas]:
        """WGMMA of each part that overwrites a product, and that adds to it."""
        found = [(self._mma(columns), self._mma(columns)) for columns in self.columns]
        for overwriting, adding in found:
            overwriting.set(warpgroup.Field.ACCUMULATE, False)
            adding.set(warpgroup.Field.ACCUMULATE, True)
        return found

    def products(self) -> tuple[cute.Tensor, cute.Tensor]:
        """The thread's registers for two products, one behind the other."""
        first, second = (self.columns * 2)[:2]
        return self._product(first), self._product(second)

    def fragments(self, shared: cute.Tensor, in_tile: Int32) -> tuple[cute.Tensor, ...]:
        """The right operand of each part in the shared memory of the ring, for a warp group of a tile."""
        found, first = [], 0
        for columns in self.columns:
            mma = self._mma(columns)
            mine = mma.get_slice(cute.make_layout(self.shape.groups, stride=WARP_GROUP)(in_tile))
            start = cute.domain_offset((first, 0, 0), shared).iterator
            part = cute.make_tensor(start, used(shared.layout, columns))
            found.append(mma.make_fragment_B(mine.partition_B(part)))
            first += columns
        return tuple(found)

    def _mma(self, columns: int) -> cute.TiledMma:
        """WGMMA over so many columns by the warp groups of a tile."""
        return GemmSm90(replace(self.shape, tile_n=columns), self.problem).mma(self.shape.groups)

    def _product(self, columns: int) -> cute.Tensor:
        rows = self.shape.groups * MMA_ROWS
        return cute.make_rmem_tensor(self._mma(columns).partition_shape_C((rows, columns)), Float32)


def used(layout: cute.Layout, rows: int) -> cute.Layout:
    """The first rows of a layout [rows, columns, stages]."""
    if cute.size(layout, mode=[0]) == rows:
        return layout
    (step, _), *others = layout.shape
    return cute.make_layout(((step, rows // step), *others), stride=layout.stride)
