"""Where the seconds of a run of a search go, each counted once."""

import time
from collections.abc import Iterable

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.studies.records import TrialRecord


class WallClock:
    """Takes the time of one run of a search, from when it is made.

    Parameters
    ----------
    evaluator
        What the search waits for.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._waited, self._lent = evaluator.waited, evaluator.lent
        self._begun = self._last = time.monotonic()
        self._parts: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._begun

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of each part that has ended, by its name."""
        return dict(self._parts)

    def end(self, part: str) -> None:
        """Count the seconds since the end of the last part to this one."""
        now = time.monotonic()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now
        self._waited, self._lent = self._evaluator.waited, self._evaluator.lent

    def end_search(self, trials: Iterable[TrialRecord]) -> None:
        """Count the seconds since the end of the last part by what the search did.

        Waiting for outcomes is ``measure`` as far as the GPU measured, and else ``compile``; ``turn`` is waiting while
        another search has the GPU, and ``propose`` the rest: the sampler, the files of the study, the tracker.

        Parameters
        ----------
        trials
            Those that this run has finished.
        """
        waited, lent = self._evaluator.waited - self._waited, self._evaluator.lent - self._lent
        measured = min(waited, sum(trial.measurement.gpu_seconds for trial in trials))
        self.end("propose")
        self._parts["propose"] = max(0.0, self._parts["propose"] - waited - lent)
        self._parts |= {"compile": waited - measured, "measure": measured}
        if lent:
            self._parts["turn"] = lent
