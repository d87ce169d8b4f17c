"""Which unit of work comes when: the list of units is cut into strands, from which blocks take in turn."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Walk:
    """How a kernel goes over the tiles.

    Attributes
    ----------
    mixed, trim
        As of ``grouped_gemm_sm90``.
    strands
        Parts of the list of tiles that are worked at at once.
    shares
        Whether all clusters share the tiles of the last wave.
    """

    mixed: bool
    trim: bool
    strands: int
    shares: bool


def unit_at(turn: Any, count: Any, strands: int, least: Any = min) -> Any:
    """The unit of work whose turn it is: strand after strand gives its next one.

    Parameters
    ----------
    turn, count
        How many units came before, and how many there are.
    strands
        Parts of the list. They are of the same length, but that the first may have a unit more.
    least
        The smaller of two of these numbers; CuteDSL has one of its own.
    """
    strand, before = turn % strands, turn // strands
    return strand * (count // strands) + least(strand, count % strands) + before
