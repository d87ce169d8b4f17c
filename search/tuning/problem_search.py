"""The search of one problem of a suite, in its turns: in one space, or in two at the same time."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial

from tilescout.search.engines.complements import Complement
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.joint import Joint
from tilescout.search.samplers.others import OtherTrials
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tuning.answers import Answers
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.duel import Finalist, duel
from tilescout.search.tuning.earlier import recalled
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.loop import Loop, run_together
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.search.tuning.trackers import Tracker
from tilescout.search.tuning.turns import Claim, Line, Turn, Turns
from tilescout.spaces.errors import SamplerError, TilescoutError, one_line
from tilescout.spaces.problems import Problem

_LOG = logging.getLogger(__name__)


class _Stage(IntEnum):
    """How far the search of a problem's first space is: that of the second waits for it."""

    BEGUN = 0
    LISTED = 1  # its configurations are known
    COMPILING = 2  # what it tries first
    ON_GPU = 3  # in its first turn
    ENDED = 4  # so has the loop over both spaces; the races are left
    FAILED = 5  # before the loop had ended


@dataclass(frozen=True, eq=False)
class Shared:
    """All that the searches of a suite share.

    Attributes
    ----------
    engine, options, make_tracker, on_trial, on_phase
        See `tilescout.search.tuning.suite.tune_suite`.
    problems
        What is searched.
    complement
        The second space.
    strategy
        The class of the samplers.
    turns, answers
        Who has a GPU, and who has a result.
    known
        What each search has found, as of its last turn, by the numbers of its problem and its space.
    expecting
        Held by the searches that list and predict their spaces and say what they try first, the second of a problem
        before the first of a later one. Neither is searched before both are ready.
    showing, making
        Held by who shows a trial, and by who makes a tracker: two that log the same dataset at the same time would be
        refused by MLflow.
    """

    engine: Engine
    problems: Sequence[Problem]
    complement: Complement
    strategy: type[SpaceSampler]
    options: TuneOptions
    turns: Turns
    answers: Answers
    make_tracker: Callable[[StudyInfo, str | None], Tracker]
    on_trial: Callable[[Problem, TrialRecord], None]
    on_phase: Callable[[Problem, str], None]
    known: dict[tuple[int, int], OtherTrials] = field(default_factory=dict)
    expecting: Line = field(default_factory=Line)
    showing: threading.Lock = field(default_factory=threading.Lock)
    making: threading.Lock = field(default_factory=threading.Lock)

    def track(self, info: StudyInfo, run_id: str | None) -> Tracker:
        """Make the tracker of a study."""
        with self.making:
            return self.make_tracker(info, run_id)

    def show(self, problem: Problem, trial: TrialRecord) -> None:
        """Tell of a trial."""
        with self.showing:
            self.on_trial(problem, trial)
        self.turns.go_on()


