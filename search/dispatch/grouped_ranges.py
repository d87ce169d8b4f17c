"""Few kernels for a grouped product: which of them serves how many tokens, whatever way these are routed.

A model knows the number of tokens when it calls, and the routing nowhere but on the device. So a number of tokens has
one kernel; or, where routings want different ones, a pair of kernels, of which the device takes one by what it counts.
Numbers of tokens and routings that were not measured have the times that `tilescout.costmodel.grouped_curves` tells.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.grouped_curves import fit_curves
from tilescout.costmodel.portfolio import CAP, choose_portfolio
from tilescout.search.dispatch.grouped_times import GroupedTimes
from tilescout.search.dispatch.pair_rule import fit_rule
from tilescout.search.dispatch.plan import Stretch
from tilescout.search.export.decisions import INDIFFERENCE
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_pair_sm90.rule import COUNTED, PairRule, Side, counted
from tilescout.spaces.grouped_pair_sm90.template import side_of
from tilescout.spaces.routing import Routing

MOST_KERNELS = 8
ENOUGH = 0.01
"""No more kernels are taken once none is expected to be behind the best by more than this, as a share."""
CHOICE_US = 4.0
"""The price of a choice between two kernels, in µs: two launches more, one of which finds nothing to do."""
ROUTINGS = tuple(Routing.parse(text) for text in ("balanced", "zipf-0.5", "zipf-1"))
"""The routings that what serves is chosen for, beside those that were measured."""
_DRAWS = 2
_EXCHANGES = 20
_STEPS = 5  # between two measured numbers of tokens
_CHANGE = 0.03  # what a change of kernels must save, as a log of time, summed over numbers of tokens
_PAIR = 0.015  # what a pair must save at each
_FAR = 0.03  # what is this far behind, as a log of time, costs twice as much as that: the worst is to be bounded
_UNKNOWN = 0.1  # how much further the library may be behind where it was not measured
_LEAST_ROWS = 16  # of a tile
_AROUND = 3  # numbers of tokens on both sides of a range, with which its rule is fitted too
_ROUNDS = 10


@dataclass(frozen=True)
class Second:
    """The other kernel of a pair, by its number, and the rule by which it runs."""

    kernel: int
    rule: PairRule


@dataclass(frozen=True)
class GroupedStretch(Stretch):
    """Numbers of tokens that one kernel serves, or a pair whose first it is."""

    second: Second | None = None

    @property
    def kernels(self) -> tuple[int, ...]:
        """The kernels, by number: none where the library serves."""
        return tuple(each for each in (self.kernel, self.second.kernel if self.second else None) if each is not None)


@dataclass(frozen=True, eq=False)
class Outlook:
    """Times that are expected of kernels at numbers of tokens in rising order, each with several routings.

    Attributes
    ----------
    times
        The measured times that it rests on.
    tokens
        The numbers: those that were measured, and some between each two of them.
    problems
        For each of them the same routings, each drawn once.
    logs
        Logs of times in µs, of shape [configurations, tokens, routings]; infinite for a kernel that was not measured
        at the numbers around.
    """

    times: GroupedTimes
    tokens: tuple[int, ...]
    problems: tuple[tuple[GroupedProblem, ...], ...]
    logs: Floats

    @cached_property
    def behind(self) -> Floats:
        """Logs of times over the least, in the shape of `logs`."""
        return np.asarray(np.minimum(self.logs - self.logs.min(axis=0), CAP))

    @cached_property
    def price(self) -> Floats:
        """Log of the time with a choice over that without, of shape [tokens]."""
        return np.asarray(np.log1p(CHOICE_US / np.exp(self.logs.min(axis=(0, 2)))))

    @cached_property
    def anchors(self) -> tuple[tuple[int, ...], ...]:
        """For each number of tokens, the problems that were measured at the one that is the nearest in ratio."""
        sizes = self.times.usual.sizes
        near = [min(sizes, key=lambda size: abs(math.log(size / tokens))) for tokens in self.tokens]
        return tuple(tuple(self.times.columns(size)) for size in near)

    def is_measured(self, at: int) -> bool:
        """Whether a number of tokens, by its place, was measured."""
        return self.tokens[at] in self.times.usual.sizes

    def sides(self, first: int, second: int) -> tuple[Side, Side]:
        """How two kernels divide the work."""
        return _sides(self.times, first, second)

    def counts(self, first: int, second: int) -> Floats:
        """The numbers that the device counts for two kernels, of shape [tokens, routings, counted]."""
        sides, blocks, n = self.sides(first, second), self.times.device.sms, self.times.product.n
        return np.array([[counted(one.groups, n, sides, blocks) for one in many] for many in self.problems])


def outlook(measured: GroupedTimes) -> Outlook:
    """The outlook of measured times.

    Raises
    ------
    SpaceError
        If the space of the kernels does not say how they divide a grouped product.
    """
    times = measured.usual
    curves = fit_curves(
        times.template,
        times.device,
        times.configurations,
        times.problems,
        times.ratio * times.library_us,
        ~np.isfinite(times.high),
    )
    known = {size: np.asarray(np.isfinite(times.ratio[:, times.columns(size)]).any(axis=1)) for size in times.sizes}
    routings = dict.fromkeys([*(problem.routing for problem in times.problems), *ROUTINGS])
    tokens, problems, logs = list[int](), list[tuple[GroupedProblem, ...]](), list[Floats]()
    for size, low, high in _with_steps(times.sizes, times.product.experts):
        drawn = tuple(
            replace(times.product, tokens=size, routing=routing, first_draw=draw, last_draw=draw)
            for routing in routings
            for draw in range(_DRAWS if routing.kind == "zipf" else 1)
        )
        told = np.stack([curves.predict(problem) for problem in drawn], axis=1)
        tokens.append(size)
        problems.append(drawn)
        logs.append(np.where((known[low] & known[high])[:, None], told, np.inf))
    return Outlook(measured, tuple(tokens), tuple(problems), np.stack(logs, axis=1))


def _with_steps(sizes: Sequence[int], experts: int) -> list[tuple[int, int, int]]:
    """Measured numbers of tokens and some between them, each with the measured ones on both sides.

    Where balanced groups have a power of two of tokens they fill tiles: at these numbers other kernels may be the
    fastest than right beside them. With one token more for each expert, each has a tile that is hardly filled.
    """
    full = {experts << power for power in range(sizes[-1].bit_length())}
    full |= {size + experts for size in full if size >= experts * _LEAST_ROWS}
    found = [(sizes[0], sizes[0], sizes[0])]
    for low, high in pairwise(sizes):
        steps = np.exp(np.linspace(math.log(low), math.log(high), _STEPS + 1)[1:-1])
        inside = {*(round(float(step)) for step in steps), *(size for size in full if low < size < high)}
        found += [(size, low, high) for size in sorted(inside - {low, high})] + [(high, high, high)]
    return found


def choose_grouped(expected: Outlook) -> tuple[int, ...]:
    """The kernels to keep, by their numbers: the fewest that are nowhere `ENOUGH` behind the best, or `MOST_KERNELS`.

    They are chosen so that the mean square of how far the best of them is behind is least, over numbers of tokens
    whose logs are evenly spread and their routings.
    """
    behind = expected.behind.reshape(len(expected.behind), -1)
    weights = np.full(behind.shape[1], 1 / behind.shape[1])
    chosen: tuple[int, ...] = ()
    for many in range(1, min(MOST_KERNELS, len(behind)) + 1):
        chosen = choose_portfolio(behind**2, weights, many, _EXCHANGES).exchanged
        if behind[list(chosen)].min(axis=0).max() <= math.log1p(ENOUGH):
            break
    return chosen


def grouped_stretches(expected: Outlook, kernels: Sequence[int]) -> list[GroupedStretch]:
    """The ranges of tokens that each of some kernels, or a pair of them, serves, the first from 1 on.

    Where nothing was proven as fast as the library at the nearest measured number of tokens, with each routing there,
    the library serves. Nothing serves more tokens than were measured.
    """
    plan = _Plan(expected, list(kernels))
    plan.settle_all()
    merged = list[GroupedStretch]()
    for low, high, option in plan.ranges():
        second = None if len(option) < 2 else Second(option[1], plan.rule(low, high, option))
        start = merged[-1].high + 1 if merged else 1
        after = expected.tokens[high + 1 : high + 2]
        end = math.isqrt(expected.tokens[high] * after[0]) if after else expected.tokens[high]
        merged.append(GroupedStretch(start, end, option[0] if option else None, second))
    return merged


_Option = tuple[int, ...]
"""Nothing but the library, a kernel, or the two of a pair."""


class _Plan:
    """The cost of each option at each number of tokens, and the ranges that cost least."""

    def __init__(self, expected: Outlook, kernels: Sequence[int]) -> None:
        self.expected = expected
        pairs = combinations(kernels, 2) if expected.times.template.pairs else ()
        self.options: list[_Option] = [(), *((one,) for one in kernels), *pairs]
        self.costs = _dear(np.stack([self._cost(option) for option in self.options]))

    def ranges(self) -> list[tuple[int, int, _Option]]:
        """The ranges, by the first and the last number of tokens in them, counted, and what serves them."""
        costs = self.costs
        total, came = costs[:, 0].copy(), np.zeros(costs.shape, dtype=np.int64)
        for at in range(1, costs.shape[1]):
            best = int(total.argmin())
            stays = total <= total[best] + _CHANGE
            came[:, at] = np.where(stays, np.arange(len(total)), best)
            total = np.where(stays, total, total[best] + _CHANGE) + costs[:, at]
        taken = [int(total.argmin())]
        for at in range(costs.shape[1] - 1, 0, -1):
            taken.append(int(came[taken[-1], at]))
        taken.reverse()
        starts = [at for at in range(len(taken)) if at == 0 or taken[at] != taken[at - 1]]
        ends = [at - 1 for at in starts[1:]] + [len(taken) - 1]
        return [(low, high, self.options[taken[low]]) for low, high in zip(starts, ends, strict=True)]

    def settle_all(self) -> None:
        """Let all pairs in the ranges cost what they do with their rules; without pairs if that comes to no end."""
        for _ in range(_ROUNDS):
            dearer = [self.settle(each) for each in self.ranges()]
            if not any(dearer):
                return
        self.costs[[len(option) > 1 for option in self.options]] = np.inf

    def settle(self, found: tuple[int, int, _Option]) -> bool:
        """Let a pair cost in its range what it does with a rule; return whether it costs more than was thought."""
        low, high, option = found
        if len(option) < 2:
            return False
        inside, row = slice(low, high + 1), self.options.index(option)
        rule = self.rule(low, high, option)
        first, second = option
        chosen = rule.score(self.expected.counts(first, second)[inside]) > 0
        behind = np.where(chosen, self.expected.behind[second, inside], self.expected.behind[first, inside])
        costs = behind.max(axis=1) + self.expected.price[inside] + _PAIR
        for at in range(low, high + 1):
            if self.expected.is_measured(at):
                costs[at - low] = self._known(option, at, rule)
        costs = _dear(costs)
        dearer = bool((costs > self.costs[row, inside] + 1e-9).any())
        self.costs[row, inside] = np.maximum(costs, self.costs[row, inside])
        return dearer

    def rule(self, low: int, high: int, option: _Option) -> PairRule:
        """The rule of a pair in a range."""
        first, second = option
        around = slice(max(0, low - _AROUND), high + 1 + _AROUND)
        logs = self.expected.logs[:, around]
        counts = self.expected.counts(first, second)[around].reshape(-1, len(COUNTED))
        both = logs[[first, second]].reshape(2, -1)
        known = np.isfinite(both).all(axis=0)
        return fit_rule(counts[known], both[0, known] - both[1, known])

    def _cost(self, option: _Option) -> Floats:
        """How far an option is behind, with the routing that is the worst for it, at each number of tokens."""
        times, count = self.expected.times, len(self.expected.tokens)
        if not option:
            best = [times.ratio[:, list(those)].min() for those in self.expected.anchors]
            unknown = [0.0 if self.expected.is_measured(at) else _UNKNOWN for at in range(count)]
            return np.maximum(-np.log(best), 0.0) + unknown
        costs = self.expected.behind[list(option)].min(axis=0).max(axis=1)
        if len(option) > 1:
            costs = costs + self.expected.price + _PAIR
        known = np.array([self._known(option, at) for at in range(count)])
        measured = [self.expected.is_measured(at) for at in range(count)]
        return np.where(measured | ~np.isfinite(known), known, costs)

    def _known(self, option: _Option, at: int, rule: PairRule | None = None) -> float:
        """How far an option was behind at the nearest measured number of tokens, with the routing that is the worst.

        It is infinite if what ran was not as fast as the library with each of the routings, those included that are not
        usual. Without a rule the faster of a pair runs.
        """
        times, those = self.expected.times, list(self.expected.anchors[at])
        ratio, high = (each[np.ix_(list(option), those)] for each in (times.ratio, times.high))
        price = 0.0
        if rule is not None:
            shares = np.array([second_share(times, option, rule, times.problems[each]) for each in those])
            taken, ends = (_mixed(each[0], each[1], shares) for each in (ratio, high))
        else:
            fastest = ratio.argmin(axis=0)[None]
            taken, ends = (np.take_along_axis(each, fastest, axis=0)[0] for each in (ratio, high))
        if len(option) > 1:
            price = _PAIR
            taken, ends = (each + CHOICE_US / times.library_us[those] for each in (taken, ends))
        if not (ends <= 1 + INDIFFERENCE).all():
            return math.inf
        behind = np.log(taken / times.ratio[:, those].min(axis=0))
        usual = [times.problems[each] in times.usual.problems for each in those]
        return price + float(behind[usual].max())


def _dear(behind: Floats) -> Floats:
    """The cost of being so far behind."""
    return np.asarray(behind + behind**2 / _FAR)


def _sides(times: GroupedTimes, first: int, second: int) -> tuple[Side, Side]:
    return side_of(times.configurations[first]), side_of(times.configurations[second])


def second_share(times: GroupedTimes, pair: Sequence[int], rule: PairRule, problem: GroupedProblem) -> float:
    """The share of a problem's draws with which the second kernel of a pair runs."""
    sides = _sides(times, *pair)
    counts = [counted(draw.groups, problem.n, sides, times.device.sms) for draw in problem.draws]
    return float((rule.score(np.array(counts)) > 0).mean())


