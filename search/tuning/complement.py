"""Search a space for a problem and, where that may hold a faster kernel, the space that complements it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilescout.search.engines.engine import Engine
from tilescout.search.studies.records import StudyResult
from tilescout.search.tuning.loop import Budget
from tilescout.search.tuning.study import SearchInterrupted
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import complement_of

_LOG = logging.getLogger(__name__)

Search = Callable[[Engine, Budget], StudyResult]
"""Searches the space of an engine's template within a budget."""


def search_both(engine: Engine, problem: Problem, budget: Budget, search: Search) -> list[StudyResult]:
    """Search the space of an engine and, behind it, its complement where that may be faster.

    Each is a study of its own, in the same processes on the GPU. What is exported of both is the faster one by its race
    (`tilescout.search.export.decisions.best_of`).

    Parameters
    ----------
    engine
        Compiles and measures. Where it replays, there is one search.
    problem
        The problem.
    budget
        Of each search; the seconds are those of both.
    search
        See `Search`.

    Returns
    -------
    list
        The results, one or two.

    Raises
    ------
    SearchInterrupted
        On Ctrl-C: in the second search with the first one's result, which is complete.
    """
    other = complement_of(engine.template, problem, engine.device) if engine.measures_anew else None
    beside = engine.beside(other) if other is not None else None
    if other is None or beside is None:
        if other is not None:
            _LOG.info("kernels of %s may be faster on this problem: tune that space too", other.name)
        return [search(engine, budget)]
    _LOG.info("kernels of %s may be faster on this problem: that space is searched next", other.name)
    with beside:  # its compilers get ready meanwhile
        first = search(engine, budget)
        left = None if budget.seconds is None else budget.seconds - first.seconds
        if left is not None and left <= 0:
            return [first]
        try:
            return [first, search(beside, replace(budget, seconds=left))]
        except SearchInterrupted as interrupt:
            raise SearchInterrupted(first, complete=True) from interrupt
        except TilescoutError as error:  # the first result stands
            _LOG.warning("the search of %s failed: %s", other.name, one_line(error))
            return [first]


def fastest(results: Sequence[StudyResult]) -> StudyResult:
    """The result whose answer is the fastest over the library at the worst end of its interval; the first of equals."""

    def worst(result: StudyResult) -> float:
        timing = result.best.measurement.timing if result.best is not None else None
        return timing.ratio_high if timing is not None else float("inf")

    return min(results, key=worst)