class ProblemSearch:
    """The search of one problem.

    Each space has its study, in a thread of its own. The first one's thread runs the loop over both.

    Parameters
    ----------
    shared
        What it shares with other problems' searches.
    number, problem
        Its number, and what is tuned.
    spaces
        In how many spaces: one or two.
    """

    def __init__(self, shared: Shared, number: int, problem: Problem, spaces: int) -> None:
        self.number, self.problem = number, problem
        self._shared, self._spaces = shared, spaces
        self._turn: Turn | None = None
        self._claim = self._claimed = Claim(0, 0.0, None)  # as of now, and that of the turn
        self._stage = _Stage.BEGUN
        self._stopped: str | None = None  # why the loop ended
        self._evaluator: Evaluator | None = None  # of the first space
        self._going = set(range(spaces))  # those whose search has neither an answer nor failed
        self._lanes: list[Lane] = []  # those that are set up
        self._joints: Sequence[Joint] = [Joint(spaces=spaces)] * spaces
        self._finalists: dict[int, Finalist] = {}
        self._met: Sequence[StudyResult] = ()  # what both told, by their spaces, once their answers have raced
        self._changed = threading.Condition()

    @property
    def _is_joint(self) -> bool:
        """Whether each sampler is told how far the searches of both spaces are together."""
        return self._shared.strategy.searches_jointly and self._spaces > 1

    def run(self, space: int) -> StudyResult | None:
        """Search a space; in a thread of its own. None if it is the second, and its search failed."""
        return self._second() if space else self._first()

    def _first(self) -> StudyResult:
        """Search the first space, and run the loop over both."""
        shared = self._shared
        try:
            with ExitStack() as stack:
                expecting = stack.enter_context(ExitStack())
                expecting.enter_context(shared.expecting.held(self.number, 0))
                shared.turns.go_on()
                gpu = shared.turns.ask(self.number, self._claim)  # setting the problem up takes longer than the model
                evaluator = Evaluator(shared.engine, self.problem, [] if gpu is None else [gpu])
                self._evaluator = stack.enter_context(evaluator)
                self._reach(_Stage.LISTED)

                def begin() -> None:
                    expecting.close()
                    self._reach(_Stage.COMPILING)
                    self._turn = shared.turns.take(self.number, self._claim)
                    evaluator.move(self._turn.gpu)
                    self._reach(_Stage.ON_GPU)

                return self._run(0, evaluator, self._search, begin)
        finally:
            if self._stage is not _Stage.ENDED:
                self._reach(_Stage.FAILED)
            self._leave(0)

    def _second(self) -> StudyResult | None:
        """Search the second space; None if that fails."""
        shared = self._shared
        try:
            shared.complement.get_ready()  # its compilers start with the first one's
            self._await(_Stage.LISTED)
            engine = shared.complement.engine(self.problem)
            if engine is None:
                return None
            with ExitStack() as stack:
                expecting = stack.enter_context(ExitStack())
                expecting.enter_context(shared.expecting.held(self.number, 1))

                def begin() -> None:
                    expecting.close()
                    self._await(_Stage.ON_GPU)
                    assert self._turn is not None
                    evaluator.move(self._turn.gpu)

                evaluator = stack.enter_context(Evaluator(engine, self.problem, [], like=self._evaluator))
                # What the first tries first is compiled first.
                return self._run(1, evaluator, self._join, begin, partial(self._await, _Stage.COMPILING))
        except TilescoutError as error:
            if self._stage is not _Stage.FAILED:  # else the first one's error is told
                _LOG.warning("%s: the second search failed: %s", self.problem, one_line(error))
            return None
        finally:
            self._leave(1)

    def _run(
        self,
        space: int,
        evaluator: Evaluator,
        search: Loop,
        begin: Callable[[], None],
        prepared: Callable[[], None] = lambda: None,
    ) -> StudyResult:
        shared, problem = self._shared, self.problem

        def others() -> list[OtherTrials]:
            return [
                trials
                for (number, its), trials in sorted(shared.known.copy().items())
                if its == space and number != self.number
            ]

        def answer(result: StudyResult) -> None:
            self._end(space)
            shared.answers.give((self.number, space), result)

        options = shared.options
        settings = dict(options.settings)
        if shared.strategy.learns_from_others:
            settings["others"] = others
        settings |= recalled(options.sampler, options.studies, evaluator, shared.problems)
        if self._is_joint:
            settings["joint"] = lambda: self._joints[space]
        if space and "model" in settings:
            from tilescout.search.samplers.guided import model_beside

            settings["model"] = model_beside(settings["model"])
        asked = replace(options, budget=replace(options.budget, trials=shared.turns.first), settings=settings)
        if space:  # what is named is of the other space
            asked = replace(asked, first=(), resume=bool(options.resume))
        return run_study(
            evaluator,
            asked,
            shared.track,
            partial(shared.show, problem),
            search,
            answer,
            meanwhile=begin,
            prepared=prepared,
            on_phase=partial(shared.on_phase, problem),
            meet=partial(self._meet, space, evaluator),
        )

    def _search(self, lane: Lane, budget: Budget) -> str | None:
        """Run the loop, a turn at a time; leaves with a turn, for the race."""
        with self._changed:
            self._lanes.insert(0, lane)  # that of the second space may be there before
            self._changed.wait_for(lambda: len(self._lanes) == len(self._going))  # it is there, or its search failed
        finished, see = self._look(), self._see if self._is_joint else None
        if self._turn is not None and self._turn.looks:
            self._pass()
        while self._turn is not None and self._turn.trials and finished < sum(len(each.space) for each in self._lanes):
            before, waited = finished, [each.evaluator.waited for each in self._lanes]
            self._stopped = run_together(self._lanes, self._turn.budget(self._claimed, budget.whole), see)
            waits = [each.evaluator.waited - so_far for each, so_far in zip(self._lanes, waited, strict=True)]
            for each, own in zip(self._lanes, waits, strict=True):
                each.evaluator.lent += sum(waits) - own
            finished = self._look()
            if self._stopped is not None or finished == before:
                break
            self._pass()
        self._reach(_Stage.ENDED)
        return self._stopped

    def _see(self, joints: Sequence[Joint]) -> None:
        """Take note of how far the search is."""
        self._joints = joints

    def _join(self, lane: Lane, budget: Budget) -> str | None:
        """In the place of a loop: have the first one's thread search, and wait until it has.

        Raises
        ------
        TilescoutError
            What ended the search of this space, or that the first one's failed.
        """
        begun, errors = time.monotonic(), list[TilescoutError]()
        lane = replace(lane, errors=errors)
        with self._changed:
            self._lanes.append(lane)
            self._changed.notify_all()
        self._await(_Stage.ENDED)
        lane.evaluator.lent += max(0.0, time.monotonic() - begun - lane.evaluator.waited - lane.evaluator.lent)
        if errors:
            raise errors[0]
        return self._stopped

    def _reach(self, stage: _Stage) -> None:
        """Have the second search go on that waits for this of the first."""
        with self._changed:
            self._stage = stage
            self._changed.notify_all()

    def _await(self, stage: _Stage) -> None:
        """Wait in the second search until the first one is so far.

        Raises
        ------
        SamplerError
            If that failed.
        StoppedError
            If that failed as all were told to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stage >= stage)
        if self._stage is _Stage.FAILED:
            self._shared.turns.go_on()
            raise SamplerError("the first one did")

    def _meet(self, space: int, evaluator: Evaluator, result: StudyResult) -> StudyResult:
        """The result of a space, once its answer has raced that of the other, where both are searched."""
        with self._changed:
            self._finalists[space] = Finalist(evaluator, result)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._going <= self._finalists.keys())
            if self._finalists.keys() != {0, 1}:
                return result
        if space:
            with self._changed:
                self._changed.wait_for(lambda: self._met or 0 not in self._going)
        else:
            self._shared.on_phase(self.problem, "race the answers of both spaces")
            options = self._shared.options
            met = duel(self._finalists[0], self._finalists[1], options.race, options.seed)
            with self._changed:
                self._met = met
                self._changed.notify_all()
        return self._met[space] if self._met else result

    def _end(self, space: int) -> None:
        """Leave the GPU to others, once all studies have their answers; once is enough."""
        with self._changed:
            last = self._going == {space}
            self._going.discard(space)
            self._changed.notify_all()
        if last:
            self._shared.turns.leave(self.number, self._turn, self._claim)

    def _leave(self, space: int) -> None:
        self._end(space)
        self._shared.answers.leave((self.number, space))

    def _pass(self) -> None:
        """End the turn and wait for the next."""
        assert self._turn is not None
        turn, self._turn = self._turn, None
        self._claimed = self._claim
        self._shared.turns.give(self.number, turn, self._claim)
        begun = time.monotonic()
        if self._shared.turns.ask(self.number, self._claim) is not None:  # at once: nobody else is ahead
            self._turn = self._shared.turns.take(self.number, self._claim)
        else:
            with ThreadPoolExecutor(1, "ahead") as thread:  # left once it has ended: the search asks the sampler, too
                ahead = thread.submit(self._compile_ahead)
                self._turn = self._shared.turns.take(self.number, self._claim)
            ahead.result()
        for lane in self._lanes:
            lane.evaluator.lent += time.monotonic() - begun
            lane.evaluator.move(self._turn.gpu)

    def _compile_ahead(self) -> None:
        """Have compiled what comes next while another search has the GPU: more of others' outcomes may change it."""
        for lane in self._lanes:
            if lane.sampler is not None and lane.evaluator.measures_anew and not lane.errors:
                for index in lane.sampler.ahead(lane.study, self._shared.turns.first // len(self._lanes)):
                    lane.evaluator.expect(index)

    def _look(self) -> int:
        """Take account of what the studies have; how many trials that is."""
        trials: list[TrialRecord] = []
        gains: list[float | None] = []
        fastest: list[float] = []
        for space, lane in enumerate(self._lanes):
            try:
                found = lane.finished()
            except TilescoutError as error:  # another tuner has told what can't be read
                lane.end(error)
                found = lane.finished()
            fastest.append(math.inf if lane.errors else _fastest(found))
            trials += found
            if (others := OtherTrials.of_study(lane.study, lane.space)) is not None:
                self._shared.known[self.number, space] = others
            gains.append(lane.gain() if found and not lane.errors else None)
        if len(self._lanes) == 2:
            for lane, elsewhere in zip(self._lanes, reversed(fastest), strict=True):
                lane.evaluator.elsewhere = elsewhere
        known = [gain for gain in gains if gain is not None]
        gpu_seconds = sum(trial.measurement.gpu_seconds for trial in trials)
        self._claim = Claim(len(trials), gpu_seconds, max(known, default=None))
        return len(trials)


def _fastest(trials: Iterable[TrialRecord]) -> float:
    """The lowest ratio to the library of some trials; infinite where none is right."""
    timings = (trial.measurement.timing for trial in trials)
    return min((timing.ratio for timing in timings if timing is not None), default=math.inf)
