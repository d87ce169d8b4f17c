"""The order of a study's asks and tells, by counts that its trials bear: clocks are set back, and differ by machine."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial

from tilescout.search.studies.optuna_hooks import set_system_attribute

SEEN = "tilescout:seen"
"""The system attribute of a trial that holds the last place that its tuner knew of when it asked for it; 0 for none."""

PLACE = "tilescout:place"
"""The system attribute of a trial that holds its place among those told: from 1, and behind all that its tuner knew of.

Trials of several tuners may have the same place; the smaller number comes first then. Older trials have none, nor do
those that a search had left unfinished and that another finished with their stored outcome: times tell of these.
"""

T = TypeVar("T")


def mark(study: optuna.Study, trial: optuna.Trial, key: str, value: int) -> None:
    """Store `SEEN` or `PLACE` of a trial that is in flight."""
    with suppress(UpdateFinishedTrialError):  # another tuner has settled it
        set_system_attribute(study, study.get_trials(deepcopy=False)[trial.number], key, value)


def place_of(trial: FrozenTrial) -> int:
    """The place of a trial among those told; 0 if none is known."""
    return _count(trial, PLACE) or 0


def in_order(told: Iterable[T], trial_of: Callable[[T], FrozenTrial]) -> list[T]:
    """The trials that were told, in that order; those without a place stand where their times put them."""
    by_time = sorted(told, key=lambda each: _finished(trial_of(each)))
    with_place = [each for each in by_time if place_of(trial_of(each))]
    with_place.sort(key=lambda each: (place_of(trial_of(each)), trial_of(each).number))
    placed = iter(with_place)
    return [next(placed) if place_of(trial_of(each)) else each for each in by_time]


def asked_before(trial: FrozenTrial, told: FrozenTrial) -> bool:
    """Whether a trial was asked for before another one was told."""
    seen, place = _count(trial, SEEN), place_of(told)
    if seen is not None and place:
        return seen < place
    started, finished = trial.datetime_start, told.datetime_complete
    return started is not None and finished is not None and started < finished


def _finished(trial: FrozenTrial) -> tuple[datetime, int]:
    return trial.datetime_complete or datetime.max, trial.number


def _count(trial: FrozenTrial, key: str) -> int | None:
    found = trial.system_attrs.get(key)
    return found if isinstance(found, int) else None
