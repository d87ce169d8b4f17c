"""The protocol by which a kernel is timed: its numbers, and the decisions that follow from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.errors import DeviceError

VERSION = "paired-9"

DESCRIPTION = (
    "Verified against an fp32 reference with a poisoned output between guard bands, twice on an edge problem that no "
    "tile divides (both results must be the same to the bit) and once on the problem itself. The pilot is a first, "
    "rough timing: that launch where the library takes 150 us or more, else a few launches queued right behind it. "
    "The time that the library would take in a pilot is learnt from the kernels that were timed. A kernel whose pilot "
    "is clearly slower than the best known stops there (status pruned, pilot_us). Others are timed in pairs: blocks "
    "of the kernel and of the library alternate without a pause. A block is one launch where the library takes 150 us "
    "or more; where it takes less, it is a graph of about 300 us, after a small launch of random size. Inputs are "
    "rotated past the L2; each block reads on where the last one ended. Of a problem that names draws of its inputs, "
    "every block has as many launches of each. After something else ran on the device, 3.5 "
    "ms of pairs, or one pair of long launches, run before those that count; one pair also after each look at the "
    "times. Blocks that count and for which the device waited for the host are run again behind a delay. First two "
    "pairs run, then as many at once as should do, until the 95 % interval is narrow enough for the decision, or the "
    "time for one kernel is spent. Of 12 pairs or more only the later half counts if the library's time in it clearly "
    "differs by more than 1 % from that before. The reported ratio is the trimmed mean of the kernel's times, each "
    "over an estimate of the library's time at that moment. It is a shrinkage estimate: the library's two blocks "
    "beside the kernel's are shrunk towards the library's mean in the measurement, and that mean is shrunk towards "
    "its mean in the last measurements; each the more, the more of its variance is noise. A time in us is that ratio "
    "times the library's steady time."
)

_SANDWICHES = (
    " Each launch, of the kernel and of the library, stood in its graph between a kernel of torch's that rewrites its "
    "first input and one that rewrites its output. What these two take without it, a median over 12 blocks between "
    "blocks of the library, was subtracted from every block. The 300 us and 150 us above are of such sandwiches. "
    "Pilots are of the kernel alone."
)


class Objective(StrEnum):
    """The surroundings of a kernel while it is timed."""

    CHAIN = "chain"  #: launches of the kernel alone, back to back
    SANDWICH = "sandwich"  #: launches between a kernel that writes the first input and one that reads the output


DEFAULT_OBJECTIVE = Objective.SANDWICH
"""The objective of what is measured where none is asked for: of 12 blocks of models it predicts the times with a mean
absolute error of 0.41 %, the chain with 1.35 % (`experiments/results/objectives.md`)."""

UNNAMED = Objective.CHAIN
"""The objective of records that name none: they are older than the choice."""


def find_objective(name: str) -> Objective:
    """The objective of this name.

    Raises
    ------
    DeviceError
        With the choices.
    """
    try:
        return Objective(name)
    except ValueError:
        raise DeviceError(f"unknown objective {name!r}, allowed are {' and '.join(Objective)}") from None


_HALF = 2.2  # standard errors in half of a 95 % interval from some ten values
_CLEARLY = 3  # standard errors that noise hardly makes


@dataclass(frozen=True)
class ProtocolOptions:
    """The numbers of the protocol. Where they come from: `experiments/results/README.md`.

    Attributes
    ----------
    objective
        What runs around the kernel while it is timed.
    overlapped
        Whether the neighbours of a sandwich begin before the last kernel ends, and let the next begin before they end,
        as TorchInductor's kernels do where its programmatic dependent launch is on. On a CPU none do.
    single_us
        If a launch of the library takes this long or longer, launches are timed one by one. The gap between events
        (1-2 µs) is then at most 1 % of the time, for kernel and library alike. Shorter launches are joined to blocks.
    block_us
        Length of such a block, about. Events have a resolution of 0.5 µs; blocks of 200 µs spread twice as much.
    pilot_us
        Length of a block that is a pilot, about.
    first, batch
        Pairs before the first look at the interval, and between two looks at least.
    settling_us
        Time, about, of the pairs of blocks that run first and don't count. Without them, ratios were 3 to 8 % too large
        on problems of 3 to 15 µs: the library's first three blocks after something else ran take 6 % less. For long
        launches, one pair is left out. One is enough also after a look at the times, where the device waits for less
        than a millisecond: only the first pair is disturbed.
    steady
        How far the library's times in two halves of a measurement may differ, relative. If they clearly differ more,
        only the later half counts: at 8192x8192x8192 a card that waited for 5 to 30 ms takes some 65 ms to come back to
        its power cap, through clocks at which ratios are up to 1.5 % larger.
    pairs_us
        Time of the pairs of one kernel at most, in µs.
    few_pairs, long_us
        Pairs that a kernel may have however long they take, and the time of these at most, in µs; it may always have
        `first`. So launches of 2 ms may have them all, and launches of 20 ms two or three: with 30, a suite of five
        problems, one of them of 19 ms, had not ended after a minute.
    precision, rough
        Half-width of the 95 % interval of the ratio, relative, at which timing ends; `rough` is used in a search, at
        whose end the race measures the best again.
    hopeless
        A kernel whose interval lies this far above the best known ratio, relative, is not timed further. Kernels that
        are closer are told apart by the race at the end.
    prune, prune_at_once
        A kernel is not timed at all if its pilot's ratio is `prune_at_once` times the best known ratio, or if two
        pilots are `prune` times that. Of the 3,429 rows of the recorded tables that are within 10 % of their problem's
        best by `paired-3`, the pilots of 32 were more than 1.1 times their time, of 3 more than 1.15, of one more than
        1.2 (1.24).
    repeat
        Standard deviation between measurements, relative, that the pairs within one measurement do not show.
    heating_us
        The library runs for at least this long before its steady time is taken, and until two stretches of this length
        agree within 0.5 %, or five have passed.
    cold_bytes, cold_l2
        Inputs are rotated over at least this many bytes, and this many times the L2: with twice the L2 a skinny
        problem's times still depended on what of the last launch was left in it.
    """

    objective: Objective = DEFAULT_OBJECTIVE
    overlapped: bool = False
    single_us: float = 150.0
    block_us: float = 300.0
    pilot_us: float = 20.0
    first: int = 2
    batch: int = 4
    settling_us: float = 3_500.0
    steady: float = 0.01
    pairs_us: float = 12_500.0
    few_pairs: int = 30
    long_us: float = 120_000.0
    precision: float = 0.0025
    rough: float = 0.005
    hopeless: float = 0.01
    prune: float = 1.15
    prune_at_once: float = 1.35
    repeat: float = 0.001
    heating_us: float = 100_000.0
    cold_bytes: int = 64 * 2**10
    cold_l2: float = 4.0

    @property
    def enough(self) -> int:
        """Fewest pairs whose interval may end the timing."""
        return self.first + self.batch

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        """Read what `dataclasses.asdict` wrote, also as JSON."""
        return cls(**{**record, "objective": Objective(record["objective"])})


@dataclass(frozen=True)
class Estimate:
    """A ratio to the library with the ends of its 95 % interval, and the values that it was made from."""

    ratio: float
    low: float
    high: float
    values: Sequence[float]


def protocol_of(objective: Objective) -> tuple[str, str]:
    """The name of the protocol by that objective, and what it does, in prose."""
    if objective is Objective.SANDWICH:
        return f"{VERSION} {objective}", DESCRIPTION + _SANDWICHES
    return VERSION, DESCRIPTION


def block_launches(library_us: float, block_us: float, options: ProtocolOptions) -> int:
    """Launches in a block of `block_us`, for the library and for every kernel; one where a launch is long."""
    return 1 if library_us >= options.single_us else max(2, round(block_us / max(library_us, 0.1)))


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


def most_pairs(pair_us: float, single: bool, options: ProtocolOptions) -> int:
    """Pairs that a kernel may have if each takes `pair_us`; long single launches get a few more than time allows."""
    long = max(options.first, int(options.long_us / pair_us))
    few = min(options.few_pairs, long) if single else options.enough
    return max(few, int(options.pairs_us / pair_us))


def pairs_to_add(estimate: Estimate, most: int, incumbent: float | None, options: ProtocolOptions) -> int:
    """How many more pairs are needed if they are as noisy as those so far; `most` are allowed in all.

    As in C. Stein, A two-sample test for a linear hypothesis whose power is independent of the variance, Annals of
    Mathematical Statistics 16, 1945: the noise of a first sample determines the size of a second.
    """
    count = len(estimate.values)

    def variance(half: float) -> float:
        return float((half / _HALF) ** 2 - options.repeat**2)

    wanted = variance(_goal(incumbent, options))
    needed = count * variance(estimate.high / estimate.ratio - 1) / wanted if wanted > 0 else math.inf
    return min(max(options.batch, math.ceil(min(needed, most)) - count), most - count)


def settling_pairs(beside_us: NDArray[np.float64], options: ProtocolOptions) -> int:
    """How many of a measurement's first pairs are left out because the library's times drifted in them."""
    half = len(beside_us) // 2
    if half < options.enough:
        return 0
    logs = np.log(beside_us)
    # Neighbours share a block: their difference has half the variance of a block's, that of the halves 2 / half of it.
    error = 2 * float(np.diff(logs).std()) / math.sqrt(half)
    moved = abs(float(logs[:half].mean() - logs[half:].mean()))
    return half if moved > max(options.steady, _CLEARLY * error) else 0


def _goal(incumbent: float | None, options: ProtocolOptions) -> float:
    return options.precision if incumbent is None else options.rough


def is_pruned(pilots: Sequence[float], incumbent: float | None, options: ProtocolOptions) -> bool:
    """Whether a kernel is too slow by its pilots to be timed. `incumbent` is the best known ratio, if there is one.

    One launch may be disturbed: unless it is far off, a second pilot must agree.
    """
    if incumbent is None:
        return False
    return min(pilots) > (options.prune if len(pilots) > 1 else options.prune_at_once) * incumbent


def is_doubtful(pilot: float, incumbent: float | None, options: ProtocolOptions) -> bool:
    """Whether a second pilot is needed to decide."""
    return incumbent is not None and options.prune * incumbent < pilot <= options.prune_at_once * incumbent


def is_settled(estimate: Estimate, most: int, incumbent: float | None, options: ProtocolOptions) -> bool:
    """Whether the pairs so far are enough for the decision; `most` are allowed."""
    count = len(estimate.values)
    if count >= most:
        return True
    narrow = estimate.high / estimate.ratio - 1 <= _goal(incumbent, options) and count >= options.enough
    if incumbent is None:
        return narrow
    lost = (1 + options.hopeless) * incumbent
    # Against few pairs, one of which may be disturbed, all must agree.
    hopeless = estimate.low > lost and (count >= options.enough or min(estimate.values) > lost)
    return hopeless or narrow
