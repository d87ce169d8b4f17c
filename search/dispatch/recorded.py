"""Times of kernels over m that were recorded before, in the place of a GPU."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.dispatch.points import Point


@dataclass(frozen=True, eq=False)
class Recorded:
    """A source of what was measured before; it knows no other m.

    Attributes
    ----------
    kernels
        The kernels that were timed.
    points
        Their times, by m.
    """

    kernels: Kernels
    points: Mapping[int, Point]

    @property
    def sizes(self) -> Set[int]:
        """The m that were recorded."""
        return self.points.keys()

    def at(self, m: int, numbers: Sequence[int]) -> Point:
        """The recorded times of some kernels at a recorded m, by the same numbers."""
        held = self.points[m]
        return replace(
            held,
            ratios={number: held.ratios[number] for number in numbers if number in held.ratios},
            slower={number: held.slower[number] for number in numbers if number in held.slower},
            failed={number: held.failed[number] for number in numbers if number in held.failed},
        )
