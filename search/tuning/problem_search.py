"""The search of one problem of a suite, in its turns: in one space, or in two at the same time."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from tilescout.search.engines.complements import HAS_LOST, MAY_BE_FASTER, Complement
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.joint import Joint
from tilescout.search.samplers.others import OtherTrials
from tilescout.search.studies.answers import LOST
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.studies.trials import finished_trials
from tilescout.search.tuning.answers import Answers
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.duel import Finalist, duel
from tilescout.search.tuning.earlier import recalled
from tilescout.search.tuning.loop import Lane, Loop, run_together
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.search.tuning.trackers import Tracker
from tilescout.search.tuning.turns import Claim, Line, Turn, Turns
from tilescout.spaces.errors import SamplerError, TilescoutError, one_line
from tilescout.spaces.problems import Problem

_LOG = logging.getLogger(__name__)

SOON = 12
"""Outcomes of the first space after which the second is set up, if the best of them loses so far.

Where it is listed and predicted by then, it is searched from then on: while the first one's search goes on, the GPU
waits for few compilers. Of 72 recorded problems, searched by models that had not seen them, with the portfolio in the
store and without, 8 lose in the end; after 12 trials 8 and 9 do, and after 7 trials 11 and 9
(`experiments/results/wall-time.md`).
"""


class _NotWantedError(Exception):
    """The first space's search ended with an answer that does not lose: there is no other."""


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
        The second space; None if nothing is searched in it.
    strategy
        The class of the samplers.
    turns, answers
        Who has a GPU, and who has a result.
    known
        What each search has found, as of its last turn, by the numbers of its problem and its space.
    ahead
        Whether a second space is listed and predicted before it is known to be wanted.
    expecting
        Held by the one search that says what it tries first: compilers begin with the first one's. Both spaces of a
        problem go before the next problem: it is searched in neither before both are ready.
    showing, making
        Held by who shows a trial, and by who makes a tracker: two that log the same dataset at the same time would be
        refused by MLflow.
    """

    engine: Engine
    problems: Sequence[Problem]
    complement: Complement | None
    strategy: type[SpaceSampler]
    options: TuneOptions
    turns: Turns
    answers: Answers
    make_tracker: Callable[[StudyInfo, str | None], Tracker]
    on_trial: Callable[[Problem, TrialRecord], None]
    on_phase: Callable[[Problem, str], None]
    ahead: bool = False
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
    expected
        Whether the second space is searched from the beginning.
    """

    def __init__(self, shared: Shared, number: int, problem: Problem, expected: bool) -> None:
        self.number = number
        self._shared, self._problem, self._expected = shared, problem, expected
        self._turn: Turn | None = None
        self._claim = self._claimed = Claim(0, 0.0, None)  # as of now, and that of the turn
        self._lanes: list[Lane] = []
        self._waited: list[tuple[float, float]] = []  # by each lane and by all, when it joined or the turn began
        self._joints = [Joint(spaces=1 + expected), Joint(spaces=2)]
        self._evaluator: Evaluator | None = None  # of the first space
        self._listed, self._set_up, self._has_gpu = (threading.Event() for _ in range(3))
        self._state: Literal["undecided", "wanted", "joined", "gone"] = "wanted" if expected else "undecided"
        self._stopped: str | None = None
        self._ended = self._failed = self._losing = False
        self._racing = {0}
        self._finalists: dict[int, Finalist] = {}
        self._met: Sequence[StudyResult] = ()  # what both told, by their spaces, once their answers have raced
        self._changed = threading.Condition()

    def run(self, space: int) -> StudyResult | None:
        """Search a space; in a thread of its own. None if the second is not wanted, or its search failed."""
        return self._second() if space else self._first()

    def _first(self) -> StudyResult:
        """Search the first space, and the second with it where that is wanted; in a thread of its own."""
        shared = self._shared
        try:
            with ExitStack() as stack:
                expecting = stack.enter_context(ExitStack())
                expecting.enter_context(shared.expecting.held(self.number, 0))
                shared.turns.go_on()
                gpu = shared.turns.ask(self.number, self._claim)  # setting the problem up takes longer than the model
                evaluator = Evaluator(shared.engine, self._problem, [] if gpu is None else [gpu])
                self._evaluator = stack.enter_context(evaluator)
                self._listed.set()

                def begin() -> None:
                    expecting.close()
                    self._set_up.set()
                    self._turn = shared.turns.take(self.number, self._claim)
                    evaluator.move(self._turn.gpu)
                    self._has_gpu.set()

                return self._run(0, evaluator, self._search, begin)
        finally:
            self._failed = not self._ended
            self._end_search(None)
            self._leave(0)

    def _second(self) -> StudyResult | None:
        """Search the second space, once it is wanted; in a thread of its own. None if it is not, or failed."""
        shared = self._shared
        try:
            assert shared.complement is not None
            if self._expected:
                shared.complement.get_ready()  # its compilers start with the first one's
            beside = self._expected and shared.ahead  # cores are idle: both are listed and predicted at the same time
            (self._listed if beside else self._set_up).wait()  # of the first
            shared.complement.get_ready()  # for the case that the answer loses
            engine, reason = shared.complement.beside, MAY_BE_FASTER if self._expected else HAS_LOST
            if engine is None and self._is_wanted():
                shared.complement.tell(self._problem, reason)
            if engine is None or (not shared.ahead and not self._may_be_wanted()):
                return None
            with ExitStack() as stack:
                expecting = stack.enter_context(ExitStack())

                def take_turn() -> None:
                    self._set_up.wait()
                    expecting.enter_context(shared.expecting.held(self.number, 1))

                def check_wanted() -> None:
                    if beside:
                        take_turn()  # what the first tries first is compiled first
                    self._check_may_be_wanted()

                if not beside:
                    take_turn()
                evaluator = stack.enter_context(Evaluator(engine, self._problem, [], like=self._evaluator))

                def begin() -> None:
                    expecting.close()
                    self._has_gpu.wait()
                    if not self._is_wanted():
                        raise _NotWantedError
                    self._check_first()
                    assert self._turn is not None
                    assert shared.complement is not None
                    shared.complement.tell(self._problem, reason)
                    evaluator.move(self._turn.gpu)

                return self._run(1, evaluator, self._join, begin, check_wanted)
        except _NotWantedError:
            return None
        except TilescoutError as error:
            if self._state != "undecided" or self._is_wanted():
                _LOG.warning("%s: the second search failed: %s", self._problem, one_line(error))
            return None
        finally:
            self._leave(1)

    def _run(
        self,
        space: int,
        evaluator: Evaluator,
        search: Loop,
        begin: Callable[[], None],
        wanted: Callable[[], None] = lambda: None,
    ) -> StudyResult:
        shared, problem = self._shared, self._problem

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
        if shared.strategy.searches_jointly and shared.complement is not None:
            settings["joint"] = lambda: self._joints[space]
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
            wanted=wanted,
            on_phase=partial(shared.on_phase, problem),
            meet=partial(self._meet, space, evaluator),
        )

    def _search(self, lane: Lane, budget: Budget) -> str | None:
        """Run the loop, a turn at a time; leaves with a turn, for the race."""
        with self._changed:
            self._lanes.insert(0, lane)  # the second space's may have joined before
        self._await_second()
        stopped = self._in_turns(budget)
        if stopped is not None and self._state == "undecided" and self._shared.complement is not None and _loses(lane):
            with self._changed:
                self._state = "wanted"
                self._changed.notify_all()
            self._await_second()
            if len(self._lanes) > 1:
                stopped = self._in_turns(budget)
        self._end_search(stopped)
        return stopped

    def _in_turns(self, budget: Budget) -> str | None:
        finished, stopped = self._look(), None
        # An earlier run may have had it, and that of the first space may have left some to both.
        if self._turn is not None and self._turn.is_over(self._claimed, self._claim):
            self._pass()
        while self._turn is not None and self._turn.trials and finished < sum(len(each.space) for each in self._lanes):
            before = finished
            self._waited = [(lane.evaluator.waited, self._all_waited()) for lane in self._lanes]
            stopped = run_together(self._lanes, self._turn.budget(self._claimed, budget.whole), self._see)
            for lane, (own, all_) in zip(self._lanes, self._waited, strict=True):
                lane.evaluator.lent += self._all_waited() - all_ - (lane.evaluator.waited - own)
            finished = self._look()
            if stopped is not None or finished == before:
                break
            self._pass()
        return stopped

    def _all_waited(self) -> float:
        return sum(lane.evaluator.waited for lane in self._lanes)

    def _see(self, joints: Sequence[Joint], ratios: Sequence[float]) -> Sequence[Lane]:
        """Take note of how far the search is; the lanes that join it."""
        self._joints[: len(joints)] = joints
        best = self._lanes[0].library_best
        if self._losing or len(joints) > 1 or best is None or len(ratios) < SOON or min(ratios) <= (1 + LOST) * best:
            return ()
        with self._changed:
            self._losing = True
            if self._shared.ahead and self._state == "undecided":
                self._state = "wanted"
            self._changed.notify_all()
        self._await_second()
        return self._lanes[len(joints) :]

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
            self._waited.append((lane.evaluator.waited, self._all_waited()))
            self._racing.add(1)
            self._state = "joined"
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended)
        lane.evaluator.lent += max(0.0, time.monotonic() - begun - lane.evaluator.waited - lane.evaluator.lent)
        self._check_first()
        if errors:
            raise errors[0]
        return self._stopped

    def _check_first(self) -> None:
        """End the second search where the first one failed, or all were told to end."""
        if self._failed:
            self._shared.turns.go_on()
            raise SamplerError("the first one did")

    def _await_second(self) -> None:
        """Wait until the second study is set up or gone, if it is wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._state != "wanted")

    def _may_be_wanted(self) -> bool:
        """Wait until the second space is searched, or is likely to be."""
        with self._changed:
            self._changed.wait_for(lambda: self._losing or self._state != "undecided" or self._ended)
            return not self._ended

    def _check_may_be_wanted(self) -> None:
        if not self._may_be_wanted():
            raise _NotWantedError

    def _is_wanted(self) -> bool:
        """Wait until it is known whether the second space is searched."""
        with self._changed:
            self._changed.wait_for(lambda: self._state != "undecided" or self._ended)
            return self._state == "wanted" and not self._ended

    def _end_search(self, stopped: str | None) -> None:
        """Let the second study go on to its race, or wait for none where it is not wanted."""
        with self._changed:
            if not self._ended:
                self._stopped, self._ended = stopped, True
            unwanted = self._state == "undecided" and self._shared.complement is not None
            self._changed.notify_all()
        if unwanted:  # it may still be listing its space
            self._shared.answers.leave((self.number, 1))
        self._listed.set()
        self._set_up.set()
        self._has_gpu.set()

    def _meet(self, space: int, evaluator: Evaluator, result: StudyResult) -> StudyResult:
        """The result of a space, once its answer has raced that of the other, where both are searched."""
        with self._changed:
            self._finalists[space] = Finalist(evaluator, result)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._racing <= self._finalists.keys())
            if self._finalists.keys() != {0, 1}:
                return result
        if space:
            with self._changed:
                self._changed.wait_for(lambda: self._met or 0 not in self._racing)
        else:
            self._shared.on_phase(self._problem, "race the answers of both spaces")
            options = self._shared.options
            met = duel(self._finalists[0], self._finalists[1], options.race, options.seed)
            with self._changed:
                self._met = met
                self._changed.notify_all()
        return self._met[space] if self._met else result

    def _end(self, space: int) -> None:
        """Leave the GPU to others, once all studies have their answers; once is enough."""
        with self._changed:
            last = self._racing == {space}
            self._racing.discard(space)
            self._changed.notify_all()
        if last:
            self._shared.turns.leave(self.number, self._turn, self._claim)

    def _leave(self, space: int) -> None:
        with self._changed:
            if space:
                self._state = "gone"
            self._changed.notify_all()
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
        for space, lane in enumerate(self._lanes):
            found = finished_trials(lane.study, lane.space)
            trials += found
            if (others := OtherTrials.of_study(lane.study, lane.space)) is not None:
                self._shared.known[self.number, space] = others
            sampler = lane.sampler if found and not lane.errors else None
            gains.append(sampler.gain(lane.study) if sampler is not None else None)
        known = [gain for gain in gains if gain is not None]
        gpu_seconds = sum(trial.measurement.gpu_seconds for trial in trials)
        self._claim = Claim(len(trials), gpu_seconds, max(known, default=None))
        return len(trials)


def _loses(lane: Lane) -> bool:
    """Whether the best of a study is measured slower than the library's best, by more than `LOST`."""
    ratios = [
        trial.measurement.timing.ratio
        for trial in finished_trials(lane.study, lane.space)
        if trial.measurement.timing is not None
    ]
    return bool(ratios) and lane.library_best is not None and min(ratios) > (1 + LOST) * lane.library_best
