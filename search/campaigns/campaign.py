"""Campaigns: measure a plan on all GPUs of an engine. One may be interrupted at any moment, and resumed."""

import logging
import math
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.campaigns.finals import Final, race_final
from tilescout.search.campaigns.lanes import Lane, Work, next_work
from tilescout.search.campaigns.plan import Plan
from tilescout.search.campaigns.records import Record, check_header, header, read_records
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.engines.library_candidates import Candidate, fastest_candidate
from tilescout.search.engines.races import Racetrack
from tilescout.search.measure.library_best import BESIDE, LibraryBest
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.journal import Journal
from tilescout.spaces.errors import DeviceError, SpaceError
from tilescout.spaces.problems import Problem

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class CampaignOptions:
    """The options of a campaign.

    Attributes
    ----------
    prune
        A configuration whose pilot is this many times slower than the best one known for its problem is not timed
        further; None times all in full.
    race
        The options of the races in which the fastest rows of each problem are measured anew.
    finals
        Races of a problem at most: they go on until the fastest row is one that was raced. None at all if 0.
    batch
        Tasks that a GPU is given at a time.
    worthwhile
        While more is compiled, a GPU turns to another problem only if so many compiled configurations wait for it:
        setting a problem up takes a second, measuring a configuration some milliseconds.
    compile_first
        Whether measuring waits until all is compiled. A loaded host disturbs pilots, and makes all else take longer:
        with 60 compilers beside four H200s, 15 of 4,502 pilots of good configurations were off by more than 30 %; with
        fewer compilers, none of 2,730.
    seed
        The seed of the order of compiling, and of the races.
    """

    prune: float | None = 2.0
    race: RaceOptions = field(default_factory=RaceOptions)
    finals: int = 4
    batch: int = 16
    worthwhile: int = 64
    compile_first: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """How far a campaign is: `rows` of `total` measured, `races` run, kernels still `compiling`, and its GPUs."""

    rows: int
    total: int
    races: int
    compiling: int
    gpus: int


