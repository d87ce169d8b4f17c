"""Times of kernels on problems that differ only in m: what a dispatcher is decided by."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.roofline import Roofline
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.dispatch.steps import LibraryKernels
from tilescout.search.measure.measurement import check_interval
from tilescout.spaces.checking import number_of_key
from tilescout.spaces.constraints import Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.tiling import Integers


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
    raced
        The kernels whose ratios are of a race; the others were timed one by one, on a device that waited between them,
        and have up to 7 % more. None if all ratios tell as much.
    """

    m: int
    library_us: float
    ratios: Mapping[int, Ratio] = field(default_factory=dict)
    slower: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    raced: tuple[int, ...] | None = None

    @property
    def told(self) -> Mapping[int, Ratio]:
        """The ratios that are of a race."""
        return {number: each for number, each in self.ratios.items() if self.raced is None or number in self.raced}

    def only(self, numbers: Sequence[int]) -> "Point":
        """The point with some of the kernels, whose numbers become their places in `numbers`."""
        at = {number: place for place, number in enumerate(numbers)}
        return replace(
            self,
            ratios={at[number]: each for number, each in self.ratios.items() if number in at},
            slower={at[number]: each for number, each in self.slower.items() if number in at},
            failed={at[number]: each for number, each in self.failed.items() if number in at},
            raced=None if self.raced is None else tuple(sorted(at[number] for number in self.raced if number in at)),
        )

    def joined(self, other: "Point") -> "Point":
        """The same with what was measured at this m later.

        Where both have a kernel the later one counts; of two ratios of races it is the one that speaks for the library,
        as the state of the device moves them: three of twelve that had been proven once were no lead at another time.
        Ratios stay what they are: each is to the library's time at its own moment. The library's time is the mean.
        """
        assert self.m == other.m
        later = {*other.ratios, *other.slower, *other.failed}
        before, after = self.told, other.told
        twice = {at: slowest([before[at], after[at]]) for at in before.keys() & after.keys()}
        ratios = {**{at: each for at, each in self.ratios.items() if at not in later}, **other.ratios, **twice}
        unsaid = self.raced is None and other.raced is None
        raced = None if unsaid else tuple(sorted({*before, *after} & ratios.keys()))  # one may have failed since
        return Point(
            self.m,
            math.sqrt(self.library_us * other.library_us),
            ratios,
            {**{at: each for at, each in self.slower.items() if at not in later}, **other.slower},
            {**{at: each for at, each in self.failed.items() if at not in later}, **other.failed},
            self.seconds + other.seconds,
            raced,
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
            **({} if self.raced is None else {"raced": list(self.raced)}),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Point":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is something else.
        """
        ratios = {number_of_key(at): Ratio(**each) for at, each in record["ratios"].items()}
        for each in ratios.values():
            check_interval(each.value, each.low, each.high)
        slower = {number_of_key(at): float(each) for at, each in record["slower"].items()}
        m, library_us = record["m"], float(record["library_us"])
        if type(m) is not int or m < 1 or not 0 < library_us < math.inf:
            raise ValueError(f"no point can have m = {m} and the library's time {library_us} µs")
        if not all(0 < each < math.inf for each in slower.values()):
            raise ValueError("a ratio is no positive number")
        failed = {number_of_key(at): str(each) for at, each in record["failed"].items()}
        raced = tuple(map(number_of_key, record["raced"])) if "raced" in record else None
        if not {*(raced or ())} <= ratios.keys():
            raise ValueError("it says that kernels raced of which it has no ratio")
        seconds = float(record["seconds"])
        if not 0 <= seconds < math.inf:
            raise ValueError(f"no point can have taken {seconds} s")
        return cls(m, library_us, ratios, slower, failed, seconds, raced)


Told = Literal["raced", "glanced", "timed"]


@dataclass(frozen=True, eq=False)
class Known:
    """Times of the library and of kernels at some m, as columns: a plan takes thousands of points together.

    Attributes
    ----------
    sizes
        The m, in rising order, of shape [sizes].
    library
        Logs of the library's times in µs, of shape [sizes].
    ratios
        Logs of the kernels' times over the library's, of shape [kernels, sizes]; NaN where nothing is known.
    paired
        Where a kernel was timed beside the library, and not given up as too slow; of the same shape.
    raced
        Where it raced; of the same shape.
    failed
        Where a kernel has no time because it failed; of the same shape.
    """

    sizes: Integers
    library: Floats
    ratios: Floats
    paired: Mask
    raced: Mask
    failed: Mask

    @classmethod
    def of(cls, points: Mapping[int, Point], kernels: int, promised: bool = False, told: Told = "raced") -> "Known":
        """The columns of some points.

        Parameters
        ----------
        points
            By their m.
        kernels
            How many there are.
        promised
            Whether a ratio is the upper end of its interval, which is what a kernel is proven to do.
        told
            What the points are of: races, those of their kernels alone that raced; glances; or all of what was timed,
            one by one.
        """
        sizes = sorted(points)
        ordered = [points[m] for m in sizes]
        ratios = np.full((kernels, len(sizes)), np.nan)
        paired, raced, failed = (np.zeros(ratios.shape, dtype=np.bool_) for _ in range(3))
        slower = [
            (number, at, each)
            for at, one in enumerate(ordered)
            for number, each in one.slower.items()
            if one.raced is None or told != "raced"
        ]
        timed = [
            (number, at, each.high if promised else each.value)
            for at, one in enumerate(ordered)
            for number, each in (one.told if told == "raced" else one.ratios).items()
        ]
        _fill(ratios, slower)
        _fill(ratios, timed)
        paired[_places(timed)] = told != "timed"
        raced[_places(timed)] = told == "raced"
        failed[_places([(number, at, 0.0) for at, one in enumerate(ordered) for number in one.failed])] = True
        library = np.log(np.array([each.library_us for each in ordered], dtype=np.float64))
        return cls(np.array(sizes, dtype=np.int64), library, ratios, paired, raced, failed)

    @property
    def logs(self) -> Floats:
        """Logs of the kernels' times in µs, and last of the library's, of shape [kernels + 1, sizes]."""
        return np.vstack([self.ratios + self.library, self.library])

    def take(self, rows: Sequence[int]) -> "Known":
        """The same of some of the kernels."""
        kept = list(rows)
        masks = {name: getattr(self, name)[kept] for name in ("paired", "raced", "failed")}
        return replace(self, ratios=self.ratios[kept], **masks)

    def beside(self, glances: "Known") -> "Known":
        """The same with what glances tell of other m, and of kernels of which nothing is known at an m."""
        sizes = np.union1d(self.sizes, glances.sizes)
        mine, theirs = np.searchsorted(sizes, self.sizes), np.searchsorted(sizes, glances.sizes)
        shape = len(self.ratios), len(sizes)
        library, ratios = np.empty(len(sizes)), np.full(shape, np.nan)
        paired, raced, failed = (np.zeros(shape, dtype=np.bool_) for _ in range(3))
        library[theirs], library[mine] = glances.library, self.library
        ratios[:, theirs], paired[:, theirs], raced[:, theirs] = glances.ratios, glances.paired, glances.raced
        failed[:, theirs] = glances.failed
        told = np.isfinite(self.ratios) | self.failed
        ratios[:, mine] = np.where(told, self.ratios, ratios[:, mine])
        paired[:, mine] = np.where(told, self.paired, paired[:, mine])
        raced[:, mine] = np.where(told, self.raced, raced[:, mine])
        failed[:, mine] |= self.failed
        return Known(sizes, library, ratios, paired, raced, failed)


class Source(Protocol):
    """Has kernels timed at one m."""

    @property
    def kernels(self) -> Kernels:
        """The candidates."""

    @property
    def sizes(self) -> Set[int] | None:
        """The m that it knows times of; None if it can measure at any."""

    @property
    def named(self) -> LibraryKernels | None:
        """The kernels that the library names, if it was asked."""

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
    """Refuse points with times that no kernel can have had on a device.

    Raises
    ------
    ValueError
        If there is one.
    """
    for point in points:
        roofline = Roofline.of(replace(problem, m=point.m), device)
        fastest = min([each.value for each in point.ratios.values()], default=1.0)
        roofline.check(point.library_us * min(fastest, 1.0))


def check_numbers(points: Sequence[Point], kernels: int, most_rows: int) -> None:
    """Refuse points that tell of kernels that there are not, or of more rows than are served.

    Raises
    ------
    ValueError
        If there is one.
    """
    there = {*range(kernels)}
    for point in points:
        if point.m > most_rows or not {*point.ratios, *point.slower, *point.failed} <= there:
            raise ValueError(f"it has times at {point.m} of {most_rows} rows, or of kernels beyond its {kernels}")


def check_order(points: Sequence[Point]) -> None:
    """Refuse points that are in no rising order.

    Raises
    ------
    ValueError
        If they are in none.
    """
    if any(after.m <= before.m for before, after in pairwise(points)):
        raise ValueError("its sizes are in no rising order, or there twice")


def _fill(into: Floats, values: Sequence[tuple[int, int, float]]) -> None:
    into[_places(values)] = np.log(np.array([value for _, _, value in values], dtype=np.float64))


def _places(values: Sequence[tuple[int, int, float]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows and columns of some values."""
    rows, columns = ([each[axis] for each in values] for axis in (0, 1))
    return np.array(rows, dtype=np.intp), np.array(columns, dtype=np.intp)
