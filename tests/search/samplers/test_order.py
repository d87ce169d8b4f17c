"""The order of asks and tells: by counts where trials bear them, and by times where they do not."""

from datetime import datetime, timedelta
from operator import itemgetter

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.samplers.order import PLACE, SEEN, asked_before, in_order, mark, place_of


def trial(number: int, started: int = 0, finished: int = 0, **counts: object) -> FrozenTrial:
    """A trial with times in minutes, and with counts."""
    attributes = {{"seen": SEEN, "place": PLACE}[name]: value for name, value in counts.items()}
    at, ended = (datetime(2026, 10, 25, 12) + timedelta(minutes=minutes) for minutes in (started, finished))
    return FrozenTrial(number, TrialState.COMPLETE, 1.0, at, ended, {}, {}, {}, attributes, {}, number)


def numbers(*told: FrozenTrial) -> list[int]:
    return [number for _, number in in_order([(each, each.number) for each in told], itemgetter(0))]


def test_trials_stand_in_the_order_of_their_places_whatever_their_times() -> None:
    told = trial(0, finished=60, place=1), trial(1, finished=5, place=3), trial(2, finished=9, place=2)
    assert numbers(*told) == [0, 2, 1]
    assert numbers(trial(4, finished=1, place=7), trial(3, finished=2, place=7)) == [3, 4]


def test_trials_without_a_place_stand_where_their_times_put_them() -> None:
    older = [trial(0, finished=1), trial(1, finished=0)]
    newer = [trial(2, finished=3, place=1), trial(3, finished=2, place=2), trial(5, finished=5, place=3)]
    left_unfinished = trial(4, finished=4)
    assert numbers(*newer, left_unfinished, *older) == [1, 0, 2, 3, 4, 5]


def test_a_trial_was_asked_for_before_another_was_told_if_its_tuner_did_not_know_of_that() -> None:
    told = trial(0, finished=10, place=4)
    assert asked_before(trial(1, started=20, seen=3), told)
    assert not asked_before(trial(1, started=5, seen=4), told)


@pytest.mark.parametrize("counts", [({}, {"place": 1}), ({"seen": 0}, {}), ({"seen": "text"}, {"place": [1]})])
def test_without_both_counts_times_tell_what_was_asked_before(counts: tuple[dict[str, int], dict[str, int]]) -> None:
    asked, told = counts
    assert asked_before(trial(1, started=5, **asked), trial(0, finished=10, **told))
    assert not asked_before(trial(1, started=15, **asked), trial(0, finished=10, **told))


def test_what_another_tuner_has_finished_is_left_as_it_is() -> None:
    study = optuna.create_study()
    asked = study.ask()
    mark(study, asked, PLACE, 2)
    study.tell(asked, 1.0)
    mark(study, asked, PLACE, 3)
    assert place_of(study.trials[0]) == 2
