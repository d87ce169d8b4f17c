"""Build a dispatcher: glance at all candidates at many m, keep a few, and measure these where it is in doubt."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.search.dispatch.dispatcher import Count, Dispatcher, used
from tilescout.search.dispatch.glances import (
    Looked,
    corrected_points,
    fine_sizes,
    gathered,
    glanced_sizes,
    short_first,
    spread,
)
from tilescout.search.dispatch.kernels import MOST_ROWS, Kernels, Models, probes, promising
from tilescout.search.dispatch.plan import (
    Kept,
    Regrets,
    Stretch,
    choice_of,
    choose_kernels,
    is_timed,
    next_size,
    shortlist,
    stretches,
    thinned,
    timed,
    unseen_size,
    untimed,
    where_timed,
    worth_timing,
)
from tilescout.search.dispatch.points import Known, Point, Source
from tilescout.search.dispatch.steps import Grid
from tilescout.search.dispatch.times import Times, steady_times, times_of
from tilescout.search.engines.engine import CannotMeasureError
from tilescout.spaces.errors import SpaceError, one_line
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.texts import number_of
from tilescout.spaces.tiling import Integers

_LOG = logging.getLogger(__name__)

_FAR = 0.25  # a kernel that is expected to be so much behind the best at an m is not looked at there
_CLOSE = 0.06  # the same of those that are kept, at many m
_LISTED = 2  # kernels to glance at again, for each that may be kept
_MOST = 10.0  # log of a regret at most: where a kernel was measured at no larger m, nothing bounds its time


@dataclass(frozen=True)
class DispatchOptions:
    """How a dispatcher is built.

    Attributes
    ----------
    kernels
        Most kernels.
    most_rows
        The largest m.
    candidates
        Kernels of the template's portfolio among which it is chosen: those that a model expects to serve best.
    others
        The same of the complement of the template.
    explored
        Sizes at which all candidates are timed, at most; where there are no glances, besides those at which one becomes
        legal, or is so for the last time.
    seconds
        Time to measure for; at most `exploring` of it goes to timing all candidates, `glancing` to glances at all of
        them, and `again` to glances at those that may be kept and those that are. Then the kernels that are kept race
        in range after range, the widest first. After `racing` of the time they are chosen once more, by what races
        tell of glances, are glanced at as closely as `fine_sizes` until `looking` of the time is over, and race until
        `proving` is left. None takes what it needs.
    exploring, glancing, again, racing, looking
        See `seconds`.
    tolerance
        A range goes on as long as its kernel is within this of the best, as a share.
    caution
        What a kernel must be proven to gain over the library at a measured m, as a share, and expected to gain between
        two, where the library may have a kernel that it has at neither. The same as a product must be proven to gain
        while a model is compiled: a smaller gain may be none when it is measured again.
    proving
        Of the time, the share that is kept for the end: each kernel races the library alone at the m that it is to
        serve, where its lead was the smallest first. What it was seen to gain least counts.
    enough
        Where no m can have a larger regret than this, as a share, nothing more is measured; and no more kernels are
        taken than leave no larger one.
    """

    kernels: int = 8
    most_rows: int = MOST_ROWS
    candidates: int = 48
    others: int = 32
    explored: int = 32
    seconds: float | None = None
    exploring: float = 0.1
    glancing: float = 0.22
    again: float = 0.08
    racing: float = 0.5
    looking: float = 0.82
    proving: float = 0.1
    tolerance: float = 0.005
    caution: float = 0.01
    enough: float = 0.01


Watch = Callable[[Point], None]
"""Hears of every point as it is measured."""


def measure_dispatcher(
    source: Source,
    options: DispatchOptions,
    measured_by: str,
    versions: Mapping[str, str],
    watch: Watch = lambda point: None,
) -> Dispatcher:
    """A dispatcher of what a source measures.

    Parameters
    ----------
    source
        Measures the candidates.
    options
        See `DispatchOptions`.
    measured_by, versions
        What is written into the dispatcher of where times come from.
    watch
        Hears of every point.

    Raises
    ------
    SpaceError
        If the template does not say how its kernels divide the work, or no candidate works.
    """
    builder = _Builder(source, options, watch)
    builder.explore()
    builder.choose()
    if builder.anywhere:  # races correct the glances at all candidates: others may be worth keeping by them
        builder.race(options.racing)
        builder.choose_again()
    builder.race(1 - options.proving)
    builder.prove()
    space = source.kernels.templates[0].name
    return replace(builder.settled(), space=space, measured_by=measured_by, versions=dict(versions))


def predict_dispatcher(kernels: Kernels, models: Models, options: DispatchOptions, source: str) -> Dispatcher:
    """A dispatcher that cost models choose: nothing of it is proven, and it says nothing of the library.

    Parameters
    ----------
    kernels
        The candidates.
    models
        They predict their times.
    options
        See `DispatchOptions`; nothing is measured.
    source
        The model, in words.

    Raises
    ------
    SpaceError
        If no candidate is legal for some m.
    """
    grid = Grid.of(kernels, options.most_rows)
    sizes = sorted({1, options.most_rows, *probes(options.most_rows)})
    logs = kernels.predict(models, sizes)
    # A point needs a library's time: the best kernel's stands for it, and is taken out again below.
    points = {}
    for at, m in enumerate(sizes):
        known = np.flatnonzero(np.isfinite(logs[:, at]))
        if len(known) == 0:
            raise SpaceError(f"no candidate is legal for {kernels.at(m)}: choose by more, or of another space")
        best = float(logs[known, at].min())
        points[m] = Point(
            m, float(np.exp(best)), slower={int(row): float(np.exp(logs[row, at] - best)) for row in known}
        )
    times = _without(times_of(grid, Known.of(points, len(kernels))), [len(kernels)])  # nothing is known of the library
    choices = choose_kernels(times, options.kernels, options.enough)
    kept = choices[-1].kernels
    found = stretches(times.take(kept), options.tolerance)
    made = _dispatcher(kernels.take(kept), found, choices, options)
    return replace(made, space=kernels.templates[0].name, measured_by=f"nothing was measured: {source}")


def regret_over_m(dispatcher: Dispatcher, kernels: Kernels) -> tuple[Integers, Floats, Floats]:
    """Every m, and the regret there as a share: by the estimate, and at most, both of shape [sizes].

    Parameters
    ----------
    dispatcher
        A dispatcher that was measured.
    kernels
        Its kernels.
    """
    points, glances = ({each.m: each for each in held} for held in (dispatcher.points, dispatcher.glances))
    known = gathered(points, Known.of(glances, len(kernels), told="glanced"), len(kernels))
    times = steady_times(Grid.of(kernels, dispatcher.most_rows, dispatcher.named), known)
    choice = choice_of(dispatcher.stretches, len(kernels), times.sizes)
    estimate = times.regret[choice, np.arange(len(times.sizes))]
    return times.sizes, np.expm1(estimate), np.expm1(np.minimum(times.bound(choice), _MOST))


def candidates(kernels: Kernels, models: Models, options: DispatchOptions) -> Kernels:
    """The most promising of some kernels, of each template by its model; the first of them without one."""
    first, *others = dict.fromkeys(kernels.templates)
    found = [
        _candidates(kernels, template, models, options.candidates if template is first else options.others, options)
        for template in (first, *others)
    ]
    return reduce(Kernels.and_others, found)


def _candidates(
    kernels: Kernels, template: KernelTemplate, models: Models, count: int, options: DispatchOptions
) -> Kernels:
    """The candidates of one template."""
    mine = kernels.take([number for number, each in enumerate(kernels.templates) if each is template])
    if template.name not in models or count >= len(mine) or not count:
        return mine.take(range(min(len(mine), count)))
    return promising(mine, models, options.most_rows, count)


class _Builder:
    """Builds a dispatcher step by step: what was measured so far, which kernels are kept by it, and what is next.

    Parameters
    ----------
    source, options, watch
        As of `measure_dispatcher`.
    """

    def __init__(self, source: Source, options: DispatchOptions, watch: Watch) -> None:
        self._started = time.monotonic()
        self._source, self._options, self._watch = source, options, watch
        self._grid = Grid.of(source.kernels, options.most_rows, source.named)
        self._points: dict[int, Point] = {}
        self._fine = fine_sizes(options.most_rows, self._grid.library)
        sizes = {*glanced_sizes(options.most_rows), *self._fine, *self._grid.sizes[thinned(self._grid.sizes)].tolist()}
        self._looked = Looked(source, self._grid, sizes, self._points)
        self._choices: list[Kept] = []
        self._kept: tuple[int, ...] = ()

    @property
    def anywhere(self) -> bool:
        """Whether any m can be measured, and glanced at."""
        return self._source.sizes is None

    def explore(self) -> None:
        """Time all candidates at a few m, and race the fastest of them there."""
        candidates = list(range(len(self._source.kernels)))
        for m in _explored(self._options, self._grid.corners(), self._source.sizes):
            if len(self._points) >= 2 and self._over(self._options.exploring):
                break
            self._measure(m, _worth_exploring(self._grid, self._points, m) if self._points else candidates)

    def choose(self) -> None:
        """Choose the kernels to keep, by glances at all candidates; those that may be kept are glanced at once more."""
        options, looked = self._options, self._looked
        sizes, share = glanced_sizes(options.most_rows), options.exploring + options.glancing
        looked.glance(_right(range(looked.count), self._points), sizes, self._until(share))
        listed = _right(shortlist(looked.times(), _LISTED * options.kernels), self._points)
        looked.glance(listed, sizes, self._until(share + options.again / 2))
        self._keep_best(self._until(share + options.again))
        self._check_any()
        told = len(self._kept), looked.count, len(self._points), len(looked.found)
        _LOG.info("%d of %d kernels are kept, after %d sizes and glances at %d", *told)

    def _check_any(self) -> None:
        """Refuse to go on where candidates failed and none has a time: the library would serve, and nobody hear why."""
        reasons = [reason for point in self._points.values() for reason in point.failed.values()]
        known = (*self._points.values(), *self._looked.found.values())
        if reasons and not any(point.ratios or point.slower for point in known):
            kernels = number_of(self._looked.count, "kernel")
            raise SpaceError(f"none of {kernels} to choose among works: {one_line(reasons[0])}")

    def choose_again(self) -> None:
        """Choose once more, by what races told of glances, and glance closely at the kernels that are kept."""
        options = self._options
        self._keep_best(self._until(options.racing + options.again / 2))
        self._looked.glance(self._kept, self._fine, self._until(options.looking), _CLOSE)

    def race(self, share: float) -> None:
        """Race the kernels that are kept in range after range, and then where it is in doubt which is the fastest.

        A race of others, from before these were chosen, tells nothing of them: its range has another, if that can be.

        Parameters
        ----------
        share
            Of the time, at which it ends.
        """
        tried: set[int] = set()
        while not self._over(share):
            self._drop_failed()
            times, found, choice = self._planned()
            m = self._next_race(times, found, choice, tried)
            if m is None:
                break
            tried.add(m)
            self._check(m, [self._kept[number] for number in worth_timing(times, m)])

    def prove(self) -> None:
        """Race each kernel against the library alone at the m that it is to serve, until the time is over.

        Those are first that were not timed at a measured m: only other m tell of them. At one such m the kernel took
        1.14 of the time of ``torch.mm`` (35840x5120, H100, 2026-11-27, `experiments/results/dispatchers.md`).
        """
        proven: set[tuple[int, int]] = set()
        while not self._over(1.0):
            self._drop_failed()
            _, _, choice = self._planned()
            first = [each for each in untimed(self._points, self._kept, choice) if each not in proven]
            left = first or [each for each in timed(self._points, self._kept, choice) if each not in proven]
            if not left:
                break
            for m, number in left:
                if not self._over(1.0):
                    proven.add((m, number))
                    self._check(m, [number])

    def settled(self) -> Dispatcher:
        """The dispatcher of what was measured, with the kernels that serve anything alone."""
        self._drop_failed()
        kept = self._kept
        found, choice = self._ranges(where_timed(self._times(promised=True), self._points, kept))
        times = self._times(promised=False)
        served = times.regret[choice, np.arange(len(times.sizes))]
        rows = [kept[number] for number in used(found)]
        points = [self._points[m] for m in sorted(self._points)]
        glances = corrected_points(tuple(self._looked.found.values()), points, self._looked.count)
        return replace(
            _dispatcher(self._source.kernels.take(kept), found, self._choices, self._options),
            points=tuple(point.only(rows) for point in points),
            glances=tuple(glance.only(rows) for glance in glances),
            named=self._source.named,
            regret=Regrets.of(served, times.sizes),
            bound=Regrets.of(np.minimum(times.bound(choice), _MOST), times.sizes),
        )

    def _until(self, share: float) -> float:
        """When a share of the time is over."""
        seconds = self._options.seconds
        return math.inf if seconds is None else self._started + share * seconds

    def _over(self, share: float) -> bool:
        return time.monotonic() > self._until(share)

    def _keep(self, found: Point) -> None:
        before = self._points.get(found.m)
        self._points[found.m] = found if before is None else before.joined(found)
        self._watch(found)

    def _measure(self, m: int, numbers: Sequence[int]) -> None:
        self._keep(self._source.at(m, numbers, race=True))

    def _check(self, m: int, numbers: Sequence[int]) -> None:
        """Race the fastest of some kernels at m; where a source has no glances, measure all of them."""
        try:
            checked = self._source.check(m, numbers)
        except CannotMeasureError as error:
            _LOG.warning("no race at %d rows: %s", m, one_line(error))
            checked = None
        if checked is None:
            self._measure(m, numbers)
            return
        glance, found = checked
        self._looked.add(glance)
        self._keep(found)

    def _keep_best(self, end: float) -> None:
        """Keep the kernels that glances at all candidates, as races have corrected them, tell to be the best.

        Those are glanced at until `end`, too, short launches first: few rows have the largest cliffs of the library's,
        and they cost little.
        """
        options, times = self._options, self._looked.times()
        self._choices = choose_kernels(_without(times, _failed(self._points)), options.kernels, options.enough)
        self._kept = self._choices[-1].kernels
        self._looked.glance(self._kept, short_first(glanced_sizes(options.most_rows), times), end)

    def _drop_failed(self) -> None:
        """Keep those that failed nowhere; where none is left, the best of all others, without another glance."""
        self._kept = _right(self._kept, self._points)
        if not self._kept:
            self._keep_best(self._started)
            self._kept = _right(self._kept, self._points)

    def _known(self, promised: bool) -> Known:
        """All that is known of the kernels that are kept; see `Known.of`."""
        return self._looked.gathered(promised).take(self._kept)

    def _planned(self) -> tuple[Times, list[Stretch], Integers]:
        """The times at every m that the kernels are proven to have, the ranges by these, and which serves each."""
        times = self._times(promised=True)
        return times, *self._ranges(times)

    def _times(self, promised: bool) -> Times:
        """The times at every m of the kernels that are kept; see `Known.of`."""
        return steady_times(self._grid.take(self._kept), self._known(promised))

    def _ranges(self, times: Times) -> tuple[list[Stretch], Integers]:
        """The ranges by some times, and which kernel serves each m."""
        found = stretches(times, self._options.tolerance, self._options.caution)
        return found, choice_of(found, len(self._kept), times.sizes)

    def _next_race(self, times: Times, found: Sequence[Stretch], choice: Integers, tried: Set[int]) -> int | None:
        """The m to race at next; None if none is left that is worth it."""
        points, kept, allowed = self._points, self._kept, self._source.sizes
        if self.anywhere:
            seen = {m for m, point in points.items() if point.told.keys() & {*kept}}
        else:
            seen = {m for m, point in points.items() if is_timed(point, kept, int(choice[m - 1]))}
        seen |= {*tried, min(points), max(points)}
        m = unseen_size(found, seen) if self.anywhere else None
        if m is None:
            known = seen | self._looked.found.keys()
            m = next_size(times, choice, known, self._options.enough, allowed, self._options.caution)
        return unseen_size(found, seen, allowed) if m is None else m


def _explored(options: DispatchOptions, corners: Sequence[int], known: Set[int] | None) -> list[int]:
    """The m at which all candidates are timed, so that any first part of them is spread over all sizes.

    Where there are no glances, they are timed at the first and the last m that each is legal for, too.
    """
    ends = sorted({*corners} - {1, options.most_rows}) if known is not None else []
    inner = [m for m in probes(options.most_rows, options.explored) if m not in {1, options.most_rows, *ends}]
    wanted = [1, options.most_rows, *ends, *spread(inner)]
    if known is None:
        return list(dict.fromkeys(wanted))  # of one row the first is the last
    there = np.array(sorted(m for m in known if m <= options.most_rows))
    if len(there) == 0:
        raise SpaceError(f"nothing was recorded of 1 to {options.most_rows} rows")
    return list(dict.fromkeys(int(there[np.abs(np.log(there / m)).argmin()]) for m in wanted))


def _worth_exploring(grid: Grid, points: Mapping[int, Point], m: int) -> list[int]:
    """The kernels that may be the fastest at m, the one that is expected to be first; those after it may be pruned.

    All that are legal are, until both ends are known. Of one that was never timed nothing is expected.
    """
    known = Known.of(points, len(grid.legal), told="timed")
    sizes = np.union1d(known.sizes, [m])
    expected = steady_times(grid.at(sizes), known).mean[:-1, np.searchsorted(sizes, m)]
    ordered = [int(row) for row in np.argsort(expected, kind="stable")]
    if not min(points) <= m <= max(points):
        return ordered
    far = expected.min() + np.log1p(_FAR)
    return [row for row in ordered if not (far < expected[row] < np.inf)]


def _failed(points: Mapping[int, Point]) -> set[int]:
    """The kernels that failed anywhere: one that was wrong at one m serves no other."""
    return {number for point in points.values() for number in point.failed}


def _right(kept: Sequence[int], points: Mapping[int, Point]) -> tuple[int, ...]:
    """Those of some kernels that failed nowhere."""
    failed = _failed(points)
    return tuple(number for number in kept if number not in failed)


def _without(times: Times, rows: Iterable[int]) -> Times:
    """Times in which some rows serve nothing."""
    mean, low, high = (each.copy() for each in (times.mean, times.low, times.high))
    for each in (mean, low, high):
        each[list(rows)] = np.inf
    return Times(times.sizes, mean, low, high)


def _dispatcher(
    kernels: Kernels, found: Sequence[Stretch], choices: Sequence[Kept], options: DispatchOptions
) -> Dispatcher:
    numbers = used(found)
    serving = kernels.take(numbers)
    at: dict[int | None, int | None] = {None: None, **{number: place for place, number in enumerate(numbers)}}
    return Dispatcher(
        problem=kernels.at(1),
        most_rows=options.most_rows,
        space="",
        hashes={each.name: each.source_hash for each in serving.templates},
        device=kernels.device.name,
        kernels=tuple(serving.configurations),
        spaces=tuple(each.name for each in serving.templates),
        stretches=tuple(replace(each, kernel=at[each.kernel]) for each in found),
        measured_by="",
        counts=tuple(Count(len(each.kernels), each.regret.mean, each.regret.worst) for each in choices),
    )
