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
    regret = np.minimum(times.regret, CAP)
    tokens = np.array([problem.tokens for problem in times.problems])
    _, place, often = np.unique(tokens, return_inverse=True, return_counts=True)
    weights = 1 / (often[place] * len(often))
    chosen: tuple[int, ...] = ()
    for many in range(1, min(count, len(regret)) + 1):
        chosen = choose_portfolio(regret**2, weights, many, _EXCHANGES).exchanged
        if regret[list(chosen)].min(axis=0).max() <= math.log1p(enough):
            break
    return chosen


def serve(times: GroupedTimes, kernels: Sequence[int]) -> dict[int, int | None]:
    """Which of some kernels serves each measured number of tokens; None where the library does.

    It is the one whose worst regret over the routings is least, of those that were proven as fast as the library with
    each routing.
    """
    regret, served = times.regret, dict[int, int | None]()
    for tokens in times.sizes:
        at = times.columns(tokens)
        proven = [kernel for kernel in kernels if times.high[kernel, at].max() <= 1 + INDIFFERENCE]
        served[tokens] = min(proven, key=lambda kernel: float(regret[kernel, at].max())) if proven else None
    return served


def grouped_stretches(served: Mapping[int, int | None]) -> list[Stretch]:
    """The ranges of tokens: between two measured numbers each serves up to their geometric mean, the first from 1 on.

    Nothing serves more tokens than were measured.
    """
    sizes = sorted(served)
    ends = [math.isqrt(low * high) for low, high in pairwise(sizes)] + sizes[-1:]
    found: list[Stretch] = []
    start = 1
    for size, end in zip(sizes, ends, strict=True):
        if found and found[-1].kernel == served[size]:
            found[-1] = replace(found[-1], high=end)
        else:
            found.append(Stretch(start, end, served[size]))
        start = end + 1
    return found


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
