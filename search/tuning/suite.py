"""Tune a kernel for all problems of a suite together: a study a problem, and one budget."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import islice

from tilescout.search.engines.complements import Complement
from tilescout.search.engines.engine import Engine
from tilescout.search.samplers import find_sampler
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tuning.answers import Answers
from tilescout.search.tuning.problem_search import ProblemSearch, Shared
from tilescout.search.tuning.study import SearchInterrupted, TuneOptions, in_thread
from tilescout.search.tuning.trackers import NoTracker, Tracker
from tilescout.search.tuning.turns import Line, Turns
from tilescout.spaces.errors import SamplerError, one_line
from tilescout.spaces.problems import Problem
from tilescout.spaces.texts import some_of

_LOG = logging.getLogger(__name__)
_TOLD = 4  # problems, and reasons why searches failed, at most

SLICE = 32
"""Trials that a search has a GPU for: a problem takes a second to set up on it, and a trial some 30 ms. Most guided
searches end by themselves in less."""

SEATS = 5
"""Searches that share a GPU where kernels are compiled. A kernel takes 30 times as long to compile as to measure: one
search alone leaves the GPU idle. Each has its problem set up on it, which takes memory. What waits for a turn has
kernels compiled that its search may never ask for: with three seats 145 to 186 for suites of five, and 123 to 150 with
five (three suites, one H200 host, 2026-11-29; `experiments/results/wall-time.md`)."""

TOGETHER = 2
"""Spaces that are listed and predicted at the same time, where cores are idle."""


class SuiteInterrupted(KeyboardInterrupt):
    """The searches of a suite were ended by Ctrl-C; all that is finished is stored, and they can be resumed.

    Attributes
    ----------
    results
        The best so far of each search that had begun, in the order of the problems.
    complete
        Whether all had ended and their results been handed out: only what shows these was cut short.
    """

    def __init__(self, results: list[StudyResult], complete: bool = False) -> None:
        super().__init__("the searches were interrupted")
        self.results = results
        self.complete = complete


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
        See `TuneOptions`; the budget is that of all problems together.
    make_tracker, on_trial, on_phase
        See `run_study`; they are called in threads, `on_trial` in one at a time.
    on_results
        Called with all results as soon as they are known and stored; the trackers take seconds more. Where a search
        failed, they are those of the others.
    slice
        Trials of a turn.
    complement
        Search the complement of the space, too, where its template says that its kernels may be faster on a problem: at
        the same time, within the same budget. The next trial is of the space that expects to gain the most, and both
        searches stop together.

    Returns
    -------
    list
        The results, in the order of the problems; that of a complement comes right behind the problem's own. Whose
        answer stands, `tilescout.search.studies.answers` tells.

    Raises
    ------
    StoreError, SamplerError, DeviceError
        What ended one of the searches, once the others are done; what ended several goes to the log. So does an error
        in that of a complement.
    SuiteInterrupted
        On Ctrl-C, with the best so far; the trial of each GPU is still finished, and what is found logged. A second
        Ctrl-C, a `KeyboardInterrupt` of its own, waits for neither.
    """
    if not isinstance(options.sampler, str | type):
        raise SamplerError("the searches of a suite need a sampler each: give a name or a class, not an object")
    with Complement(engine) as second:
        seats = SEATS if engine.measures_anew else 1
        spaces = [2 if complement and second.is_searched(problem) else 1 for problem in problems]
        order = sorted(range(len(problems)), key=lambda at: -spaces[at])  # what is searched in two goes first
        shared = Shared(
            engine,
            problems,
            second,
            find_sampler(options.sampler),
            options,
            Turns(len(problems), engine.gpus, options.budget, slice, seats, bool(options.resume)),
            Answers([(order.index(at), space) for at, count in enumerate(spaces) for space in range(count)]),
            make_tracker,
            on_trial,
            on_phase,
            expecting=Line(TOGETHER if second.has_spare_cores else 1),
        )
        searches = [ProblemSearch(shared, number, problems[at], spaces[at]) for number, at in enumerate(order)]
        return _run(searches, shared, on_results)


def _run(
    searches: Sequence[ProblemSearch],
    shared: Shared,
    on_results: Callable[[list[StudyResult]], None],
) -> list[StudyResult]:
    """Run searches, a thread for each of their spaces; see `tune_suite`."""
    turns, answers = shared.turns, shared.answers
    first_spaces_first = sorted(answers.searches, key=lambda each: each[::-1])
    begun = {each: in_thread(partial(searches[each[0]].run, each[1]), "search") for each in first_spaces_first}
    futures, complete = [begun[each] for each in answers.searches], False
    try:
        if found := answers.wait():
            on_results(found)
        complete = True
        answers.open()
        wait(futures)  # of an error in one of them the others learn nothing, and finish
        _tell_reasons(searches, begun, least=2)  # the first one is raised
        return [result for future in futures if (result := future.result()) is not None]
    except KeyboardInterrupt as interrupt:
        turns.stop()
        answers.open()
        wait(futures)  # a second Ctrl-C ends this, and the searches with the process
        _tell_reasons(searches, begun, least=1)
        so_far = [result for future in futures if (result := _so_far(future))]
        raise SuiteInterrupted(so_far, complete) from interrupt
    except BaseException:
        answers.open()
        wait(futures)
        raise


def _tell_reasons(
    searches: Sequence[ProblemSearch], ended: "Mapping[tuple[int, int], Future[StudyResult | None]]", least: int
) -> None:
    """Log why searches failed, and of which problems, where there are so many reasons or more."""
    reasons: dict[str, list[Problem]] = {}
    for (number, _), future in sorted(ended.items()):
        if isinstance(error := future.exception(), Exception):  # no Ctrl-C
            reasons.setdefault(one_line(error), []).append(searches[number].problem)
    if len(reasons) < least:
        return
    for why, problems in islice(reasons.items(), _TOLD):
        _LOG.warning("the search of %s failed: %s", some_of(problems, _TOLD), why)
    if len(reasons) > _TOLD:
        _LOG.warning("%d more searches failed, for other reasons", sum(map(len, list(reasons.values())[_TOLD:])))


def _so_far(future: "Future[StudyResult | None]") -> StudyResult | None:
    """The findings of a search, when it has ended; None if it had not begun, or failed."""
    error = future.exception()
    if error is None:
        return future.result()
    return error.result if isinstance(error, SearchInterrupted) else None
