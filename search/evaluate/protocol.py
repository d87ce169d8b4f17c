"""How a kernel is timed: the numbers, and the decisions that follow from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilescout.search.evaluate.interval import median_interval

VERSION = "paired-2"

DESCRIPTION = (
    "Verified against an fp32 reference with a poisoned output between guard bands, twice on an edge problem that no "
    "tile divides (both results must be the same to the bit) and once on the problem itself; that last launch is the "
    "pilot, and a kernel whose pilot is clearly slower than the best known stops there (status pruned, pilot_us). "
    "Others are timed in pairs: the kernel and the library alternate without a pause, in single launches where the "
    "library takes 150 us or more and in CUDA graphs of some launches where it takes less, each between two events, "
    "over inputs rotated past the L2. Pairs are added until the 95 % interval of the median ratio is narrow enough, "
    "or shows that the kernel can't win. A time in us is the ratio times the library's steady time."
)


@dataclass(frozen=True)
class ProtocolOptions:
    """The numbers of the protocol.

    Attributes
    ----------
    single_us
        A library launch of this length or more is timed by itself; the events' gap (1-2 µs) then weighs at most 1 %,
        on both sides of the ratio alike. Shorter ones are joined to blocks.
    block_us
        Length of such a block, about; it holds whole rotations over the inputs.
    first, batch
        Pairs before the first look at the interval, and between two looks.
    max_pairs
        Pairs at most.
    precision
        Half-width of the 95 % interval of the ratio, relative, that ends the timing.
    hopeless
        A kernel whose interval lies this far above the best known ratio, relative, is not timed further.
    prune
        A kernel whose pilot ratio is this many times the best known ratio is not timed at all.
    heating_us
        The library runs for at least this long before its steady time is taken, and until two stretches of this length
        agree within 0.5 %, or ten have passed.
    cold_bytes, cold_l2
        Inputs are rotated over at least this many bytes, and this many times the L2: with twice the L2 a skinny
        problem's times still depended on what of the last launch was left in it.
    """

    single_us: float = 150.0
    block_us: float = 200.0
    first: int = 3
    batch: int = 5
    max_pairs: int = 40
    precision: float = 0.0025
    hopeless: float = 0.03
    prune: float = 1.5
    heating_us: float = 100_000.0
    cold_bytes: int = 64 * 2**10
    cold_l2: float = 4.0


def input_sets(input_bytes: int, l2_bytes: int, options: ProtocolOptions) -> int:
    """How many sets of inputs to rotate over so that none is still in the L2 when its turn comes.

    Tiny problems get at most 256: more would take longer to launch than to forget.
    """
    cold = math.ceil(max(options.cold_l2 * l2_bytes, options.cold_bytes) / input_bytes)
    return max(1, min(cold, 256))


def block_launches(library_us: float, sets: int, options: ProtocolOptions) -> int:
    """Launches a block, for the library and for every kernel: one, or whole rotations over the inputs."""
    if library_us >= options.single_us:
        return 1
    wanted = options.block_us / max(library_us, 0.1)
    return max(1, round(wanted / sets)) * sets


def is_pruned(pilot_ratio: float, incumbent: float | None, options: ProtocolOptions) -> bool:
    """Whether a kernel's pilot launch has ruled it out. `incumbent` is the best known ratio, if there is one."""
    return incumbent is not None and pilot_ratio > options.prune * incumbent


def is_settled(ratios: Sequence[float], incumbent: float | None, options: ProtocolOptions) -> bool:
    """Whether the paired ratios so far tell enough for the decision at hand."""
    if len(ratios) >= options.max_pairs:
        return True
    middle, low, high = median_interval(ratios)
    narrow = (high - low) / 2 <= options.precision * middle
    hopeless = incumbent is not None and low > (1 + options.hopeless) * incumbent
    # Fewer than 6 values can't give a 95 % interval; for a decision against a kernel their range will do.
    return hopeless or (narrow and len(ratios) >= 6)
