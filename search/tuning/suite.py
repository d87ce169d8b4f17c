"""Tune a kernel for all problems of a suite together: a study a problem, and one budget."""

import logging
import threading
import time
from collections.abc import Callable, Container, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import optuna

from tilescout.search.engines.complements import HAS_LOST, MAY_BE_FASTER, Complement
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.samplers import find_sampler
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.others import OtherTrials
from tilescout.search.studies.answers import loses
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.studies.sharing import Tuner
from tilescout.search.studies.trials import finished_trials
from tilescout.search.tuning.loop import Budget, run
from tilescout.search.tuning.study import QUIET_SECONDS, SearchInterrupted, TuneOptions, run_study
from tilescout.search.tuning.trackers import NoTracker, Tracker
from tilescout.search.tuning.turns import Claim, Turn, Turns
from tilescout.spaces.errors import SamplerError, TilescoutError, one_line
from tilescout.spaces.problems import Problem

_LOG = logging.getLogger(__name__)

SLICE = 32
"""Trials that a search has a GPU for: a problem takes a second to set up on it, and a trial some 30 ms. Most guided
searches end by themselves in less."""

SEATS = 3
"""Searches that share a GPU where kernels are compiled. A kernel takes 30 times as long to compile as to measure: one
search alone leaves the GPU idle. Each has its problem set up on it, which takes memory."""


class SuiteInterrupted(KeyboardInterrupt):
    """The searches of a suite were ended by Ctrl-C; all that is finished is stored, and they can be resumed.

    Attributes
    ----------
    results
        The best so far of each search that had begun, in the order of the problems.
    """

    def __init__(self, results: list[StudyResult]) -> None:
        super().__init__("the searches were interrupted")
        self.results = results


def tune_suite(
    engine: Engine,
    problems: Sequence[Problem],
    options: TuneOptions,
    make_tracker: Callable[[StudyInfo, str | None], Tracker] = lambda info, run_id: NoTracker(),
    on_trial: Callable[[Problem, TrialRecord], None] = lambda problem, trial: None,
    on_phase: Callable[[Problem, str], None] = lambda problem, phase: None,
    on_results: Callable[[list[StudyResult]], None] = lambda results: None,
    slice: int = SLICE,
    complement: bool = True,
) -> list[StudyResult]:
    """Search for the fastest configuration of every problem.

    GPU time goes, a slice of trials at a time, to the problem whose next trial is expected to gain the most a second:
    see `Claim.rank`. A sampler that learns from other problems has their trials, as of their last turns. A search ends
    by itself where its sampler says so, and its share goes to the others; each ends with its race. With one GPU and a
    table, the same seed gives the same trials. Where kernels are compiled, a few searches share a GPU, and what a
    search tries next is compiled before its turn.

    Parameters
    ----------
    engine
        Compiles and measures, on all its GPUs. What is compiled is shared: a kernel serves all problems of its
        signature.
    problems
        The problems, without repeats.
    options
        See `TuneOptions`; the budget is that of all problems together. Each search of a complement adds as many trials
        and seconds of GPU as a problem has of it.
    make_tracker, on_trial, on_phase
        See `run_study`; they are called in threads, `on_trial` in one at a time.
    on_results
        Called with all results as soon as they are known and stored; the trackers take seconds more.
    slice
        Trials of a turn.
    complement
        Search the complement of the space, too, where its kernels may be faster on a problem: where an estimate says
        so, or where the answer has lost to the library in its race. That comes behind the problem's own search, is set
        up meanwhile where it was expected, and ends where it does not beat what that one found.

    Returns
    -------
    list
        The results, in the order of the problems; that of a complement comes right behind the problem's own. Whose
        answer stands, `tilescout.search.studies.answers` tells.

    Raises
    ------
    StoreError, SamplerError, DeviceError
        What ended one of the searches, once the others are done. An error in that of a complement goes to the log.
    SuiteInterrupted
        On Ctrl-C, with the best so far; the trial of each GPU is still finished.
    """
    if not isinstance(options.sampler, str | type):
        raise SamplerError("the searches of a suite need a sampler each: give a name or a class, not an object")
    with Complement(engine) as second:
        return _tune_all(
            engine,
            second if complement and second else None,
            problems,
            options,
            make_tracker,
            on_trial,
            on_phase,
            on_results,
            slice,
        )


