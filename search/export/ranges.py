"""Which kernel serves which numbers of rows: ranges of m, and how they are looked up while a model runs."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

from tilescout.search.export.decisions import Choice, Decision
from tilescout.spaces.gemm import GemmProblem

# A size between two tuned ones takes the kernel of the larger one only where the larger is less than this times as
# large: further away neither the tiles nor the library's choice are those that were measured.
_REACH = 2

Entry = TypeVar("Entry")


def family(problem: GemmProblem) -> str:
    """A problem as text with ``*`` for m: equal for problems that differ only in m."""
    return "*" + str(problem).removeprefix(str(problem.m))


@dataclass(frozen=True)
class Range:
    """Numbers of rows that one kernel serves.

    Attributes
    ----------
    low, high
        The least and the largest of them.
    kernel
        Digest of our kernel; empty where the library's is chosen.
    proven
        Whether sizes in it, or at both of its ends, were measured; otherwise a model or a rule says so.
    """

    low: int
    high: int
    kernel: str = ""
    proven: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"no range goes from {self.low!r} to {self.high!r}")

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Range":
        """Read what `dataclasses.asdict` wrote.

        Raises
        ------
        TypeError, ValueError
            If it is something else.
        """
        made = cls(**record)
        if [type(value) for value in asdict(made).values()] != [int, int, str, bool]:
            raise TypeError(f"a range is {record}")
        return made

    @property
    def choice(self) -> Choice:
        """Whose kernel runs."""
        return Choice.OURS if self.kernel else Choice.LIBRARY


@dataclass(frozen=True)
class Dispatch:
    """The ranges of m of one product.

    Attributes
    ----------
    problem
        The product; its m stands for any.
    ranges
        In rising order, without overlap. Sizes in none of them are the library's.
    dispatcher
        The name of the dispatcher that it was made from.
    measured_by
        The GPU; empty if nothing was measured.
    versions
        Versions of driver, torch, compiler and protocol.
    sizes
        The m that were measured.
    over_library
        The largest time over the library's of the chosen kernels at these; None if nothing was measured.
    """

    problem: GemmProblem
    ranges: tuple[Range, ...]
    dispatcher: str = ""
    measured_by: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    over_library: float | None = None

    def __post_init__(self) -> None:
        if not self.ranges or any(after.low <= before.high for before, after in pairwise(self.ranges)):
            raise ValueError(f"the ranges of {family(self.problem)} are none, or overlap, or are in no order")

    def serves(self, problem: GemmProblem) -> bool:
        """Whether a problem differs from this product only in m."""
        return replace(problem, m=self.problem.m) == self.problem

    def find(self, m: int) -> Range | None:
        """The range that m is in; None if it is in none."""
        at = bisect_left(self.ranges, m, key=lambda each: each.high)
        return self.ranges[at] if at < len(self.ranges) and self.ranges[at].low <= m else None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back."""
        return {**asdict(self), "problem": str(self.problem), "versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Dispatch":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError, ProblemError
            If it is something else.
        """
        over = record["over_library"]
        return cls(
            problem=GemmProblem.parse(record["problem"]),
            ranges=tuple(Range.from_dict(each) for each in record["ranges"]),
            dispatcher=str(record["dispatcher"]),
            measured_by=str(record["measured_by"]),
            versions={str(name): str(version) for name, version in record["versions"].items()},
            sizes=tuple(int(size) for size in record["sizes"]),
            over_library=None if over is None else float(over),
        )


def ranges_between(decisions: Iterable[Decision]) -> list[Range]:
    """The ranges of tuned sizes of one product.

    The decision of a tuned size holds for that size. If our kernel was decided for it and for the next smaller tuned
    size, it also holds for the sizes in between that are more than half of it: what was proven at both ends is assumed
    in between.

    Parameters
    ----------
    decisions
        Decisions of problems that differ only in m.
    """
    ordered = sorted(decisions, key=lambda decision: decision.problem.m)
    found: list[Range] = []
    for at, decision in enumerate(ordered):
        m, below = decision.problem.m, ordered[at - 1] if at else None
        if below is not None and below.choice is decision.choice is Choice.OURS:
            low = max(below.problem.m + 1, m // _REACH + 1)
            if low < m:
                found.append(Range(low, m - 1, decision.kernel))
        found.append(Range(m, m, decision.kernel, proven=True))
    return found


def overlaid(ranges: Sequence[Range], points: Iterable[Range]) -> list[Range]:
    """Ranges in which some single sizes are served by what was decided for exactly these."""
    single = sorted(points, key=lambda each: each.low)
    sizes = [each.low for each in single]
    left: list[Range] = []
    for each in ranges:
        low = each.low
        for m in sizes[bisect_left(sizes, each.low) : bisect_right(sizes, each.high)]:
            if low < m:
                left.append(Range(low, m - 1, each.kernel, each.proven))
            low = m + 1
        if low <= each.high:
            left.append(Range(low, each.high, each.kernel, each.proven))
    return sorted([*left, *single], key=lambda each: each.low)


def ranges_of(decisions: Sequence[Decision], dispatch: Dispatch | None) -> list[Range]:
    """All ranges of one product: those of a dispatcher, or between tuned sizes, and each tuned size as was decided."""
    if dispatch is None:
        return ranges_between(decisions)
    return overlaid(dispatch.ranges, (Range(each.problem.m, each.problem.m, each.kernel, True) for each in decisions))


class Lookup(Generic[Entry]):
    """The kernel of each m, as two tuples that one bisection answers from; `entries` has None for the library.

    Attributes
    ----------
    ends
        The last m of each stretch but the last one, which has no end.
    entries
        What each stretch runs, one more than there are ends.
    """

    __slots__ = ("ends", "entries")

    def __init__(self, ranges: Sequence[tuple[int, int, Entry | None]]) -> None:
        ends: list[int] = []
        entries: list[Entry | None] = []
        reached = -1  # no rows at all are the library's, too: no kernel of ours is made for them
        for low, high, entry in ranges:
            if low > reached + 1:
                ends.append(low - 1)
                entries.append(None)
            ends.append(high)
            entries.append(entry)
            reached = high
        self.ends, self.entries = tuple(ends), (*entries, None)

    def find(self, m: int) -> Entry | None:
        """The entry that serves m rows; None where it is the library."""
        return self.entries[bisect_left(self.ends, m)]
