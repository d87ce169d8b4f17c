"""Few kernels for a grouped product: which of them serves how many tokens, whatever way these are routed.

The numbers of tokens and the routings are those that were measured. A model knows the first when it calls, and the
second nowhere but on the device; so a number of tokens has one kernel, and the routings tell how much that may cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.portfolio import CAP, choose_portfolio
from tilescout.search.dispatch.plan import Stretch
from tilescout.search.export.decisions import INDIFFERENCE
from tilescout.search.export.grouped.dispatch import any_tokens
from tilescout.spaces.constraints import Mask
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration

MOST_KERNELS = 6
ENOUGH = 0.01
"""No more kernels are taken once none is expected to be behind the best single one by more than this, as a share."""
_EXCHANGES = 20
_STEPS = 8  # between two measured numbers of tokens


@dataclass(frozen=True, eq=False)
class GroupedTimes:
    """Measured times of kernels of one grouped product.

    Attributes
    ----------
    problems
        The numbers of tokens and routings; all else is the same.
    configurations
        The kernels.
    ratio, high
        Times over the library's, and the far ends of their 95 % intervals, of shape [configurations, problems];
        infinite where they are not known.
    """

    problems: tuple[GroupedProblem, ...]
    configurations: tuple[Configuration, ...]
    ratio: Floats
    high: Floats

    def __post_init__(self) -> None:
        if len({any_tokens(problem) for problem in self.problems}) != 1:
            raise SpaceError("the times are of several grouped products, or of none")

    @property
    def product(self) -> GroupedProblem:
        """The product; its tokens and their routing stand for any."""
        return any_tokens(self.problems[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of tokens, in rising order."""
        return tuple(sorted({problem.tokens for problem in self.problems}))

    def columns(self, tokens: int) -> list[int]:
        """The problems with so many tokens."""
        return [at for at, problem in enumerate(self.problems) if problem.tokens == tokens]

    def take(self, columns: Sequence[int]) -> "GroupedTimes":
        """The times on some of the problems."""
        kept = list(columns)
        problems = tuple(self.problems[at] for at in kept)
        return replace(self, problems=problems, ratio=self.ratio[:, kept], high=self.high[:, kept])

    def beside(self, other: "GroupedTimes") -> "GroupedTimes":
        """These times and others of the same product, of problems that are not among these.

        Raises
        ------
        SpaceError
            If they are of another product, or a problem is in both.
        """
        twice = set(self.problems) & set(other.problems)
        if twice:
            raise SpaceError(f"{min(map(str, twice))} is in two of the tables: leave one of them out")
        configurations = tuple(dict.fromkeys((*self.configurations, *other.configurations)))
        number = {each: at for at, each in enumerate(configurations)}
        ratio = np.full((len(configurations), len(self.problems) + len(other.problems)), np.inf)
        high, start = ratio.copy(), 0
        for each in (self, other):
            rows = [number[one] for one in each.configurations]
            ratio[rows, start : start + len(each.problems)] = each.ratio
            high[rows, start : start + len(each.problems)] = each.high
            start += len(each.problems)
        return GroupedTimes((*self.problems, *other.problems), configurations, ratio, high)


@dataclass(frozen=True, eq=False)
class Outlook:
    """How far each kernel is expected to be behind the fastest, at numbers of tokens in rising order.

    Attributes
    ----------
    tokens
        The numbers: those that were measured, and some between each two of them.
    behind
        Log of a kernel's time over the least, with the usual routing that is the worst for it; infinite where it was
        not proven as fast as the library, with each routing, at the measured numbers around. Of shape
        [configurations, tokens].
    """

    tokens: tuple[int, ...]
    behind: Floats

    def best(self, kernels: Sequence[int], at: int) -> int | None:
        """Of some kernels the one that is expected to be the fastest at a number of tokens, by its place; or None."""
        kernel = min(kernels, key=lambda one: float(self.behind[one, at]))
        return kernel if math.isfinite(self.behind[kernel, at]) else None


def outlook(times: GroupedTimes) -> Outlook:
    """The outlook of measured times.

    Between two measured numbers of tokens the log of each time is taken to go evenly with the log of the tokens, with
    each routing that was measured at both.
    """
    logs = np.log(times.ratio)
    proven = {size: times.high[:, times.columns(size)].max(axis=1) <= 1 + INDIFFERENCE for size in times.sizes}
    usual = {size: {times.problems[at].routing: at for at in _usual(times, times.columns(size))} for size in proven}
    first = times.sizes[0]
    found = [(first, _worst(logs[:, list(usual[first].values())], proven[first]))]
    for low, high in pairwise(times.sizes):
        pairs = [(at, usual[high][routing]) for routing, at in usual[low].items() if routing in usual[high]]
        both = proven[low] & proven[high]
        if pairs and both.any():
            left, right = np.array(pairs).T
            for size in _inside(low, high):
                share = math.log(size / low) / math.log(high / low)
                found.append((size, _worst((1 - share) * logs[:, left] + share * logs[:, right], both)))
        found.append((high, _worst(logs[:, list(usual[high].values())], proven[high])))
    sizes, behind = zip(*found, strict=True)
    return Outlook(sizes, np.stack(behind, axis=1))


