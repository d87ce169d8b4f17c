"""A dispatcher: a few kernels of one product, the ranges of m that each serves, and what that rests on."""

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tilescout.search.dispatch.glances import corrected_points
from tilescout.search.dispatch.plan import Regrets, Stretch
from tilescout.search.dispatch.points import Point, check_numbers, check_order, check_points
from tilescout.search.dispatch.steps import LibraryKernels
from tilescout.spaces.checking import check_types, number_of_key
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import MALFORMED, StoreError, TilescoutError, fault_of
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.outputs import check_replaceable, has_keys, write_whole

KIND = "tilescout dispatcher"
FORMAT = 5
_UNSEALED = 1  # the last format without a checksum
_ALONE = 3  # the last format whose kernels are all of one space
_READ = range(1, FORMAT + 1)
SLOWER = 0.01
"""No kernel serves a measured m at which it takes more than this longer than the library, as a share."""
MOST_KERNELS, LARGEST_M = 64, 1 << 20
"""Most kernels that are kept, and the largest m there may be: every m is looked at for each kernel."""
_LARGEST = 1 << 26  # bytes of a file; a size with its times has 1 kB


@dataclass(frozen=True)
class Count:
    """The cost of so many kernels: the mean and the worst regret that the estimate has with so many."""

    kernels: int
    mean: float
    worst: float


