"""The search loop: ask the sampler, try what it proposes, tell it the outcome, until the budget ends."""

import math
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from typing import Protocol

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.measure.measurement import Measurement
from tilescout.search.samplers.base import SpaceExhaustedError, distributions
from tilescout.search.samplers.joint import Joint
from tilescout.search.samplers.order import in_order
from tilescout.search.studies.optuna_hooks import queued_parameters
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.sharing import SoleTuner, Tuner
from tilescout.search.studies.trials import (
    PLACE,
    SEEN,
    Count,
    codes,
    damaged,
    give_up,
    joint_search,
    keep_outcome,
    mark,
    place_of,
    record_expected,
    record_outcome,
    was_given,
)
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.tally import Behind, Tally, Told
from tilescout.spaces.errors import MALFORMED, StoreError, TilescoutError


class Loop(Protocol):
    """Asks and tells a study until its budget ends: `search_alone`, or what gives it a part of the budget at a time."""

    def __call__(self, lane: Lane, budget: Budget) -> str | None:
        """Search; see `run`."""


def run(
    study: optuna.Study,
    evaluator: Evaluator,
    budget: Budget,
    library_us: float,
    on_trial: Callable[[TrialRecord], None],
    in_full: Container[int] = (),
    tuner: Tuner | None = None,
) -> str | None:
    """Search until the budget or the space is exhausted, or the sampler stops.

    Parameters
    ----------
    study, evaluator, library_us, on_trial, in_full
        See `Lane`.
    budget
        When to stop.
    tuner
        This process's part in the study; by default it has it to itself.

    Returns
    -------
    str or None
        Why the sampler ended the search; None if it did not.
    """
    tuner = tuner if tuner is not None else SoleTuner(study, evaluator.space)
    return search_alone(Lane(study, evaluator, library_us, on_trial, in_full, tuner), budget)


def search_alone(lane: Lane, budget: Budget) -> str | None:
    """Search one space; see `run`."""
    return run_together([lane], budget)


OnChange = Callable[[Sequence[Joint]], None]
"""Hears how far searches are together, as each study is to see it."""


def run_together(lanes: Sequence[Lane], budget: Budget, on_change: OnChange | None = None) -> str | None:
    """Search several spaces for one problem, within one budget, until all of their samplers would stop; see `run`.

    Until an outcome is known the studies take turns, and so where a sampler can't say what it expects to gain. Then the
    next trial is that of the study that expects to gain the most.

    Parameters
    ----------
    lanes
        A study a space.
    budget
        When to stop, of all together.
    on_change
        Called whenever something of what it hears changes; None spares the counting.
    """
    return _Loop(lanes, budget, on_change).run()