def _tune_all(
    own: Engine,
    complement: Complement | None,
    problems: Sequence[Problem],
    options: TuneOptions,
    make_tracker: Callable[[StudyInfo, str | None], Tracker],
    on_trial: Callable[[Problem, TrialRecord], None],
    on_phase: Callable[[Problem, str], None],
    on_results: Callable[[list[StudyResult]], None],
    slice: int,
) -> list[StudyResult]:
    """Run searches in turns; see `tune_suite`. Those of the complement have the numbers behind those of the engine."""
    assert isinstance(options.sampler, str | type)
    strategy, count = find_sampler(options.sampler), len(problems)
    behind = {count + number: number for number in range(count)} if complement is not None else {}
    twice = [complement is not None and complement.is_expected(problem) for problem in problems]
    # What has two searches, one behind the other, goes first.
    order = sorted(range(count), key=lambda at: not twice[at])
    problems, twice = [problems[at] for at in order], [twice[at] for at in order]
    numbers = sorted(range(count + len(behind)), key=lambda number: (order[number % count], number))  # of the results
    turns = Turns(len(numbers), own.gpus, options.budget, slice, SEATS if own.measures_anew else 1, behind)
    answers = _Answers(numbers, set(range(count)))
    lock, making = threading.Lock(), threading.Lock()
    expecting = threading.Lock()  # one search at a time says what it tries first: compilers begin with the first's
    known: dict[int, OtherTrials] = {}  # by the search's number, as of its last turn

    def make_one(info: StudyInfo, run_id: str | None) -> Tracker:
        with making:  # two that log the same dataset at the same time would be refused by MLflow
            return make_tracker(info, run_id)

    def engine_of(number: int) -> Engine | None:
        """The engine of a search, once it is known whether there is to be one; None if not."""
        if complement is None or number not in behind:
            return own
        problem, first = problems[number % count], behind[number]
        if twice[number % count]:
            turns.join(number)
            engine = complement.engine(problem, MAY_BE_FASTER)
            turns.come_behind(number)
            return engine
        turns.come_behind(number)
        complement.get_ready()  # for the case that the answer loses
        result = answers.of(first)
        if result is None or not loses(result):
            return None
        turns.join(number)
        return complement.engine(problem, HAS_LOST)

    def search(number: int) -> StudyResult | None:
        problem = problems[number % count]

        def show(trial: TrialRecord) -> None:
            with lock:
                on_trial(problem, trial)
            turns.go_on()

        def others() -> list[OtherTrials]:
            same = (each for each in sorted(known.copy().items()) if (each[0] in behind) == (number in behind))
            return [trials for other, trials in same if other != number]

        def to_beat() -> float | None:
            found = known.get(behind[number])
            return found.least_us if found is not None else None

        def answer(result: StudyResult) -> None:
            part.end()
            answers.give(number, result)

        def show_phase(phase: str) -> None:
            on_phase(problem, phase)

        part = _Part(turns, number, known)
        asked = replace(options, budget=replace(options.budget, trials=turns.first))
        if strategy.learns_from_others:
            asked = replace(asked, settings={**options.settings, "others": others})
        if number in behind:  # what is named is of the other space
            asked = replace(asked, first=(), resume=bool(options.resume))
            if strategy.has_to_beat:
                asked = replace(asked, settings={**asked.settings, "to_beat": to_beat})
        try:
            engine = engine_of(number)
            if engine is None:
                return None
            with ExitStack() as stack:
                expected = stack.enter_context(ExitStack())
                expected.enter_context(expecting)
                turns.go_on()
                gpu = part.ask()  # setting the problem up on it takes longer than the model
                evaluator = stack.enter_context(Evaluator(engine, problem, [] if gpu is None else [gpu]))

                def begin() -> None:
                    expected.close()
                    part.begin()
                    evaluator.move(part.gpu)

                return run_study(
                    evaluator, asked, make_one, show, part.search, answer, meanwhile=begin, on_phase=show_phase
                )
        except TilescoutError as error:
            if number not in behind:
                raise
            _LOG.warning("%s: the second search failed: %s", problem, one_line(error))
            return None
        finally:
            part.end()
            answers.leave(number)

    with ThreadPoolExecutor(len(numbers), "search") as threads:
        begun = [threads.submit(search, number) for number in range(len(numbers))]
        futures = [begun[number] for number in numbers]
        try:
            if (found := answers.wait()) is not None:
                on_results(found)
            answers.open()
            return [result for future in futures if (result := future.result()) is not None]
        except KeyboardInterrupt as interrupt:
            turns.stop()  # of an error in one of them the others learn nothing, and finish
            answers.open()
            raise SuiteInterrupted([result for future in futures if (result := _so_far(future))]) from interrupt
        finally:
            answers.open()


def _so_far(future: "Future[StudyResult | None]") -> StudyResult | None:
    """The findings of a search, when it has ended; None if it had not begun, or failed."""
    error = future.exception()
    if error is None:
        return future.result()
    return error.result if isinstance(error, SearchInterrupted) else None