class Campaign:
    """Measures every configuration of a plan on every problem for which it is legal, once.

    Every outcome is in the journal as soon as it is known. A GPU stays with a problem while compiled configurations
    wait for it, and then turns to the one for which the most wait. When all rows of a problem are measured, its fastest
    ones race, if the engine can measure anew. When a GPU is lost, others measure what it was given. When the last one
    is lost, the campaign ends with that error, and can be resumed.

    Parameters
    ----------
    engine
        Compiles and measures.
    plan
        The configurations and problems to be measured.
    journal
        Holds what is known already; outcomes are added to it.
    options
        See `CampaignOptions`.
    on_progress
        Called after every few outcomes.

    Attributes
    ----------
    rows
        The measurements, by the numbers of problem and configuration in the plan.
    library_us
        The library's steady time on every problem, in µs.
    finals
        The races, by the number of the problem.

    Raises
    ------
    StoreError
        If the journal is of another plan, or of another engine, or damaged.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        journal: Journal,
        options: CampaignOptions,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.engine, self.plan, self.journal, self.options = engine, plan, journal, options
        self._on_progress = on_progress
        ours = header(engine, plan, options.prune)
        check_header(journal, ours)
        if not journal.earlier:
            journal.append([ours])
        self.rows, self.library_us, self.finals = read_records(journal, plan)
        # A pass over all rows for each of many problems takes minutes.
        self._rows_of: list[dict[int, Measurement]] = [{} for _ in plan.problems]
        for (problem, configuration), outcome in self.rows.items():
            self._rows_of[problem][configuration] = outcome
        self._events: queue.SimpleQueue[Callable[[], list[Record]]] = queue.SimpleQueue()
        self._lanes = [Lane(gpu) for gpu in range(engine.gpus)]
        self._works = [self._open(number) for number in range(len(plan.problems))]
        self._compiling = 0
        self._racers = ThreadPoolExecutor(max(1, engine.gpus), "race")

    def run(self) -> None:
        """Measure what is missing.

        Raises
        ------
        DeviceError
            If the last GPU is lost, or a problem can't be set up.
        StoreError
            If the journal or the artifact store can't be written.
        """
        self._compile()
        self._tell()
        try:
            while not self._done():
                self._feed()
                if self._hear() or self._compiling:
                    self._tell()
        finally:
            self._racers.shutdown(wait=False, cancel_futures=True)

    def _hear(self) -> bool:
        """Wait for outcomes, and write those that are there; whether there were any.

        They are taken in the order in which they came, and written together. Where one ends the campaign, those that
        came before it are written nevertheless.
        """
        records: list[Record] = []
        try:
            records += self._events.get()()
            while not self._events.empty():
                records += self._events.get()()
        finally:
            if records:
                self.journal.append(records)
        return bool(records)

    def library_best(self, number: int) -> LibraryBest | None:
        """The library's best candidate on a problem, as it raced or as it was recorded; None if it is not known."""
        final = self.finals.get(number)
        return final.library_best if final else self.engine.recorded_library_best(self.plan.problems[number])

    def _open(self, number: int) -> Work:
        """The work on a problem that the journal does not have yet."""
        measured = self._rows_of[number]
        ratios = [outcome.timing.ratio for outcome in measured.values() if outcome.timing is not None]
        return Work(
            number=number,
            problem=self.plan.problems[number],
            left=int(self.plan.legal[number].sum()) - len(measured),
            library_us=self.library_us.get(number),
            incumbent=min(ratios, default=math.inf),
            final=self.finals.get(number),
        )

    def _compile(self) -> None:
        """Ask for every configuration that is still to be measured: the defaults first, the rest in random order."""
        missing = self.plan.legal.copy()
        for number, configuration in self.rows:
            missing[number, configuration] = False
        wanted = np.flatnonzero(missing.any(axis=0))
        first = wanted[: len(self.plan.problems)]
        order = [*first, *np.random.default_rng(self.options.seed).permutation(wanted[len(first) :])]
        signatures = list(dict.fromkeys(problem.signature for problem in self.plan.problems))
        for number in map(int, order):
            for signature in signatures:
                works = [w for w in self._works if w.problem.signature == signature and missing[w.number, number]]
                if works:
                    self._compiling += 1
                    built = self.engine.compile(self.plan.configurations[number], signature)
                    self._heed(built, partial(self._compiled, number, works))

    def _done(self) -> bool:
        return all(
            work.left == 0 and work.library_us is not None and not self._to_race(work) and not work.racing
            for work in self._works
        )

    def _to_race(self, work: Work) -> bool:
        return self.engine.measures_anew and work.left == 0 and work.final is None and not work.racing

    def _without_library(self) -> Work | None:
        """A problem without a kernel that compiles: a table holds the library's time on it nevertheless."""
        return next((w for w in self._works if w.left == 0 and w.library_us is None and not w.preparing), None)

    def _tell(self) -> None:
        gpus = sum(not lane.lost for lane in self._lanes)
        self._on_progress(Progress(len(self.rows), self.plan.rows, len(self.finals), self._compiling, gpus))

    def _heed(self, future: "Future[Any]", act: "Callable[[Future[Any]], list[Record]]") -> None:
        """Have the loop act on a future when it is settled; an error that acting raises ends the campaign."""
        future.add_done_callback(lambda settled: self._events.put(partial(act, settled)))

    def _compiled(
        self, number: int, works: Sequence[Work], future: "Future[Artifact | CompileFailure]"
    ) -> list[Record]:
        self._compiling -= 1
        built = future.result()
        if isinstance(built, Artifact):
            for work in works:
                work.ready.append((number, built))
            return []
        return [self._keep(work, number, Measurement.of_failure(built)) for work in works]

    def _keep(self, work: Work, number: int, outcome: Measurement) -> Record:
        self.rows[work.number, number] = self._rows_of[work.number][number] = outcome
        work.left -= 1
        if outcome.timing is not None:
            work.incumbent = min(work.incumbent, outcome.timing.ratio)
        return Record.row(work.number, number, outcome)

    def _feed(self) -> None:
        """Give every GPU that has room its next batch, problem or race."""
        if self.options.compile_first and self._compiling:
            return
        for lane in self._lanes:
            while not lane.lost and not lane.racing and lane.in_flight < 2:
                if (final := next(filter(self._to_race, self._works), None)) is not None:
                    if not lane.in_flight:
                        self._start_final(lane, final)
                    break  # it races once it has finished its batches
                least = self.options.worthwhile if self._compiling else 1
                work = next_work(lane, self._lanes, self._works, least) or self._without_library()
                if work is None:
                    break
                lane.work = work
                lane.in_flight += 1
                if work.library_us is None:
                    work.preparing = True
                    self._heed(self.engine.prepare(lane.gpu, work.problem), partial(self._prepared, lane, work))
                    continue
                batch = [work.ready.popleft() for _ in range(min(self.options.batch, len(work.ready)))]
                tasks = [self._task(work, number, artifact) for number, artifact in batch]
                self._heed(self.engine.measure(lane.gpu, tasks), partial(self._measured, lane, work, batch))

    def _task(self, work: Work, number: int, artifact: Artifact) -> Task:
        assert work.library_us is not None
        incumbent = None if self.options.prune is None else work.incumbent
        return Task(self.plan.configurations[number], artifact, work.problem, work.library_us, incumbent)

    def _prepared(self, lane: Lane, work: Work, future: "Future[float]") -> list[Record]:
        lane.in_flight -= 1
        work.preparing = False
        try:
            work.library_us = future.result()
        except (DeviceError, CancelledError) as error:
            self._retire(lane, error)
            return []
        self.library_us[work.number] = work.library_us
        return [Record.library(work.number, work.library_us)]

    def _measured(
        self,
        lane: Lane,
        work: Work,
        batch: Sequence[tuple[int, Artifact]],
        future: "Future[list[Measurement]]",
    ) -> list[Record]:
        lane.in_flight -= 1
        try:
            measured = future.result()
        except (DeviceError, CancelledError) as error:
            self._retire(lane, error)
            work.ready.extend(batch)
            return []
        return [self._keep(work, number, outcome) for (number, _), outcome in zip(batch, measured, strict=True)]

    def _retire(self, lane: Lane, error: BaseException) -> None:
        """Go on without a GPU; the last one's error is raised."""
        lane.lost = True
        if all(each.lost for each in self._lanes):
            raise error
        _LOG.warning("going on without GPU %d: %s", lane.gpu, error)

    def _start_final(self, lane: Lane, work: Work) -> None:
        lane.racing, work.racing, lane.work = True, True, work
        timed = {number: row for number, row in self._rows_of[work.number].items() if row.timing is not None}
        self._heed(self._racers.submit(self._race, lane.gpu, work, timed), partial(self._raced, lane, work))

    def _raced(self, lane: Lane, work: Work, future: "Future[Final]") -> list[Record]:
        lane.racing = work.racing = False
        try:
            final = future.result()
        except DeviceError as error:
            self._retire(lane, error)
            return []
        work.final = self.finals[work.number] = final
        return [Record.final(work.number, final)]

    def _race(self, gpu: int, work: Work, timed: Mapping[int, Measurement]) -> Final:
        """Race the fastest rows of a problem; runs in a thread."""
        if not timed:
            return Final()
        assert work.library_us is not None  # who timed a kernel timed the library
        found = self._library_candidate(gpu, work.problem, work.library_us)
        best, beside = (None, {}) if found is None else (found.best, {BESIDE: found.task})
        track = Racetrack(self.engine, gpu, work.problem, work.library_us, self.plan.configurations, beside)
        options = self.options
        default, race = self._default(work), options.race
        return race_final(
            timed, default, track.measure, race, attempts=options.finals, seed=options.seed, library_best=best
        )

    def _library_candidate(self, gpu: int, problem: Problem, library_us: float) -> Candidate | None:
        """The fastest of the library's own candidates; None if there is none, or it is not known."""
        try:
            return fastest_candidate(self.engine, gpu, problem, library_us)
        except (CannotMeasureError, SpaceError, DeviceError) as error:  # a lost GPU shows in the race
            _LOG.info("the library's best on %s is not known: %s", problem, error)
            return None

    def _default(self, work: Work) -> int | None:
        """The number of the problem's default in the plan; None if it is not legal."""
        default = self.engine.default(work.problem)
        return self.plan.configurations.index(default) if default in self.plan.configurations else None
