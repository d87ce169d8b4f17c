"""How a kernel is timed: the numbers, and the decisions that follow from them."""

import math
from dataclasses import dataclass

VERSION = "paired-blocks-1"

DESCRIPTION = (
    "Verified against an fp32 reference on fresh random inputs with a poisoned output, on an edge problem that no tile "
    "divides and on the problem itself. Timed in pairs: a CUDA graph of launches of the kernel, then one of the "
    "library's, each bracketed by events, over inputs rotated past the L2; ratio is the median over the pairs of "
    "kernel time / library time with its quartiles, and a time in us is the ratio times the library's steady time, "
    "the median of its blocks after heating. Kernels far slower than the library get fewer pairs."
)


@dataclass(frozen=True)
class ProtocolOptions:
    """The numbers of the protocol.

    Attributes
    ----------
    pairs
        Pairs of blocks for a kernel in the library's range.
    slow_pairs
        Pairs for a kernel that is `slow` times slower than the library or more: its exact time decides nothing. Its
        blocks hold fewer launches too; all others hold as many as the library's, over the same inputs.
    slow
        See `slow_pairs`.
    block_us
        A block repeats its launch until it takes about this long, so that the events' resolution (0.5 µs) and the
        gap before a graph starts (some µs) weigh little. A launch longer than that is a block by itself.
    heating_us
        The library runs this long before its steady time is taken: clocks settle within tens of milliseconds.
    cold_bytes
        Inputs are rotated over at least this many bytes, or this many times the L2 where that is known.
    cold_l2
        See `cold_bytes`.
    """

    pairs: int = 7
    slow_pairs: int = 3
    slow: float = 8.0
    block_us: float = 500.0
    heating_us: float = 50_000.0
    cold_bytes: int = 64 * 2**10
    cold_l2: float = 2.0


def input_sets(input_bytes: int, l2_bytes: int, options: ProtocolOptions) -> int:
    """How many sets of inputs to rotate over so that none is still in the L2 when its turn comes.

    A launch takes 1 µs at the least, so a block never comes to more sets than it has µs: small problems get no more.
    """
    cold = math.ceil(max(options.cold_l2 * l2_bytes, options.cold_bytes) / input_bytes)
    return max(1, min(cold, math.ceil(options.block_us)))


def block_launches(launch_us: float, sets: int, options: ProtocolOptions) -> int:
    """Launches a block: enough to fill `block_us`; every set comes up if launches are that short."""
    wanted = math.ceil(options.block_us / max(launch_us, 0.1))
    return wanted if wanted < sets else math.ceil(wanted / sets) * sets
