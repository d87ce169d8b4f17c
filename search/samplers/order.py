"""The order of asks and tells, by counts that trials bear: clocks are set back, and differ by machine."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from optuna.trial import FrozenTrial

from tilescout.search.studies.trials import PLACE, SEEN, count_of, place_of

T = TypeVar("T")


def in_order(
    told: Iterable[T], trial_of: Callable[[T], FrozenTrial], study_of: Callable[[T], Hashable] = lambda each: None
) -> list[T]:
    """The trials that were told, in that order.

    Those of a study are by their places; one without a place stands where its time puts it. Those of several studies
    are by their places where one joint search counted them, and by their times otherwise.

    Parameters
    ----------
    told
        What has a trial each.
    trial_of
        The trial of one.
    study_of
        Of one, a mark of the study that has its trial; by default all are of one.
    """
    found = list(told)
    trials = [trial_of(each) for each in found]
    studies: dict[Hashable, list[int]] = {}
    for at, each in enumerate(found):
        studies.setdefault(study_of(each), []).append(at)
    by_study = [_of_one(trials, study) for study in studies.values()]
    order = by_study[0] if len(by_study) == 1 else _of_several(trials, by_study)
    return [found[at] for at in order]


def _of_one(trials: Sequence[FrozenTrial], study: Sequence[int]) -> list[int]:
    """The positions of the trials of a study, in order."""
    with_place = sorted((place, trials[at].number, at) for at in study if (place := place_of(trials[at])))
    if len(with_place) == len(study):
        return [at for _, _, at in with_place]
    placed = iter(with_place)
    by_time = sorted(study, key=lambda at: _finished(trials[at]))
    return [next(placed)[2] if place_of(trials[at]) else at for at in by_time]


def _of_several(trials: Sequence[FrozenTrial], by_study: Iterable[Sequence[int]]) -> list[int]:
    """The positions of the trials of several studies, each of which is in order, in the order of all.

    The next is always the earliest of those that are the next of their study and of their joint search.
    """
    studies = [deque(study) for study in by_study]
    search_of: dict[int, str] = {}
    searches: dict[str, list[tuple[int, int, int, int]]] = {}
    for number, study in enumerate(studies):
        for at in study:
            place = count_of(trials[at], PLACE)
            if place is not None and place.number and place.search is not None:
                search_of[at] = place.search
                searches.setdefault(place.search, []).append((place.number, trials[at].number, number, at))
    waiting = {search: deque(at for *_, at in sorted(some)) for search, some in searches.items()}

    def is_next(study: deque[int]) -> bool:
        at = study[0]
        return at not in search_of or waiting[search_of[at]][0] == at

    order = list[int]()
    while studies := [study for study in studies if study]:
        # There is one always: in each study, too, the trials of a joint search are by their places.
        earliest = min(filter(is_next, studies), key=lambda study: _finished(trials[study[0]]))
        at = earliest.popleft()
        order.append(at)
        if at in search_of:
            waiting[search_of[at]].popleft()
    return order


def asked_before(trial: FrozenTrial, told: FrozenTrial, of_one_study: bool = True) -> bool:
    """Whether a trial was asked for before another one was told, of the same study or another one."""
    seen, place = count_of(trial, SEEN), count_of(told, PLACE)
    if seen is not None and place is not None and (of_one_study or seen.search == place.search is not None):
        return seen.number < place.number
    started, finished = trial.datetime_start, told.datetime_complete
    return started is not None and finished is not None and started < finished


def _finished(trial: FrozenTrial) -> tuple[datetime, int]:
    return trial.datetime_complete or datetime.max, trial.number
