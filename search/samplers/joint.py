"""Searches of several spaces for one problem at the same time: what each has to know of them all."""

from dataclasses import dataclass

import numpy as np

from tilescout.costmodel.arrays import Floats

ALIKE = 0.002
"""The share by which a time has to be shorter than another to count as faster: that of chance.

On 84 recorded problems that the models had not seen, with 16 proposals in flight, a patience of 15 took 20 trials in
the median with it and 22.5 without, and left 7 answers more than 1 % off either way
(`experiments/results/stop-rule.md`).
"""


def first_alike(times: Floats) -> int:
    """The position of the first of some times that is as short as the shortest, but for `ALIKE`."""
    return int(np.argmax(times <= times.min() * (1 + ALIKE)))


@dataclass(frozen=True)
class Joint:
    """How far the searches of one problem are, together.

    Attributes
    ----------
    best_us
        The least time that was found in any of the spaces, in µs; None without one.
    expected_us
        The least time that is expected of those that were tried, in µs; None where nothing is.
    since
        Trials of all that finished after the first that is as fast, but for `ALIKE`, failed ones too; 0 without one.
    trials, running
        Finished trials of all, and those in flight.
    dear, dear_running
        Of `since` and of `running`, those that had to be compiled though much was not; see `SpaceSampler.is_dear`.
    blind, blind_running
        Of `since` and of `running`, those that no sampler proposed with the best in view: they had been proposed when
        its outcome came, or were queued.
    spaces
        How many spaces are searched, or are going to be.
    """

    best_us: float | None = None
    expected_us: float | None = None
    since: int = 0
    trials: int = 0
    running: int = 0
    dear: int = 0
    dear_running: int = 0
    blind: int = 0
    blind_running: int = 0
    spaces: int = 1
