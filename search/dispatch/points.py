"""Times of kernels on problems that differ only in m: what a dispatcher is decided by."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

from tilescout.costmodel.roofline import Roofline
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.measure.measurement import check_interval
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem


@dataclass(frozen=True)
class Ratio:
    """A kernel's time over the library's, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Ratio":
        """The same, multiplied by a factor."""
        return Ratio(self.value * factor, self.low * factor, self.high * factor)


def slowest(ratios: Sequence[Ratio]) -> Ratio:
    """Of several ratios of one kernel at one m, the one that promises least."""
    return max(ratios, key=lambda each: each.high)


@dataclass(frozen=True)
class Point:
    """The times of the library and of kernels at one m.

    Attributes
    ----------
    m
        Rows of A.
    library_us
        The library's steady time, in µs.
    ratios
        Time over the library's of every kernel that was timed, by its number among the candidates.
    slower
        Of those that were given up as too slow, by number: the ratio that the pilot told.
    failed
        Why the others have no time, by number.
    seconds
        How long all of this took.
    """

    m: int
    library_us: float
    ratios: Mapping[int, Ratio] = field(default_factory=dict)
    slower: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def only(self, numbers: Sequence[int]) -> "Point":
        """The point with some of the kernels, whose numbers become their places in `numbers`."""
        at = {number: place for place, number in enumerate(numbers)}
        return replace(
            self,
            ratios={at[number]: each for number, each in self.ratios.items() if number in at},
            slower={at[number]: each for number, each in self.slower.items() if number in at},
            failed={at[number]: each for number, each in self.failed.items() if number in at},
        )

    @property
    def promised(self) -> "Point":
        """The point with the upper ends of the intervals for the ratios: what the kernels are proven to do."""
        return replace(self, ratios={number: replace(each, value=each.high) for number, each in self.ratios.items()})

    def joined(self, other: "Point") -> "Point":
        """The same with what was measured at this m later.

        Where both have a kernel the later one counts; of two ratios it is the one that speaks for the library, as the
        state of the device moves them: three of twelve that had been proven once were no lead at another time.
        Ratios stay what they are: each is to the library's time at its own moment. The library's time is the mean.
        """
        assert self.m == other.m
        later = {*other.ratios, *other.slower, *other.failed}
        twice = {at: slowest([self.ratios[at], other.ratios[at]]) for at in self.ratios.keys() & other.ratios.keys()}
        return Point(
            self.m,
            math.sqrt(self.library_us * other.library_us),
            {**{at: each for at, each in self.ratios.items() if at not in later}, **other.ratios, **twice},
            {**{at: each for at, each in self.slower.items() if at not in later}, **other.slower},
            {**{at: each for at, each in self.failed.items() if at not in later}, **other.failed},
            self.seconds + other.seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """A mapping as JSON has it, that `from_dict` reads back."""
        return {
            "m": self.m,
            "library_us": self.library_us,
            "ratios": {str(number): asdict(each) for number, each in self.ratios.items()},
            "slower": {str(number): each for number, each in self.slower.items()},
            "failed": {str(number): each for number, each in self.failed.items()},
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Point":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is something else.
        """
        ratios = {int(at): Ratio(**each) for at, each in record["ratios"].items()}
        for each in ratios.values():
            check_interval(each.value, each.low, each.high)
        slower = {int(at): float(each) for at, each in record["slower"].items()}
        m, library_us = record["m"], float(record["library_us"])
        if type(m) is not int or m < 1 or not 0 < library_us < math.inf:
            raise ValueError(f"no point can have m = {m} and the library's time {library_us} µs")
        if not all(0 < each < math.inf for each in slower.values()):
            raise ValueError("a ratio is no positive number")
        failed = {int(at): str(each) for at, each in record["failed"].items()}
        return cls(m, library_us, ratios, slower, failed, float(record["seconds"]))


class Source(Protocol):
    """Has kernels timed at one m."""

    @property
    def kernels(self) -> Kernels:
        """The candidates."""

    @property
    def sizes(self) -> Set[int] | None:
        """The m that it knows times of; None if it can measure at any."""

    def at(self, m: int, numbers: Sequence[int], race: bool = False) -> Point:
        """The times of the library and of some kernels at m; those that are not legal there are left out.

        Those near the best are told apart by a race, if that is asked for.
        """

    def glances(self, asked: Mapping[int, Sequence[int]]) -> list[Point]:
        """Rough times of the library and of some kernels at some m, which verify nothing; none where none is legal.

        Raises
        ------
        CannotMeasureError
            If there can be none.
        """

    def check(self, m: int, numbers: Sequence[int]) -> tuple[Point, Point] | None:
        """A glance at some kernels at m, and a race of the fastest, neither of which verifies; None if there are none.

        Raises
        ------
        CannotMeasureError
            If there can be none.
        """


def check_points(points: Sequence[Point], problem: GemmProblem, device: Device) -> None:
    """Refuse points that are in no rising order, or have times that no kernel can have had on a device.

    Raises
    ------
    ValueError
        If there is one.
    """
    check_order(points)
    for point in points:
        roofline = Roofline.of(replace(problem, m=point.m), device)
        fastest = min([each.value for each in point.ratios.values()], default=1.0)
        roofline.check(point.library_us * min(fastest, 1.0))


def check_order(points: Sequence[Point]) -> None:
    """Refuse points that are in no rising order.

    Raises
    ------
    ValueError
        If they are in none.
    """
    if any(after.m <= before.m for before, after in pairwise(points)):
        raise ValueError("its sizes are in no rising order, or there twice")