def _mixed(first: Floats, second: Floats, shares: Floats) -> Floats:
    """Times of a pair that takes its second kernel in some share of the draws; one that never runs may be infinite."""
    return np.where(shares < 1, (1 - shares) * np.where(shares < 1, first, 0.0), 0.0) + np.where(
        shares > 0, shares * np.where(shares > 0, second, 0.0), 0.0
    )


def served_ratio(times: GroupedTimes, found: Sequence[GroupedStretch], far: bool = False) -> Floats:
    """Times over the library's of what ranges serve, on each problem, of shape [problems].

    Parameters
    ----------
    times
        Measured times of the same kernels, by the same numbers.
    found
        The ranges.
    far
        Whether the far ends of intervals are taken.
    """
    known, ratios = times.high if far else times.ratio, np.ones(len(times.problems))
    for at, problem in enumerate(times.problems):
        inside = next((each for each in found if each.low <= problem.tokens <= each.high), None)
        if inside is None or inside.kernel is None:
            continue
        ratios[at] = known[inside.kernel, at]
        if inside.second is not None:
            share = np.array(second_share(times, inside.kernels, inside.second.rule, problem))
            both = _mixed(known[inside.kernel, at], known[inside.second.kernel, at], share)
            ratios[at] = float(both) + CHOICE_US / times.library_us[at]
    return ratios


def served_regret(times: GroupedTimes, found: Sequence[GroupedStretch]) -> Floats:
    """Log of the time of what ranges serve over that of the fastest kernel, on each problem, of shape [problems]."""
    return np.asarray(np.log(served_ratio(times, found)) - np.log(times.ratio.min(axis=0)))