def _worst(logs: Floats, proven: Mask) -> Floats:
    """Of logs of times [configurations, routings], how far each is behind where that is most; infinite if unproven."""
    known = np.where(np.isfinite(logs), logs, np.inf)
    least = known.min(axis=0)
    behind = np.where(np.isfinite(known), known - np.where(np.isfinite(least), least, 0.0), np.inf)
    return np.where(proven, behind.max(axis=1), np.inf)


def choose_grouped(times: GroupedTimes, count: int = MOST_KERNELS, enough: float = ENOUGH) -> tuple[int, ...]:
    """The kernels to keep, by their numbers: the fewest that are nowhere much behind the best single one, or `count`.

    They are chosen so that the mean square of how far the one that serves is expected to be behind is least, over
    numbers of tokens whose logs are evenly spread. One kernel serves a number of tokens whatever the routing: so each
    counts with the routing that is the worst for it.
    """
    behind = np.minimum(outlook(times).behind, CAP)
    weights = np.full(behind.shape[1], 1 / behind.shape[1])
    chosen: tuple[int, ...] = ()
    for many in range(1, min(count, len(behind)) + 1):
        chosen = choose_portfolio(behind**2, weights, many, _EXCHANGES).exchanged
        if (behind[list(chosen)].min(axis=0) - behind.min(axis=0)).max() <= math.log1p(enough):
            break
    return chosen


def _usual(times: GroupedTimes, columns: Sequence[int]) -> list[int]:
    """Those of some problems whose routing is usual: not all to one expert, unless there is no other.

    No router sends all tokens to one expert where each goes to several. What serves must stand that without being
    slower than the library, but is not chosen for it.
    """
    usual = [at for at in columns if times.problems[at].routing.kind != "one"]
    return usual or list(columns)


def serve(times: GroupedTimes, kernels: Sequence[int]) -> dict[int, int | None]:
    """Which of some kernels serves each measured number of tokens; None where the library does."""
    expected = outlook(times)
    return {size: expected.best(kernels, expected.tokens.index(size)) for size in times.sizes}


def grouped_stretches(times: GroupedTimes, kernels: Sequence[int]) -> list[Stretch]:
    """The ranges of tokens that each of some kernels serves, the first from 1 on; None stands for the library.

    Where none of them was proven at the measured numbers on both sides, what serves the nearer one serves. Nothing
    serves more tokens than were measured.
    """
    expected, served, found = outlook(times), serve(times, kernels), list[Stretch]()
    points = [(size, expected.best(kernels, at)) for at, size in enumerate(expected.tokens)]
    points = [(size, _nearer(served, size) if kernel is None else kernel) for size, kernel in points]
    ends = [math.isqrt(before * after) for (before, _), (after, _) in pairwise(points)] + [points[-1][0]]
    start = 1
    for (_, kernel), end in zip(points, ends, strict=True):
        if found and found[-1].kernel == kernel:
            found[-1] = replace(found[-1], high=end)
        else:
            found.append(Stretch(start, end, kernel))
        start = end + 1
    return found


def _inside(low: int, high: int) -> list[int]:
    """Numbers of tokens between two, in even steps of their logarithm."""
    steps = np.exp(np.linspace(math.log(low), math.log(high), _STEPS + 1)[1:-1])
    return sorted({round(float(step)) for step in steps} - {low, high})


def _nearer(served: Mapping[int, int | None], tokens: int) -> int | None:
    """The choice for the measured number of tokens that is the nearest in ratio."""
    return served[min(served, key=lambda size: abs(math.log(size / tokens)))]


def served_regret(times: GroupedTimes, found: Sequence[Stretch]) -> Floats:
    """Log of the time of what ranges serve over that of the fastest kernel, on each problem, of shape [problems].

    Where the library serves, it is the library's time; what has no time there has an infinite one.
    """
    best = np.log(times.ratio.min(axis=0))
    logs = np.empty(len(times.problems))
    for at, problem in enumerate(times.problems):
        inside = next((each for each in found if each.low <= problem.tokens <= each.high), None)
        kernel = None if inside is None else inside.kernel
        logs[at] = (0.0 if kernel is None else np.log(times.ratio[kernel, at])) - best[at]
    return logs