class _Answers:
    """Keeps searches that have their results until all have: what logs one takes its time from the others.

    Parameters
    ----------
    searches
        Their numbers, in the order of the results.
    needed
        The numbers of those without whose results there is no answer.
    """

    def __init__(self, searches: Sequence[int], needed: Set[int]) -> None:
        self._searches, self._needed = searches, needed
        self._results: dict[int, StudyResult] = {}
        self._left: set[int] = set()
        self._open = False
        self._changed = threading.Condition()

    def give(self, search: int, result: StudyResult) -> None:
        """Have the result of a search, and wait for the others' for a while."""
        with self._changed:
            self._results[search] = result
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open, QUIET_SECONDS)

    def leave(self, search: int) -> None:
        """End, with a result or without."""
        with self._changed:
            self._left.add(search)
            self._changed.notify_all()

    def of(self, search: int) -> StudyResult | None:
        """Wait for the result of a search; None if it left without one."""
        with self._changed:
            self._changed.wait_for(lambda: search in self._results or search in self._left)
            return self._results.get(search)

    def wait(self) -> list[StudyResult] | None:
        """Wait until no more results can come: all of them in the searches' order, or None if some have none."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._left | self._results.keys()) == len(self._searches))
            whole = self._needed <= self._results.keys()
            return [self._results[each] for each in self._searches if each in self._results] if whole else None

    def open(self) -> None:
        """Keep nobody any more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()


class _Part:
    """One search of a suite: its turns, in its thread."""

    def __init__(self, turns: Turns, number: int, known: dict[int, OtherTrials]) -> None:
        self._turns, self._number, self._known = turns, number, known
        self._turn: Turn | None = None
        self._claim = Claim(0, 0.0, None)
        self._ended = False

    @property
    def gpu(self) -> int:
        """The GPU of the turn."""
        assert self._turn is not None
        return self._turn.gpu

    def ask(self) -> int | None:
        """Claim the first turn: its GPU, or None where that has to be waited for."""
        return self._turns.ask(self._number, self._claim)

    def begin(self) -> None:
        """Wait for the first turn."""
        self._turn = self._turns.take(self._number, self._claim)

    def end(self) -> None:
        """Leave the others alone with the GPUs; once is enough."""
        if not self._ended:
            self._ended = True
            self._turns.leave(self._number, self._turn, self._claim)

    def search(
        self,
        study: optuna.Study,
        evaluator: Evaluator,
        budget: Budget,
        library_us: float,
        on_trial: Callable[[TrialRecord], None],
        in_full: Container[int] = (),
        tuner: Tuner | None = None,
    ) -> str | None:
        """In the place of `run`: search, a turn at a time; leaves with a turn, for the race."""
        space = evaluator.space
        finished, stopped = self._look(study, evaluator), None
        if finished:  # of an earlier run, which the budget did not know of
            self._pass(study, evaluator)
        while self._turn is not None and self._turn.trials and finished < len(space):
            before = finished
            part = self._turn.budget(self._claim, budget.whole)
            stopped = run(study, evaluator, part, library_us, on_trial, in_full, tuner)
            finished = self._look(study, evaluator)
            if stopped is not None or finished == before:
                break
            self._pass(study, evaluator)
        self._turns.finish(self._number)
        return stopped

    def _pass(self, study: optuna.Study, evaluator: Evaluator) -> None:
        """End the turn and wait for the next."""
        assert self._turn is not None
        turn, self._turn = self._turn, None
        self._turns.give(self._number, turn)
        begun = time.monotonic()
        with ThreadPoolExecutor(1, "ahead") as thread:  # left once it has ended: the search asks the sampler, too
            ahead = thread.submit(self._compile_ahead, study, evaluator)
            self._turn = self._turns.take(self._number, self._claim)
        ahead.result()
        evaluator.lent += time.monotonic() - begun
        evaluator.move(self._turn.gpu)

    def _compile_ahead(self, study: optuna.Study, evaluator: Evaluator) -> None:
        """Have compiled what comes next while another search has the GPU: more of others' outcomes may change it."""
        if isinstance(study.sampler, SpaceSampler) and evaluator.measures_anew:
            for index in study.sampler.ahead(study, self._turns.first):
                evaluator.expect(index)

    def _look(self, study: optuna.Study, evaluator: Evaluator) -> int:
        trials = finished_trials(study, evaluator.space)
        if (found := OtherTrials.of_study(study, evaluator.space)) is not None:
            self._known[self._number] = found
        sampler = study.sampler
        gain = sampler.gain(study) if isinstance(sampler, SpaceSampler) and trials else None
        self._claim = Claim(len(trials), sum(trial.measurement.gpu_seconds for trial in trials), gain)
        return len(trials)
