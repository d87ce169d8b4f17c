"""Whether the configurations of a space differ by more than noise, as far as a search can tell."""

from collections.abc import Sequence

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.coordinates import coordinates_of
from tilescout.costmodel.signal import explained
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.spaces.knobs import Knob, Value
from tilescout.spaces.space import SearchSpace

LEAST = 60
"""Timed trials from which on it can be told."""

EARLY = 40
"""Timed trials after which a search by `guided-cold` asks. Of 51 such searches of 18 tables of the hub and of our own
kernels none was below `LITTLE` then, and of some 130 orders dealt out at random three were above. Of random searches
two of 30 were below, which at 60 none was: of other strategies' searches it is asked for at `LEAST`."""

LITTLE = 0.6
"""A rank correlation that noise stays below: after 60 timed trials it was 0.72 or more in 21 searches of 11 tables of
Kernel Tuner's benchmark hub, and at most 0.51 in 20 whose times were dealt out at random. On the GEMM, which it was not
chosen on, it was 0.80 or more in seven searches, and at most 0.44 (`experiments/results/correlated-errors.md`)."""


def unexplained(result: StudyResult) -> str | None:
    """That configurations seem to differ by noise alone; None if they do not, or if it can't be told.

    It can't where a cost model guided the search: its trials are nearly equally fast, for a good reason.
    """
    timed = [trial for trial in result.trials if trial.measurement.ok]
    if result.info.guide is not None or len(timed) < LEAST:
        return None
    values = np.log([trial.measurement.time_us for trial in timed])
    return doubt(_points(timed), values)


def doubt(points: Floats, values: Floats) -> str | None:
    """That values seem to differ by noise alone; None if they do not.

    Parameters
    ----------
    points
        Where the configurations lie, of shape [configurations, coordinates].
    values
        What was measured of them, of shape [configurations], at least `EARLY`.
    """
    found = explained(points, values)
    if found >= LITTLE:
        return None
    return (
        f"the times of {len(values)} trials hardly depend on their configurations (rank correlation "
        f"{max(found, 0.0):.2f}, noise stays below {LITTLE}): they may differ by noise alone, and then "
        "no strategy beats random search"
    )


def _points(trials: Sequence[TrialRecord]) -> Floats:
    """Where the configurations lie by their knobs, of shape [trials, coordinates]."""
    rows = [trial.configuration for trial in trials]
    knobs = [Knob(name, tuple(sorted({row[name] for row in rows}, key=_order)), "as tried") for name in rows[0]]
    return coordinates_of(knobs, SearchSpace.codes_of(knobs, [[row[knob.name] for knob in knobs] for row in rows]))


def _order(value: Value) -> tuple[bool, float, str]:
    """By number, then by text."""
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")
