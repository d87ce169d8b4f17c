"""Which kernel serves which numbers of tokens of a grouped product, as a bundle holds it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from tilescout.search.export.decisions import Choice
from tilescout.search.export.ranges import Range
from tilescout.spaces.experts import read_grouped
from tilescout.spaces.grouped import DRAWS, GroupedProblem
from tilescout.spaces.routing import Routing


def grouped_family(problem: GroupedProblem) -> str:
    """A problem as text with ``*`` for the tokens: equal for those that differ in tokens and their routing alone."""
    return f"{problem.experts}x*x{problem.n}x{problem.k}:{problem.signature}"


def any_tokens(problem: GroupedProblem) -> GroupedProblem:
    """The problem that stands for all that differ from one in tokens and their routing alone."""
    return replace(problem, tokens=1, routing=Routing(), first_draw=0, last_draw=DRAWS - 1)


@dataclass(frozen=True)
class GroupedDispatch:
    """The ranges of tokens of one grouped product.

    Attributes
    ----------
    problem
        The product; its tokens and their routing stand for any.
    ranges
        In rising order, without overlap. Numbers of tokens in none of them are the library's.
    table
        The name of the table that it was made from.
    measured_by
        The GPU.
    versions
        Versions of driver, torch, compiler and protocol.
    sizes
        The numbers of tokens that were measured.
    routings
        How they were routed.
    over_library
        The largest time over the library's of the chosen kernels at these, at the far end of its 95 % interval.
    """

    problem: GroupedProblem
    ranges: tuple[Range, ...]
    table: str
    measured_by: str
    versions: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    routings: tuple[str, ...] = ()
    over_library: float = 1.0

    def __post_init__(self) -> None:
        if not self.ranges or any(after.low <= before.high for before, after in pairwise(self.ranges)):
            raise ValueError(f"the ranges of {grouped_family(self.problem)} are none, or overlap, or are in no order")
        if self.problem != any_tokens(self.problem):
            raise ValueError(f"{self.problem} names tokens, and its ranges are of any")

    def choice(self, tokens: int) -> Choice:
        """Whose kernel runs for so many tokens."""
        inside = next((each for each in self.ranges if each.low <= tokens <= each.high), None)
        return Choice.LIBRARY if inside is None else inside.choice

    def at(self, tokens: int) -> GroupedProblem:
        """The product of so many tokens."""
        return replace(self.problem, tokens=tokens)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back."""
        return {**asdict(self), "problem": str(self.problem), "versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "GroupedDispatch":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError, ProblemError
            If it is something else.
        """
        return cls(
            problem=read_grouped(record["problem"]),
            ranges=tuple(Range.from_dict(each) for each in record["ranges"]),
            table=str(record["table"]),
            measured_by=str(record["measured_by"]),
            versions={str(name): str(version) for name, version in record["versions"].items()},
            sizes=tuple(int(size) for size in record["sizes"]),
            routings=tuple(str(Routing.parse(each)) for each in record["routings"]),
            over_library=float(record["over_library"]),
        )
