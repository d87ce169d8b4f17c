"""Searches of several spaces for one problem at the same time: what each has to know of them all."""

from dataclasses import dataclass


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
        Trials of all that finished after that was found, failed ones too; 0 without one.
    trials, running
        Finished trials of all, and those in flight.
    """

    best_us: float | None = None
    expected_us: float | None = None
    since: int = 0
    trials: int = 0
    running: int = 0
