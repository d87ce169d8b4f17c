"""The order of asks and tells: by counts where trials bear them, and by times where they do not."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import itemgetter

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.samplers.order import asked_before, in_order
from tilescout.search.studies.trials import PLACE, SEEN, Count, count_of, joint_search, mark, place_of

TOGETHER = "a joint search"


def trial(number: int, started: int = 0, finished: int = 0, **counts: object) -> FrozenTrial:
    """A trial with times in minutes, and with counts."""
    attributes = {{"seen": SEEN, "place": PLACE}[name]: value for name, value in counts.items()}
    at, ended = (datetime(2026, 10, 25, 12) + timedelta(minutes=minutes) for minutes in (started, finished))
    return FrozenTrial(number, TrialState.COMPLETE, 1.0, at, ended, {}, {}, {}, attributes, {}, number)


def numbers(*told: FrozenTrial) -> list[int]:
    return [number for _, number in in_order([(each, each.number) for each in told], itemgetter(0))]


def of_both(first: Sequence[FrozenTrial], second: Sequence[FrozenTrial]) -> list[str]:
    """The study and the number of each trial of two studies, in order, however they are listed."""
    told = [("a", each) for each in first] + [("b", each) for each in second]
    ordered = in_order(told, itemgetter(1), itemgetter(0))
    assert ordered == in_order(told[::-1], itemgetter(1), itemgetter(0))
    return [f"{study}{each.number}" for study, each in ordered]


def test_trials_stand_in_the_order_of_their_places_whatever_their_times() -> None:
    told = trial(0, finished=60, place=1), trial(1, finished=5, place=3), trial(2, finished=9, place=2)
    assert numbers(*told) == [0, 2, 1]
    assert numbers(trial(4, finished=1, place=7), trial(3, finished=2, place=7)) == [3, 4]
    assert numbers(trial(0, finished=3, place=2), trial(1, finished=2, place=[1, TOGETHER])) == [1, 0]


def test_trials_without_a_place_stand_where_their_times_put_them() -> None:
    older = [trial(0, finished=1), trial(1, finished=0)]
    newer = [trial(2, finished=3, place=1), trial(3, finished=2, place=2), trial(5, finished=5, place=3)]
    left_unfinished = trial(4, finished=4)
    assert numbers(*newer, left_unfinished, *older) == [1, 0, 2, 3, 4, 5]
    assert of_both([*newer, left_unfinished, *older], []) == ["a1", "a0", "a2", "a3", "a4", "a5"]


@pytest.mark.parametrize("damaged", [0, "1", [1], [1, 2], ["1", TOGETHER], {"1": 2}, 1.0])
def test_a_place_that_is_none_is_left_out_of_account(damaged: object) -> None:
    told = [trial(0, finished=50, place=1), trial(1, finished=40, place=2), trial(2, finished=45, place=damaged)]
    assert numbers(*told) == [0, 2, 1]
    assert of_both(told, []) == ["a0", "a2", "a1"]


def test_trials_of_studies_that_were_searched_alone_are_merged_by_their_times() -> None:
    first = [trial(number, finished=number, place=number + 1) for number in range(3)]
    second = [trial(number, finished=10 + number, place=number + 1) for number in range(3)]
    assert of_both(first, second) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert of_both(second, first) == ["b0", "b1", "b2", "a0", "a1", "a2"]


def test_trials_of_a_joint_search_stand_in_the_order_of_their_places_whatever_their_times() -> None:
    first = [trial(0, finished=50, place=[1, TOGETHER]), trial(1, finished=30, place=[4, TOGETHER])]
    second = [trial(each, finished=40 - each, place=[place, TOGETHER]) for each, place in enumerate((2, 3, 5))]
    assert of_both(first, second) == ["a0", "b0", "b1", "a1", "b2"]


def test_what_was_told_alone_before_between_and_after_joint_searches_stands_there() -> None:
    first = [
        trial(0, finished=1, place=1),
        trial(1, finished=52, place=[3, TOGETHER]),
        trial(2, finished=53, place=4),
        trial(3, finished=62, place=[7, TOGETHER]),
    ]
    minutes, places = (2, 3, 54, 55, 63), (1, 2, 5, 6, 9)
    alone = [trial(2 * at, finished=minute, place=places[at]) for at, minute in enumerate(minutes)]
    second = [*alone, trial(3, finished=51, place=[4, TOGETHER]), trial(7, finished=61, place=[8, TOGETHER])]
    assert of_both(first, second) == ["a0", "b0", "b2", "a1", "b3", "a2", "b4", "b6", "a3", "b7", "b8"]


def test_a_trial_was_asked_for_before_another_was_told_if_its_tuner_did_not_know_of_that() -> None:
    told = trial(0, finished=10, place=4)
    assert asked_before(trial(1, started=20, seen=3), told)
    assert not asked_before(trial(1, started=5, seen=4), told)
    assert not asked_before(trial(1, started=5, seen=[4, TOGETHER]), told)


@pytest.mark.parametrize("seen", [3, 4])
def test_of_two_studies_the_counts_of_one_joint_search_tell_what_was_asked_before(seen: int) -> None:
    told = trial(0, finished=10, place=[4, TOGETHER])
    for started in (5, 20):
        asked = trial(1, started=started, seen=[seen, TOGETHER])
        assert asked_before(asked, told, of_one_study=False) == (seen < 4)
        for alone in (seen, [seen, "another search"]):
            asked = trial(1, started=started, seen=alone)
            assert asked_before(asked, told, of_one_study=False) == (started < 10)
            assert asked_before(asked, trial(0, finished=10, place=4), of_one_study=False) == (started < 10)


def test_a_joint_search_is_the_same_for_all_of_its_tuners_and_no_other() -> None:
    first, second, third = (optuna.create_study(study_name=name) for name in ("first", "second", "first, second"))
    found = joint_search([first, second])
    assert found == joint_search([second, first]) == "e52df7e0f2aa"  # studies hold it
    assert len({found, joint_search([first, third]), joint_search([second, third]), joint_search([third])}) == 4


@pytest.mark.parametrize("counts", [({}, {"place": 1}), ({"seen": 0}, {}), ({"seen": "text"}, {"place": [1]})])
def test_without_both_counts_times_tell_what_was_asked_before(counts: tuple[dict[str, int], dict[str, int]]) -> None:
    asked, told = counts
    assert asked_before(trial(1, started=5, **asked), trial(0, finished=10, **told))
    assert not asked_before(trial(1, started=15, **asked), trial(0, finished=10, **told))


def test_what_another_tuner_has_finished_is_left_as_it_is() -> None:
    study = optuna.create_study()
    asked = study.ask()
    mark(study, asked, PLACE, Count(2, TOGETHER))
    study.tell(asked, 1.0)
    mark(study, asked, PLACE, Count(3))
    assert place_of(study.trials[0]) == 2
    assert count_of(study.trials[0], PLACE) == Count(2, TOGETHER)
