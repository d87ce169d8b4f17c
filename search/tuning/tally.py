"""Sums over the trials of a search: by study, and of all its studies together."""

import math
from dataclasses import dataclass

from tilescout.search.studies.records import TrialRecord


@dataclass(frozen=True)
class Told:
    """A finished trial of any of the studies, as far as it counts for all.

    Attributes
    ----------
    ratio
        Its time over the library's; infinite without one.
    is_dear
        See `Joint`.
    proposed, finished
        When a sampler proposed it, and when its outcome was known, in seconds since the epoch.
    """

    ratio: float
    is_dear: bool
    proposed: float
    finished: float


class Tally:
    """Sums over the finished trials of a study.

    Attributes
    ----------
    trials, gpu_seconds
        How many there are, and the seconds of GPU time that they took.
    incumbent
        The best ratio to the library; infinite without one.
    running
        Trials in flight.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self.gpu_seconds = 0.0
        self.incumbent = math.inf
        self.running = 0

    @property
    def trials(self) -> int:
        return len(self._numbers)

    @property
    def in_hand(self) -> int:
        """Trials that are finished or in flight."""
        return self.trials + self.running

    def add(self, trial: TrialRecord) -> bool:
        """Count a trial; False if it was counted before."""
        if trial.number in self._numbers:
            return False
        self._numbers.add(trial.number)
        self.gpu_seconds += trial.measurement.gpu_seconds
        if trial.measurement.timing is not None:
            self.incumbent = min(self.incumbent, trial.measurement.timing.ratio)
        return True
