"""The rotation over sets of inputs that keeps the L2 cache cold: a kernel never reads what is still in the cache."""

import math

from tilescout.search.measure.protocol import ProtocolOptions


def input_sets(input_bytes: int, l2_bytes: int, options: ProtocolOptions) -> int:
    """How many sets of inputs to rotate over so that none is still in the L2 when its turn comes.

    Tiny problems get at most 256: launching more would take longer than the L2 needs to replace its contents.
    """
    cold = math.ceil(max(options.cold_l2 * l2_bytes, options.cold_bytes) / input_bytes)
    return max(1, min(cold, 256))


def rotation(sets: int, launches: int) -> tuple[int, int]:
    """Sets of inputs, and launches in a block, so that all sets are read before one is read again.

    A block that is long enough for all sets reads each equally often. Several shorter ones read them all; their number
    is odd, so that the kernel and the library, which take turns, both come to all of them.

    Parameters
    ----------
    sets
        Sets of inputs at least.
    launches
        Launches in a block, about.
    """
    if launches >= sets:
        return sets, round(launches / sets) * sets
    blocks = math.ceil(sets / launches)
    return (blocks + 1 - blocks % 2) * launches, launches
