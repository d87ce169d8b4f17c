"""The results of several searches, each kept until all are there."""

import threading
from collections.abc import Sequence

from tilescout.search.studies.records import StudyResult
from tilescout.search.tuning.study import QUIET_SECONDS


class Answers:
    """Keeps searches that have their results until all have: what logs one takes its time from the others.

    Parameters
    ----------
    searches
        The numbers of the problem and of the space of each, in the order of the results. Without a result in the first
        space of a problem there is no answer to it.
    """

    def __init__(self, searches: Sequence[tuple[int, int]]) -> None:
        self.searches = searches
        self._results: dict[tuple[int, int], StudyResult] = {}
        self._left: set[tuple[int, int]] = set()
        self._open = False
        self._changed = threading.Condition()

    def give(self, search: tuple[int, int], result: StudyResult) -> None:
        """Have the result of a search, and wait for the others' for a while."""
        with self._changed:
            self._results[search] = result
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open, QUIET_SECONDS)

    def leave(self, search: tuple[int, int]) -> None:
        """End, with a result or without."""
        with self._changed:
            self._left.add(search)
            self._changed.notify_all()

    def wait(self) -> list[StudyResult]:
        """Wait until no more results can come: those of the problems that have an answer, in the searches' order."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._left | self._results.keys()) == len(self.searches))
            return [self._results[each] for each in self.searches if {each, (each[0], 0)} <= self._results.keys()]

    def open(self) -> None:
        """Keep nobody any more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()
