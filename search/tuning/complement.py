"""Search a space for a problem and, where that may hold a faster kernel, the space that complements it."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from tilescout.search.engines.complements import complement_behind, complemented
from tilescout.search.engines.engine import Engine
from tilescout.search.studies.answers import loses
from tilescout.search.studies.records import StudyResult
from tilescout.search.tuning.loop import Budget
from tilescout.search.tuning.study import SearchInterrupted
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.problems import Problem

_LOG = logging.getLogger(__name__)

Search = Callable[[Engine, Budget], StudyResult]
"""Searches the space of an engine's template within a budget."""


def search_both(engine: Engine, problem: Problem, budget: Budget, search: Search) -> list[StudyResult]:
    """Search the space of an engine and, behind it, its complement where that may be faster.

    It may be where an estimate says so, and where the first answer has lost to the library in its race. Each is a study
    of its own, in the same processes on the GPU. What is exported of both is the faster one by its race
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
    with ExitStack() as stack:
        _, *behind = stack.enter_context(complemented(engine, [problem]))
        first = search(engine, budget)
        left = None if budget.seconds is None else budget.seconds - first.seconds
        if left is not None and left <= 0:
            return [first]
        if not behind and loses(first):
            behind = stack.enter_context(complement_behind(engine, [problem]))
        if not behind:
            return [first]
        ((beside, _),) = behind
        try:
            return [first, search(beside, replace(budget, seconds=left))]
        except SearchInterrupted as interrupt:
            raise SearchInterrupted(first, complete=True) from interrupt
        except TilescoutError as error:  # the first result stands
            tell_failure(beside, problem, error)
            return [first]


def tell_failure(beside: Engine, problem: Problem, error: TilescoutError) -> None:
    """Say in the log why there is no result of a complement."""
    _LOG.warning("%s: the search of %s failed: %s", problem, beside.template.name, one_line(error))
