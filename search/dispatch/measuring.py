"""Measure kernels at one m after the other, by an engine."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from statistics import median

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.dispatch.building import DispatchOptions
from tilescout.search.dispatch.dispatcher import Dispatcher
from tilescout.search.dispatch.glances import spread
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.dispatch.plan import worth_racing
from tilescout.search.dispatch.points import Point, Ratio, slowest
from tilescout.search.dispatch.steps import LibraryKernels
from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions, Task
from tilescout.search.engines.library_candidates import fastest_candidate, known_or_why, library_of
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.measurement import Status
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.errors import SpaceError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import KernelTemplate

_LOG = logging.getLogger(__name__)

ROUNDS = 6
"""Of a race at one m: a heat of the race at the end of a search."""

_GLANCES, _OF_MANY = 4, 2  # rounds of a glance, and of one at many kernels, of which it tells a few to look at again
_MANY = 12
_ASKED = 2048  # problems that the library is asked about together: that takes half a second
_CHECKED = 3  # kernels that race after a glance
_BESIDE = 0.05  # of the time of a dispatcher goes to the library's best
_GPU = 0  # the one of the engine that measures

# A card that waited for a tenth of a second, while a problem is set up, is not back at its power cap after 65 ms: the
# library's time was at 0.93 of what it came to beyond 5,000 rows of 5120x5120 (H200, 2026-11-23).
_SETTLING_US = 150_000.0
_WAITED_US = 30_000.0  # of a race, from its beginning, are taken to be those of a card that waited
_COUNTED_US = 15_000.0  # at the power cap, at least: a few rounds of one kernel are over before the clock moves
# So much longer than the library's a kernel's time may be on a card that waited. At the power cap kernels of 3584x3584
# lead by 4 % beyond 8,000 rows; where the first 7 ms after a wait counted, too, they were behind (H200, 2026-11-23).
_RESTED = 0.01


def settling_rounds(library_us: float, racers: int) -> int:
    """Rounds of a race until the device is at its power cap; launches that are short never reach it."""
    if library_us < ProtocolOptions.single_us:
        return 0
    return math.ceil(_SETTLING_US / (2 * racers * library_us))


def _lengths(library_us: float, racers: int) -> tuple[int, int, int]:
    """Rounds of a race until the device settles, of its beginning that count, and of its end."""
    settling = settling_rounds(library_us, racers)
    if not settling:
        return 0, ROUNDS, ROUNDS
    waited, counted = (max(ROUNDS, math.ceil(each / (2 * racers * library_us))) for each in (_WAITED_US, _COUNTED_US))
    return settling, waited, counted


SWEEPING = LiveOptions(protocol=replace(ProtocolOptions(), heating_us=40_000.0, few_pairs=10))
"""As always, but the library heats the device for less before its steady time is taken: it never cools in a sweep. Long
launches have fewer pairs, as those of the best race after it."""


class Sweep:
    """Measures kernels on problems that differ only in m. All of them are compiled ahead, each once.

    Parameters
    ----------
    engine
        Compiles and measures; it is not closed here.
    kernels
        The candidates, most promising first: a kernel that is clearly slower than those before it is given up early.
    beside
        Engines beside it that compile the kernels of other templates, as `Engine.beside` makes them.
    most_rows
        The library is asked for the kernels that it names up to so many rows, while others are compiled.
    """

    sizes = None  #: any m can be measured

    def __init__(self, engine: Engine, kernels: Kernels, beside: Sequence[Engine] = (), most_rows: int = 0) -> None:
        self._engine, self.kernels = engine, kernels
        signature = kernels.problem.signature
        engines = {each.template.name: each for each in (*beside, engine)}
        self._compiling: Sequence[Future[Artifact | CompileFailure]] = [
            engines[template.name].compile(configuration, signature)
            for template, configuration in zip(kernels.templates, kernels.configurations, strict=True)
        ]

        self._library = library_of(engine.template)
        self._naming = [] if self._library is None else self._ask(self._library, most_rows)

    def _ask(self, library: KernelTemplate, most_rows: int) -> "list[Future[list[Sequence[int | str]]]]":
        problems = [self.kernels.at(m) for m in range(1, most_rows + 1)]
        parts = [problems[at : at + _ASKED] for at in range(0, most_rows, _ASKED)]
        return [self._engine.named(_GPU, library, part) for part in parts]

    @cached_property
    def named(self) -> LibraryKernels | None:
        """The kernels that the library names; None if it was not asked, or could not tell."""
        if self._library is None or not self._naming:
            return None
        try:
            return LibraryKernels.of(self._library, [row for part in self._naming for row in part.result()])
        except (CannotMeasureError, SpaceError) as error:
            _LOG.warning("nothing is known of where the library runs another kernel: %s", one_line(error))
            return None

    def wait(self) -> "Sweep":
        """The same, once all kernels are compiled."""
        for number in range(len(self.kernels)):
            self._built(number)
        return self

    def at(self, m: int, numbers: Sequence[int], race: bool = False) -> Point:
        """The times of the library and of some kernels at m; those that are not legal there are left out.

        Parameters
        ----------
        m, numbers
            Rows, and the kernels' numbers.
        race
            Whether those near the best are told apart by a race, as at the end of a search: where kernels were
            timed one by one, those of large products took up to 8 % less over the library's time than in a race. What
            the race tells of these, in the median, is then true of the others.

        Raises
        ------
        DeviceError
            If the GPU is lost, or the problem can't be set up.
        """
        started = time.monotonic()
        problem, legal = self.kernels.at(m), self.kernels.legal(m)
        library_us = self._engine.prepare(_GPU, problem).result()
        failed: dict[int, str] = {}
        tasks: dict[int, Task] = {}
        for number in numbers:
            if not legal[number]:
                continue
            built = self._built(number)
            if isinstance(built, CompileFailure):
                failed[number] = built.error
            else:
                tasks[number] = self._task(number, built, problem, library_us, math.inf)
        measured = self._engine.measure(_GPU, list(tasks.values())).result() if tasks else []
        ratios: dict[int, Ratio] = {}
        slower: dict[int, float] = {}
        for number, outcome in zip(tasks, measured, strict=True):
            if outcome.timing is not None:
                timing = outcome.timing
                ratios[number] = Ratio(timing.ratio, timing.ratio_low, timing.ratio_high)
            elif outcome.status is Status.PRUNED and outcome.pilot_us is not None:
                slower[number] = outcome.pilot_us / library_us
            else:
                failed[number] = outcome.error
        point = Point(m, library_us, ratios, slower, failed)
        if race and (racing := worth_racing(point, numbers)):
            raced = self._raced(point, racing)
            point = replace(point, ratios=_as_raced(ratios, raced), raced=tuple(sorted(raced)))
        return replace(point, seconds=time.monotonic() - started)

    def _raced(self, point: Point, numbers: Sequence[int]) -> dict[int, Ratio]:
        """The ratios of some kernels by a race; none if one of them took the measuring process down.

        What counts is a device at its power cap, as one is that a model keeps busy. A kernel that leads there, but is
        behind on one that rested, is taken to be behind on both: see `_RESTED`.
        """
        try:
            rested, settled = self.race(point, numbers, point.m)
        except CannotMeasureError as error:
            _LOG.warning("%s is not raced: %s", self.kernels.at(point.m), one_line(error))
            return {}
        found = {}
        for at, number in enumerate(numbers):
            first, last = (Ratio(*mean_interval(rounds[:, at].tolist())) for rounds in (rested, settled))
            leads = last.value < 1 and first.value > 1 + _RESTED
            found[number] = slowest([first, last]) if leads else last
        return found

    def glance(self, m: int, numbers: Sequence[int]) -> Point | None:
        """Look at kernels at m, roughly, and verify nothing: they were right at other m. None if none is legal there.

        Raises
        ------
        CannotMeasureError
            If the engine has no such, or one of the kernels took the measuring process down.
        """
        return next(iter(self.glances({m: numbers}, _GLANCES if len(numbers) <= _MANY else _OF_MANY)), None)

    def glances(self, asked: Mapping[int, Sequence[int]], rounds: int = _OF_MANY) -> list[Point]:
        """Look at kernels at some m, as `glance` does, without a pause: a device that rested takes long to settle.

        Parameters
        ----------
        asked
            The kernels to look at by their m.
        rounds
            Of each.

        Raises
        ------
        CannotMeasureError
            If the engine has no such, or one of the kernels took the measuring process down.
        """
        started = time.monotonic()
        shown = {m: self._runnable(m, numbers) for m, numbers in asked.items()}
        # The largest comes first: its memory serves all others.
        sizes = sorted((m for m, numbers in shown.items() if numbers), reverse=True)
        if not sizes:
            return []
        groups = [self._tasks(self.kernels.at(m), shown[m], 1.0) for m in sizes]
        found = self._engine.glances(_GPU, groups, rounds, sizes[0]).result()
        seconds = (time.monotonic() - started) / len(sizes)
        points = []
        for m, (library_us, ratios) in zip(sizes, found, strict=True):
            middle = np.exp(np.median(np.log(ratios), axis=0)).tolist()
            told = {number: Ratio(each, each, each) for number, each in zip(shown[m], middle, strict=True)}
            points.append(Point(m, library_us, told, seconds=seconds))
        return points

    def _runnable(self, m: int, numbers: Sequence[int]) -> list[int]:
        """Those of some kernels that are legal at m, and compiled."""
        legal = self.kernels.legal(m)
        return [number for number in numbers if legal[number] and isinstance(self._built(number), Artifact)]

    def check(self, m: int, numbers: Sequence[int]) -> tuple[Point, Point] | None:
        """A glance at kernels that were right at other m, and a race of the fastest of them; None if none is legal.

        That takes a sixth to a half of what `at` does, which verifies each and times it alone.

        Raises
        ------
        CannotMeasureError
            If one of the kernels took the measuring process down in the glance.
        """
        glance = self.glance(m, numbers)
        if glance is None:
            return None
        started = time.monotonic()
        fastest = sorted(glance.ratios, key=lambda number: glance.ratios[number].value)[:_CHECKED]
        raced = replace(glance, ratios=self._raced(glance, fastest))
        return glance, replace(raced, seconds=glance.seconds + time.monotonic() - started)

    def race(self, point: Point, numbers: Sequence[int], seed: int) -> tuple[Floats, Floats]:
        """Race kernels that were right at a point's m, in interleaved rounds.

        Returns
        -------
        rested, settled
            Times over the library's in the first rounds, when the device has waited, and in the last, when large
            products have brought it to its power cap; both of shape [rounds, numbers]. Of short launches they are the
            same rounds. Of long ones both take as long with few kernels as with many.

        Raises
        ------
        CannotMeasureError
            If one of the kernels took the measuring process down.
        """
        settling, waited, counted = _lengths(point.library_us, len(numbers))
        rounds = self._rounds(point, numbers, settling + counted, seed)
        return rounds[:waited], rounds[-counted:]

    def over_library_best(self, m: int, number: int | None) -> float | None:
        """The time of a kernel that is right at m, or of the library, over that of the library's best candidate there.

        By the rounds of one race, on a device at its power cap. None if the library has no list of candidates.

        Raises
        ------
        CannotMeasureError, SpaceError, DeviceError
            If it is not known.
        """
        problem = self.kernels.at(m)
        library_us = self._engine.prepare(_GPU, problem).result()
        best = fastest_candidate(self._engine, _GPU, problem, library_us)
        if best is None:
            return None
        tasks = [best.task, *self._tasks(problem, [] if number is None else [number], library_us)]
        settling, _, counted = _lengths(library_us, len(tasks))
        rounds = self._engine.race(_GPU, tasks, settling + counted, 1, m).result()[-counted:]
        over = rounds[:, -1] / rounds[:, 0] if number is not None else 1 / rounds[:, 0]
        return mean_interval(over.tolist())[0]

    def _rounds(self, point: Point, numbers: Sequence[int], rounds: int, seed: int) -> Floats:
        """Times over the library's of shape [rounds, numbers]."""
        tasks = self._tasks(self.kernels.at(point.m), numbers, point.library_us)
        return self._engine.race(_GPU, tasks, rounds, 1, seed).result()

    def _tasks(self, problem: GemmProblem, numbers: Sequence[int], library_us: float) -> list[Task]:
        """The tasks of measuring kernels again that were right before."""
        tasks = []
        for number in numbers:
            built = self._built(number)
            assert isinstance(built, Artifact), "it ran before, or was asked for"
            tasks.append(self._task(number, built, problem, library_us))
        return tasks

    def _built(self, number: int) -> Artifact | CompileFailure:
        return self._compiling[number].result()

    def _task(
        self, number: int, built: Artifact, problem: GemmProblem, library_us: float, incumbent: float | None = None
    ) -> Task:
        template = self.kernels.templates[number]
        return Task(self.kernels.configurations[number], built, problem, library_us, incumbent, template)