@dataclass(frozen=True)
class Dispatcher:
    """See the module.

    Attributes
    ----------
    problem
        The product; its m stands for any.
    most_rows
        The largest m.
    space
        The space that it was asked for, by its name.
    hashes
        The hash of the source of each space that a kernel is of, by their names.
    device
        The device, by its short name.
    kernels, spaces
        The kernels, and the name of the space of each.
    stretches
        The ranges of m, from 1 to `most_rows` without a gap; kernels by their number in `kernels`.
    measured_by
        Where the times come from, in words.
    versions
        Versions of driver, torch, compiler and protocol; empty if nothing was measured.
    points
        What was measured of the kernels, in rising order of m; none if a model chose.
    glances
        What glances told of them at other m, or of others of them, as if it were in sandwiches, in rising order of m:
        nothing was verified there.
    named
        The kernels that the library names; None if it was not asked.
    regret
        The regret against the best of the kernels and the library at every m, by the estimate.
    bound
        The worst regret that is possible between the measured m if time does not fall as m grows, and at which m; None
        if nothing was measured.
    counts
        What fewer kernels would have cost.
    over_library_best
        The time of what serves some measured m over that of the library's best candidate there, by m.
    no_library_best
        Why that is not known, or not of more m; empty where there is no list of candidates.
    """

    problem: GemmProblem
    most_rows: int
    space: str
    hashes: Mapping[str, str]
    device: str
    kernels: tuple[Configuration, ...]
    spaces: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    measured_by: str
    versions: Mapping[str, str] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    glances: tuple[Point, ...] = ()
    named: LibraryKernels | None = None
    regret: Regrets | None = None
    bound: Regrets | None = None
    counts: tuple[Count, ...] = ()
    over_library_best: Mapping[int, float] = field(default_factory=dict)
    no_library_best: str = ""

    @property
    def name(self) -> str:
        """How it is called: the space, the device and the product, which is the problem without m."""
        return f"{self.space}-{self.device}-{str(self.problem).partition('x')[2]}".replace(":", "-")

    def find(self, m: int) -> int | None:
        """The number of the kernel that serves m rows; None where it is the library, or beyond the last range."""
        at = bisect_left(self.stretches, m, key=lambda each: each.high)
        return self.stretches[at].kernel if at < len(self.stretches) and self.stretches[at].low <= m else None

    def over_library(self, point: Point) -> float | None:
        """The time over the library's at a measured m of what serves it; None if that was not timed there."""
        kernel = self.find(point.m)
        if kernel is None:
            return 1.0
        known = point.told.get(kernel)
        if known is not None:
            return known.value
        return point.slower.get(kernel) if point.raced is None else None

    def ratios(self, low: int = 1, high: int | None = None) -> list[float]:
        """`over_library` at each measured m from `low` to `high` at which it is known."""
        last = self.most_rows if high is None else high
        start = bisect_left(self.points, low, key=lambda point: point.m)
        end = bisect_right(self.points, last, key=lambda point: point.m)
        found = [self.over_library(point) for point in self.points[start:end]]
        return [ratio for ratio in found if ratio is not None]

    def is_proven(self, stretch: Stretch) -> bool:
        """Whether m in a range were measured, and what serves it was as fast as the library at each of them."""
        inside = self.ratios(stretch.low, stretch.high)
        return bool(inside) and max(inside) <= 1 + SLOWER

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back, with its SHA-256."""
        content = {
            "kind": KIND,
            "format": FORMAT,
            "problem": str(self.problem),
            "most_rows": self.most_rows,
            "space": self.space,
            "hashes": dict(self.hashes),
            "device": self.device,
            "measured_by": self.measured_by,
            "versions": dict(self.versions),
            "kernels": [dict(kernel) for kernel in self.kernels],
            "spaces": list(self.spaces),
            "ranges": [{**asdict(each), "proven": self.is_proven(each)} for each in self.stretches],
            "points": [point.to_dict() for point in self.points],
            "glances": [point.to_dict() for point in self.glances],
            "named": None if self.named is None else self.named.to_dict(),
            "regret": None if self.regret is None else asdict(self.regret),
            "bound": None if self.bound is None else asdict(self.bound),
            "counts": [asdict(count) for count in self.counts],
            "over_library_best": {str(m): ratio for m, ratio in self.over_library_best.items()},
            "no_library_best": self.no_library_best,
        }
        return content | {"digest": digest_of(content)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Dispatcher":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError, ProblemError
            If it is something else.
        """
        if record.get("kind") != KIND or record.get("format") not in _READ:
            raise ValueError(f"it does not say that it is a {KIND} of format {_READ[0]} to {FORMAT}")
        content = {key: value for key, value in record.items() if key != "digest"}
        if record["format"] != _UNSEALED and record.get("digest") != digest_of(content):
            raise ValueError("it is not what was written: its digest is wrong")
        space, alone = str(record["space"]), record["format"] <= _ALONE
        hashes = {space: record["space_hash"]} if alone else record["hashes"]
        made = cls(
            problem=GemmProblem.parse(record["problem"]),
            space=space,
            hashes={str(name): str(each) for name, each in hashes.items()},
            device=str(record["device"]),
            measured_by=str(record["measured_by"]),
            most_rows=int(record["most_rows"]),
            kernels=tuple(Configuration.of(kernel) for kernel in record["kernels"]),
            spaces=(space,) * len(record["kernels"]) if alone else tuple(map(str, record["spaces"])),
            stretches=tuple(Stretch(each["low"], each["high"], each["kernel"]) for each in record["ranges"]),
            versions={str(name): str(version) for name, version in record["versions"].items()},
            points=tuple(Point.from_dict(point) for point in record["points"]),
            glances=tuple(Point.from_dict(point) for point in record.get("glances", ())),
            named=None if record.get("named") is None else LibraryKernels.from_dict(record["named"]),
            regret=None if record["regret"] is None else Regrets(**record["regret"]),
            bound=None if record["bound"] is None else Regrets(**record["bound"]),
            counts=tuple(Count(**count) for count in record["counts"]),
            over_library_best={
                number_of_key(m): float(ratio) for m, ratio in record.get("over_library_best", {}).items()
            },
            no_library_best=str(record.get("no_library_best", "")),
        )
        check_types(made)
        made.check()
        if alone:  # what glances told was kept as it came
            return replace(made, glances=corrected_points(made.glances, made.points, len(made.kernels)))
        return made

    def check(self) -> None:
        """Refuse ranges that leave a size out, name no kernel, or contradict what was measured; times that can't be.

        Raises
        ------
        TypeError, ValueError
            If there is something.
        """
        ends = [(each.low, each.high) for each in self.stretches]
        if any(type(end) is not int for both in ends for end in both):
            raise TypeError("a range does not go from one whole number to another")
        whole = bool(ends) and ends[0][0] == 1 and ends[-1][1] == self.most_rows
        if not whole or any(low > high for low, high in ends):
            raise ValueError(f"its ranges do not go from 1 to {self.most_rows}")
        if any(after[0] != before[1] + 1 for before, after in pairwise(ends)):
            raise ValueError("its ranges leave sizes out, or overlap")
        if len(self.spaces) != len(self.kernels) or not {*self.spaces} <= self.hashes.keys():
            raise ValueError("not each of its kernels has a space whose source it knows")
        known = {None, *range(len(self.kernels))}
        if any(each.kernel not in known for each in self.stretches):
            raise ValueError(f"a range is of a kernel that it lacks: it has {len(self.kernels)}")
        check_order(self.points)
        if any(ratio > 1 + SLOWER for ratio in self.ratios()):
            raise ValueError(f"a kernel serves an m at which it was more than {SLOWER:.0%} slower than the library")
        if len(self.kernels) > MOST_KERNELS or self.most_rows > LARGEST_M:
            raise ValueError(f"it has more than {MOST_KERNELS} kernels, or {LARGEST_M} rows")
        if self.named is not None:
            self.named.check(self.most_rows)
        if not self.over_library_best.keys() <= {point.m for point in self.points}:
            raise ValueError("it tells of the library's best at an m that was not measured")
        if not all(0 < ratio < math.inf for ratio in self.over_library_best.values()):
            raise ValueError("a time over that of the library's best is no positive number")
        check_order(self.glances)
        check_numbers((*self.points, *self.glances), len(self.kernels), self.most_rows)
        if self.device in DEVICES:
            check_points(self.points, self.problem, DEVICES[self.device])

    def write(self, path: Path) -> None:
        """Write it as JSON; a dispatcher that is there is replaced.

        Raises
        ------
        StoreError
            If the file can't be written, or is something else.
        """
        check_replaceable(path, "a dispatcher", is_dispatcher, StoreError)
        write_whole(path, (json.dumps(self.to_dict(), indent=1) + "\n").encode())


def is_dispatcher(path: Path) -> bool:
    """Whether a file is that of a dispatcher; see `check_replaceable`."""
    return has_keys(path, ("kind", "problem", "kernels", "ranges"))


def read_dispatcher(path: Path) -> Dispatcher:
    """Read the file of a dispatcher, and check it.

    Raises
    ------
    StoreError
        If it can't be read, or is something else.
    """
    try:
        record = parse_json(read_regular(path, _LARGEST))
        return Dispatcher.from_dict(record)
    except OSError as error:
        raise StoreError(f"can't read the dispatcher {path}: {error.strerror}") from error
    except (*MALFORMED, TilescoutError, RecursionError) as error:
        raise StoreError(f"{path} is no dispatcher, or a damaged one: {fault_of(error, 160)}") from error


def used(stretches: Sequence[Stretch]) -> list[int]:
    """The numbers of the kernels that serve anything, in rising order."""
    return sorted({each.kernel for each in stretches if each.kernel is not None})
