"""The order of tiles of ``grouped_strands_sm90``, in CuteDSL: strands of the list, from which blocks take in turn.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass, fields
from typing import Any

import cutlass
from cutlass import Int32, cute, pipeline

from tilescout.spaces.grouped_gemm_sm90.epilogue import Store
from tilescout.spaces.grouped_gemm_sm90.groups import Groups
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90, Operand
from tilescout.spaces.grouped_strands_sm90.order import unit_at


@dataclass(frozen=True)
class Strands(Groups):
    """The table of the groups, whose list of units of work is cut into parts of the same length.

    Attributes
    ----------
    strands
        How many parts there are.
    """

    strands: int

    @cute.jit
    def at(self, work: Int32, count: Int32, chunk: Int32) -> tuple[Int32, tuple[Int32, Int32, Int32, Int32]]:
        """The tile of this block of a unit of work; earlier units say nothing of where this one is: see `Groups.at`."""
        unit = unit_at(work, count, self.strands, cutlass.min)
        found: tuple[Int32, tuple[Int32, Int32, Int32, Int32]] = Groups.at(self, unit, count, Int32(0))
        return found


@dataclass(frozen=True)
class GroupedStrandsSm90(GroupedGemmSm90):
    """A kernel generator: its entry point under ``cute.compile`` emits the kernel.

    Attributes
    ----------
    gemm, mixed, trim
        As of `GroupedGemmSm90`.
    strands
        Parts of the list of tiles that are worked at at once; 1 for the order of ``grouped_gemm_sm90``.
    """

    strands: int

    def produce(
        self,
        left: Operand,
        right: Operand,
        ring: pipeline.PipelineTmaAsync,
        groups: Groups,
        count: Int32,
        k_tiles: Int32,
    ) -> Any:
        """Fill the ring: one warp, for every tile of this block, for every step along k."""
        return GroupedGemmSm90.produce(self, left, right, ring, self._order(groups), count, k_tiles)

    def consume(
        self,
        operands: tuple[Operand, Operand],
        ring: pipeline.PipelineTmaAsync,
        groups: Groups,
        stores: Store,
        count: Int32,
        k_tiles: Int32,
    ) -> Any:
        """Drain the ring into registers and store each finished tile: a consumer warp group."""
        return GroupedGemmSm90.consume(self, operands, ring, self._order(groups), stores, count, k_tiles)

    def _order(self, groups: Groups) -> Groups:
        if self.strands == 1:
            return groups
        return Strands(**{field.name: getattr(groups, field.name) for field in fields(groups)}, strands=self.strands)