class _Loop:
    """The state of a search; see `run_together`."""

    def __init__(self, lanes: Sequence[Lane], budget: Budget, on_change: OnChange | None) -> None:
        self._lanes, self._budget, self._on_change = lanes, budget, on_change
        self._knobs = [distributions(lane.space) for lane in lanes]
        self._tallies = [Tally() for _ in lanes]
        self._expected_us: float | None = None
        self._behind = Behind()
        self._place = 0  # the last that is known, see `PLACE`
        self._search = joint_search(lane.study for lane in lanes) if len(lanes) > 1 else None  # see `Count`
        self._compiled = set[tuple[int, int]]()  # by the numbers of lanes, the kernels of the same
        self._started = time.monotonic()
        self._exhausted: set[int] = set()  # lanes
        self._in_flight: dict[tuple[int, int], optuna.Trial] = {}  # by lane and index, in the order of the proposals
        self._late: dict[tuple[int, int], int] = {}  # see `_first`; how many trials had been told at the proposal
        self._asked: dict[tuple[int, int], tuple[FrozenTrial, bool]] = {}  # by lane and number, see `_is_blind`
        self._arrived: dict[tuple[int, int], Measurement] = {}  # outcomes of those that are not told yet
        lookaheads = [lane.sampler.lookahead for lane in lanes if lane.sampler is not None]
        self._lookahead = lookaheads[0] if lookaheads else None
        capacity = min(lane.evaluator.capacity for lane in lanes)
        self._capacity = min(capacity, self._lookahead or capacity)

    def run(self) -> str | None:
        """Search; why the samplers ended it."""
        self._take_account()
        self._changed()
        while True:
            done = self._propose()
            if done is not None and self._late:  # what is told behind others is worth its compiler, and may be the best
                self._hear(next(iter(self._late)))
            elif done is not None and self._in_flight:
                for lane in self._lanes:
                    lane.evaluator.give_up()
                for (at, _), trial in self._in_flight.items():
                    give_up(self._lanes[at].study, trial)
                return done
            elif self._in_flight:
                self._hear(self._first())
            elif done is None and (open_ := [at for at in range(len(self._lanes)) if self._may_ask(at)]):
                self._lanes[open_[0]].tuner.pause()  # what is in flight elsewhere may have to be tried again
            else:
                return done

    def _take_account(self) -> None:
        """Count what the studies have, and show what others have finished since the last look."""
        found = []
        for at, lane in enumerate(self._lanes):
            with self._alone(at):
                for record in lane.look()[0]:
                    lane.on_trial(record)
                lane.finished()
            with self._alone(at):  # where one can't be read, the others count
                records, trials = lane.finished(), lane.study.get_trials(deepcopy=False)
                found += [(trials[record.number], at, record, trials) for record in records]
        for _, at, record, trials in in_order(found, itemgetter(0), itemgetter(1)):
            self._add(at, record, trials)

    def _propose(self) -> str | None:
        """Have as much in flight as is worth it; why the search is to end."""
        while open_ := [at for at in range(len(self._lanes)) if self._may_ask(at)]:
            samplers = [self._lanes[at].sampler for at in open_]
            if not self._budget.whole and None not in samplers:
                reasons = [self._lanes[at].done() for at in open_]
                if None not in reasons:
                    return reasons[0]
                open_ = [at for at, reason in zip(open_, reasons, strict=True) if reason is None]
                if self._in_flight:
                    open_ = [at for at in open_ if not self._sated(at)]
                if not open_:
                    return None
            at = self._next(open_)
            try:
                with self._alone(at):
                    trial = self._ask(at)
                    if trial is None:
                        return None
                    self._begin(at, trial)
            except SpaceExhaustedError:  # other processes that share the study have the rest
                self._exhausted.add(at)
            except UpdateFinishedTrialError:  # this process was taken for dead: the trial is another tuner's
                continue
        return None

    def _begin(self, at: int, trial: optuna.Trial) -> None:
        lane, tally = self._lanes[at], self._tallies[at]
        index = int(lane.space.find(codes(lane.space, trial.params)))
        if index < 0:
            give_up(lane.study, trial)
            raise damaged(trial.number, ValueError("it asks for what is no configuration"))
        if (settled := self._in_flight.get((at, index))) is not None:
            # This process was taken for dead, and has what it lost again: what runs is the new trial's.
            give_up(lane.study, settled)
            self._in_flight[at, index] = trial
            return
        self._in_flight[at, index] = trial
        tally.running += 1
        if self._has_to_wait(at, index):
            self._late[at, index] = self._trials
        self._changed()
        if (expected := lane.expected(index)) is not None:
            record_expected(trial, expected)
            self._expected_us = min(self._expected_us or math.inf, expected.time_us)
        incumbent = min(each.incumbent for each in self._tallies)
        lane.evaluator.submit(index, None if index in lane.in_full else incumbent)

    @contextmanager
    def _alone(self, at: int) -> Iterator[None]:
        """Have an error of this lane end it alone, where the others can go on; see `Lane.errors`."""
        try:
            yield
        except SpaceExhaustedError:
            raise
        except TilescoutError as error:
            lane = self._lanes[at]
            lane.end(error)
            lane.evaluator.give_up()
            for key in [each for each in self._in_flight if each[0] == at]:
                if key in self._arrived:
                    self._tell(key)
                else:
                    give_up(lane.study, self._in_flight.pop(key))
                    self._late.pop(key, None)
                    self._tallies[at].running -= 1
            self._changed()

    def _has_to_wait(self, at: int, index: int) -> bool:
        """Whether the kernel of a configuration is to be compiled while those of others are there."""
        lane = self._lanes[at]
        is_new = (at, int(lane.evaluator.kernels[index])) not in self._compiled
        return is_new and lane.sampler is not None and lane.sampler.waits_for_compiler(index)

    def _next(self, open_: Sequence[int]) -> int:
        """Whose trial is next, of the lanes that may ask."""
        if len(open_) == 1:
            return open_[0]
        known = all(tally.in_hand for tally in self._tallies)
        gains = {at: self._lanes[at].gain() if known else None for at in open_}
        if None in gains.values():
            return min(open_, key=lambda at: self._tallies[at].in_hand)
        return max(open_, key=lambda at: gains[at] or 0.0)

    def _sated(self, at: int) -> bool:
        sampler = self._lanes[at].sampler
        return sampler is not None and sampler.sated(self._lanes[at].study)

    def _may_ask(self, at: int, elsewhere: int = 0) -> bool:
        budget, space = self._budget, self._lanes[at].space
        in_hand = sum(tally.in_hand for tally in self._tallies) + elsewhere
        return (
            at not in self._exhausted
            and not self._lanes[at].errors
            and len(self._in_flight) < self._capacity
            and self._tallies[at].in_hand + elsewhere < len(space)
            and (budget.trials is None or in_hand < budget.trials)
            and (budget.gpu_seconds is None or sum(t.gpu_seconds for t in self._tallies) < budget.gpu_seconds)
            and (budget.seconds is None or time.monotonic() - self._started < budget.seconds)
        )

    def _ask(self, at: int) -> optuna.Trial | None:
        """A trial to try; None if what is left of the budget or the space is in flight elsewhere."""
        lane, news = self._lanes[at], list[TrialRecord]()

        def claim() -> optuna.Trial | None:
            lane.tuner.take_over()
            found, elsewhere = lane.look()
            news.extend(found)
            self._count(at, found)
            if not self._may_ask(at, elsewhere):
                return None
            trial = lane.study.ask()
            lane.tuner.begin(trial)
            mark(lane.study, trial, SEEN, Count(self._place, self._search))
            return trial

        trial = lane.tuner.alone(claim)
        for record in news:
            lane.on_trial(record)
        if trial is None:
            return None
        # The proposal may take long, and none is made twice without the lock.
        try:
            for name, knob in self._knobs[at].items():
                trial.suggest_int(name, knob.low, knob.high)
        except MALFORMED as error:
            if not queued_parameters(lane.study.get_trials(deepcopy=False)[trial.number]):
                raise  # of a sampler of one's own
            raise damaged(trial.number, error) from error
        return trial

    def _hear(self, first: tuple[int, int]) -> None:
        """Wait for an outcome and tell it: with a look-ahead that of `first` alone, else whatever has arrived."""
        try:
            while first in self._in_flight and not (
                self._arrived if self._lookahead is None else first in self._arrived
            ):
                self._wait(first[0], first)
                for at, lane in enumerate(self._lanes):
                    if at != first[0] and lane.evaluator.has_outcome:
                        self._wait(at, first)
                self._changed()
            for key in [first] if self._lookahead is not None else list(self._arrived):
                self._look()  # so that its place is behind those that others have told
                if key in self._arrived:
                    self._tell(key)
        except BaseException:  # of another lane or a callback, or Ctrl-C: what has arrived is not lost with it
            with suppress(StoreError):
                for key, measurement in self._arrived.items():
                    keep_outcome(self._in_flight[key], measurement)
            raise

    def _first(self) -> tuple[int, int]:
        """The trial that is told next, whatever arrives first: so a search does not depend on how fast its machine is.

        It is the first proposal. While much is stored, those that are compiled come behind others, two look-aheads at
        most: a GPU would have nothing to do until they are there. By a simulated clock, searches with portfolios end
        after 2.73 s in the median so, not 3.57 (`experiments/results/wall-time.md`).
        """
        due = self._trials - 2 * (self._lookahead or 0)
        return next((key for key in self._in_flight if self._late.get(key, due) <= due), next(iter(self._in_flight)))

    def _wait(self, at: int, first: tuple[int, int]) -> None:
        lane = self._lanes[at]
        with self._alone(at):
            found, library_us = lane.evaluator.wait(), lane.evaluator.library_us()
            arrived = {(at, index): _relative_to(each, lane.library_us, library_us) for index, each in found}
            self._arrived |= arrived
            for key in arrived if self._lookahead is not None else ():
                if key != first:
                    keep_outcome(self._in_flight[key], arrived[key])

    def _tell(self, key: tuple[int, int]) -> None:
        """Tell an outcome that has arrived; it counts as arrived until it is stored."""
        at, trial = key[0], self._in_flight[key]
        lane = self._lanes[at]
        mark(lane.study, trial, PLACE, Count(self._place + 1, self._search))
        is_own = record_outcome(lane.study, trial, self._arrived[key])
        del self._arrived[key], self._in_flight[key]
        self._late.pop(key, None)
        self._tallies[at].running -= 1
        if not is_own:
            return  # this process was taken for dead, and the trial is another tuner's
        trials = lane.study.get_trials(deepcopy=False)
        outcome = lane.record(trials[trial.number])
        assert outcome is not None
        self._add(at, outcome, trials)
        self._changed()
        lane.on_trial(outcome)

    def _look(self) -> None:
        """Count and show what other tuners have told, of every study."""
        for at, lane in enumerate(self._lanes):
            with self._alone(at):
                news, _ = lane.look()
                self._count(at, news)
                for record in news:
                    lane.on_trial(record)

    def _count(self, at: int, news: Sequence[TrialRecord]) -> None:
        """Count what other tuners have told of a study."""
        trials = self._lanes[at].study.get_trials(deepcopy=False) if news else ()
        for record in news:
            self._add(at, record, trials)

    def _add(self, at: int, record: TrialRecord, trials: Sequence[FrozenTrial]) -> None:
        """Count a trial of a study, whose trials are these, unless it was counted before."""
        if not self._tallies[at].add(record):
            return
        trial, timing = trials[record.number], record.measurement.timing
        self._place = max(self._place, place_of(trial))
        if self._on_change is not None:
            ratio, is_dear = timing.ratio if timing is not None else math.inf, self._dear_kernels([(at, record.index)])
            self._behind.add(Told(trial, at, ratio, bool(is_dear), was_given(trial, trials)))
        self._compiled.add((at, int(self._lanes[at].evaluator.kernels[record.index])))

    def _dear_kernels(self, trials: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        """The kernels of trials that had to be compiled for them, though much is stored, by the numbers of lanes."""
        dear = set()
        for at, index in trials:
            lane = self._lanes[at]
            if lane.sampler is not None and lane.sampler.is_dear(index):
                dear.add((at, int(lane.evaluator.kernels[index])))
        return dear - self._compiled

    def _is_blind(self, at: int, number: int, known: Told) -> bool:
        """Whether no sampler proposed a trial in flight with one in view that was told."""
        if (at, number) not in self._asked:
            trials = self._lanes[at].study.get_trials(deepcopy=False)
            self._asked[at, number] = trials[number], was_given(trials[number], trials)
        trial, is_given = self._asked[at, number]
        return is_given or known.is_behind_ask_of(trial, at)

    @property
    def _trials(self) -> int:
        """How many have been told."""
        return sum(tally.trials for tally in self._tallies)

    def _changed(self) -> None:
        if self._on_change is None:
            return
        behind, running = self._behind, len(self._in_flight)
        found = Joint(None, self._expected_us, trials=self._trials, running=running, spaces=len(self._lanes))
        if (known := behind.known) is not None:
            found = replace(
                found,
                since=behind.since,
                dear=behind.dear,
                dear_running=len(self._dear_kernels(self._in_flight)),
                blind=behind.blind,
                blind_running=sum(
                    self._is_blind(at, trial.number, known) for (at, _), trial in self._in_flight.items()
                ),
            )
        times = [behind.best * lane.library_us if known is not None else None for lane in self._lanes]
        self._on_change([replace(found, best_us=time_us) for time_us in times])


def _relative_to(measurement: Measurement, library_us: float, measured_against: float) -> Measurement:
    """The measurement with its times relative to the study's steady time of the library."""
    timing, pilot_us = measurement.timing, measurement.pilot_us
    return replace(
        measurement,
        timing=replace(timing, library_us=library_us) if timing is not None else None,
        pilot_us=pilot_us * library_us / measured_against if pilot_us is not None else None,
    )
