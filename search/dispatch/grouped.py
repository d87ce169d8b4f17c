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
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration

MOST_KERNELS = 4
ENOUGH = 0.03
"""No more kernels are taken once the worst measured regret is at most this, as a share."""
_EXCHANGES = 20
_STEPS = 8  # between two measured numbers of tokens
_NEARER = -1  # in the place of a kernel: whatever serves the nearer number of tokens that was measured


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

    @property
    def regret(self) -> Floats:
        """Log of each time over the least on that problem, of shape [configurations, problems]."""
        timed = np.isfinite(self.ratio)
        logs = np.log(np.where(timed, self.ratio, 1.0))
        least = np.where(timed, logs, np.inf).min(axis=0)
        return np.where(timed, logs - np.where(np.isfinite(least), least, 0.0), np.inf)

    def columns(self, tokens: int) -> list[int]:
        """The problems with so many tokens."""
        return [at for at, problem in enumerate(self.problems) if problem.tokens == tokens]

    def take(self, columns: Sequence[int]) -> "GroupedTimes":
        """The times on some of the problems."""
        kept = list(columns)
        problems = tuple(self.problems[at] for at in kept)
        return replace(self, problems=problems, ratio=self.ratio[:, kept], high=self.high[:, kept])


def choose_grouped(times: GroupedTimes, count: int = MOST_KERNELS, enough: float = ENOUGH) -> tuple[int, ...]:
    """The kernels to keep, by their numbers: the fewest whose worst regret is small enough, `count` at most.

    They are chosen so that the mean square of the regret is least, with the same weight for each number of tokens.
    """
    usual = _usual(times, range(len(times.problems)))
    regret = np.minimum(times.regret[:, usual], CAP)
    tokens = np.array([times.problems[at].tokens for at in usual])
    _, place, often = np.unique(tokens, return_inverse=True, return_counts=True)
    weights = 1 / (often[place] * len(often))
    chosen: tuple[int, ...] = ()
    for many in range(1, min(count, len(regret)) + 1):
        chosen = choose_portfolio(regret**2, weights, many, _EXCHANGES).exchanged
        if regret[list(chosen)].min(axis=0).max() <= math.log1p(enough):
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
    """Which of some kernels serves each measured number of tokens; None where the library does.

    It is the one whose worst regret over the usual routings is least, of those that were proven as fast as the library
    with each routing.
    """
    regret, served = times.regret, dict[int, int | None]()
    for tokens in times.sizes:
        usual, proven = _usual(times, times.columns(tokens)), _proven(times, kernels, tokens)
        served[tokens] = min(proven, key=lambda kernel: float(regret[kernel, usual].max())) if proven else None
    return served


def _proven(times: GroupedTimes, kernels: Sequence[int], tokens: int) -> list[int]:
    """Those of some kernels that were as fast as the library with each routing of so many tokens."""
    at = times.columns(tokens)
    return [kernel for kernel in kernels if times.high[kernel, at].max() <= 1 + INDIFFERENCE]


def grouped_stretches(times: GroupedTimes, kernels: Sequence[int]) -> list[Stretch]:
    """The ranges of tokens that each of some kernels serves, the first from 1 on; None stands for the library.

    Between two measured numbers of tokens the log of each time is taken to go evenly with the log of the tokens. There
    serves what is fastest by that, of the kernels that were proven at both; without any, what serves the nearer one.
    Nothing serves more tokens than were measured.
    """
    served, found = serve(times, kernels), list[Stretch]()
    points = [(size, served[size]) for size in times.sizes[:1]]
    for low, high in pairwise(times.sizes):
        points += [(size, _between(times, kernels, low, high, size)) for size in _inside(low, high)]
        points.append((high, served[high]))
    points = [(size, _nearer(served, size) if kernel == _NEARER else kernel) for size, kernel in points]
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


def _between(times: GroupedTimes, kernels: Sequence[int], low: int, high: int, tokens: int) -> int:
    """The kernel that is expected to be the fastest for tokens between two measured numbers; `_NEARER` for none."""
    both = [kernel for kernel in _proven(times, kernels, low) if kernel in _proven(times, kernels, high)]
    columns = [{times.problems[at].routing: at for at in _usual(times, times.columns(size))} for size in (low, high)]
    pairs = [(at, columns[1][routing]) for routing, at in columns[0].items() if routing in columns[1]]
    if not both or not pairs:
        return _NEARER
    share, logs = math.log(tokens / low) / math.log(high / low), np.log(times.ratio)
    left, right = np.array(pairs).T
    expected = (1 - share) * logs[:, left] + share * logs[:, right]
    behind = expected[both] - expected.min(axis=0)
    return both[int(behind.max(axis=1).argmin())]


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
