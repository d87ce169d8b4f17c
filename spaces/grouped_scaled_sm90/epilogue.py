"""How a finished tile of ``grouped_scaled_sm90`` is stored: its sums times the numbers of their rows.

Whose row a sum is follows from its place among a thread's accumulators. Of each block of 8 columns of the product a
thread has two columns of two rows, 8 apart. Tokens lie along the rows, or with swapped operands along the columns.
"""

from dataclasses import dataclass

import cutlass
from cutlass import Float32, Int32, cute

from tilescout.spaces.grouped_gemm_sm90.epilogue import Store

_WARP_ROWS = 16  # of a unit of 64, that a warp holds
_APART = 8  # rows that a thread holds, and columns of the blocks in which it has some


@dataclass(frozen=True)
class ScaledStore(Store):
    """The stores of one consumer warp group.

    Attributes
    ----------
    scale
        The number of each row of D, in fp32: [tokens].
    """

    scale: cute.Tensor

    @cute.jit
    def finish(self, values: cute.Tensor, number: int, token: Int32, column: Int32, stop: Int32) -> None:
        """Store a unit; the arguments are those of `Store.finish`."""
        scaled = cute.make_rmem_tensor(values.layout, Float32)
        if token < stop:
            if cutlass.const_expr(self.shape.swap_ab):
                for i in cutlass.range_constexpr(cute.size(values) // 4):
                    for at in cutlass.range_constexpr(2):
                        factor = self.of_row(token + _APART * i + self.lane % 4 * 2 + at, stop)
                        for half in cutlass.range_constexpr(2):
                            scaled[4 * i + 2 * half + at] = values[4 * i + 2 * half + at] * factor
            else:
                row = token + self.lane // 32 * _WARP_ROWS + self.lane % 32 // 4
                for half in cutlass.range_constexpr(2):
                    factor = self.of_row(row + _APART * half, stop)
                    for i in cutlass.range_constexpr(cute.size(values) // 4):
                        for at in cutlass.range_constexpr(2):
                            scaled[4 * i + 2 * half + at] = values[4 * i + 2 * half + at] * factor
        Store.finish(self, scaled, number, token, column, stop)

    @cute.jit
    def of_row(self, row: Int32, stop: Int32) -> Float32:
        """The number of a row; of the rows behind the group, which are not stored, any."""
        return Float32(self.scale[min(row, stop - 1)])
