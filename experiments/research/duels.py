"""Duels: how much faster one kernel is than another, in rounds of their own.

The winner of a race is a little lucky there. So where something is concluded from how far it leads, it leads in rounds
that it was not chosen by. A duel ends when it is known precisely, whoever leads, so that its end does not favour one.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tilescout.search.measure.heats import correlation, mean_of_heats
from tilescout.search.measure.race import Estimate, Measure, RaceOptions


class Verdict(StrEnum):
    """Whether a kernel is slower than another by more than a margin."""

    WITHIN = "within"
    MISSED = "missed"
    OPEN = "not told"


@dataclass(frozen=True)
class DuelOptions:
    """When a duel ends.

    Attributes
    ----------
    half
        Half of the 95 % interval that suffices, relative.
    least, most
        Heats at least and at most.
    """

    half: float = 0.003
    least: int = 4
    most: int = 40


def duel(
    measure: Measure, first: int, second: int, seed: int, options: DuelOptions | None = None
) -> tuple[Estimate, int]:
    """Measure two configurations in interleaved rounds until the ratio of their times is known precisely.

    The interval is of what this process would measure with ever more heats, not of other hosts.

    Parameters
    ----------
    measure
        Runs rounds.
    first, second
        The indices of the two.
    seed
        Of the order in the rounds.
    options
        See `DuelOptions`.

    Returns
    -------
    Estimate
        The time of the second over that of the first.
    int
        Heats that were run.
    """
    options, race = options or DuelOptions(), RaceOptions()
    logs = np.empty((0, race.look))
    while True:
        ratios = np.log(measure([first, second], race.look, race.pairs, seed + len(logs)))
        logs = np.vstack([logs, ratios[:, 1] - ratios[:, 0]])
        found = mean_of_heats(logs, correlation(logs[:, :, None]), race.noise)
        if len(logs) >= options.most or (len(logs) >= options.least and found.here <= options.half):
            ends = (found.mean, found.mean - found.here, found.mean + found.here)
            return Estimate(*(math.exp(end) for end in ends)), len(logs)


def verdict(slower: Estimate, margin: float) -> Verdict:
    """The verdict on a kernel that takes so many times as long as another, with an interval."""
    if slower.high <= 1 + margin:
        return Verdict.WITHIN
    return Verdict.MISSED if slower.low > 1 + margin else Verdict.OPEN