def _as_raced(ratios: Mapping[int, Ratio], raced: Mapping[int, Ratio]) -> dict[int, Ratio]:
    """The ratios of kernels that were timed one by one, as if all had raced as some of them did."""
    if not raced:
        return dict(ratios)
    off = math.exp(median(math.log(each.value / ratios[number].value) for number, each in raced.items()))
    return {**{number: each.times(off) for number, each in ratios.items()}, **raced}


def measure_beside_library(
    sweep: Sweep,
    options: DispatchOptions,
    build: Callable[[DispatchOptions], Dispatcher],
) -> Dispatcher:
    """A dispatcher of what a sweep measures, whose answers have raced the library's best, at one m or more.

    Parameters
    ----------
    sweep
        Measures.
    options
        Their time is for both: the races have the last twentieth of it.
    build
        Makes the dispatcher of the sweep, as `tilescout.search.dispatch.building.measure_dispatcher` does.
    """
    seconds = options.seconds
    found = build(replace(options, seconds=None if seconds is None else (1 - _BESIDE) * seconds))
    end = None if seconds is None else time.monotonic() + _BESIDE * seconds
    known = zip((each.name for each in sweep.kernels.templates), sweep.kernels.configurations, strict=True)
    numbers = {kernel: number for number, kernel in enumerate(known)}
    serving = [numbers[kernel] for kernel in zip(found.spaces, found.kernels, strict=True)]
    ratios, unknown = dict[int, float](), ""
    for m in spread([point.m for point in found.points if found.over_library(point) is not None]):
        serves = found.find(m)
        race = partial(sweep.over_library_best, m, None if serves is None else serving[serves])
        ratio, unknown = known_or_why(race)
        if ratio is None:
            break
        ratios[m] = ratio
        if end is not None and time.monotonic() > end:
            break
    return replace(found, over_library_best=dict(sorted(ratios.items())), no_library_best=unknown)
