"""Sums over the trials of a search: by study, and of all its studies together."""

import math
from dataclasses import dataclass

import numpy as np
from optuna.trial import FrozenTrial

from tilescout.search.samplers.joint import first_alike
from tilescout.search.samplers.order import asked_before
from tilescout.search.studies.records import TrialRecord


@dataclass(frozen=True, eq=False)
class Told:
    """A finished trial of any of the studies, as far as it counts for all.

    Attributes
    ----------
    trial, study
        The trial, and the number of its study.
    ratio
        Its time over the library's; infinite without one.
    is_dear
        See `Joint`.
    is_given
        Whether no sampler proposed it; see `was_given`.
    """

    trial: FrozenTrial
    study: int
    ratio: float
    is_dear: bool
    is_given: bool

    def is_behind_ask_of(self, trial: FrozenTrial, study: int) -> bool:
        """Whether it was told after a trial of one of the studies had been asked for."""
        return asked_before(trial, self.trial, study == self.study)


class Behind:
    """Counts of the trials that were told behind the first of those that are as fast as the best.

    Attributes
    ----------
    best
        The least ratio to the library; infinite without one.
    known
        The first trial that is as fast, but for `ALIKE`; None without one.
    since, dear, blind
        See `Joint`.
    """

    def __init__(self) -> None:
        self.best = math.inf
        self.known: Told | None = None
        self.since = self.dear = self.blind = 0
        self._told: list[Told] = []

    def add(self, told: Told) -> None:
        """Count a trial that was told just now."""
        self._told.append(told)
        behind = [told] if self.known is not None else []
        if told.ratio < self.best:
            self.best = told.ratio
            first = first_alike(np.array([each.ratio for each in self._told]))
            self.known, behind = self._told[first], self._told[first + 1 :]
            self.since = self.dear = self.blind = 0
        for each in behind:
            assert self.known is not None
            self.since += 1
            self.dear += each.is_dear
            self.blind += each.is_given or self.known.is_behind_ask_of(each.trial, each.study)


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
