"""A tracker that is made beside the search: nothing is lost, and nobody waits for it before the end."""

import threading
from collections.abc import Iterable
from typing import cast

import pytest

from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tuning.trackers import LateTracker, NoTracker
from tilescout.spaces.errors import StoreError

TRIALS = cast(list[TrialRecord], ["first", "second", "third"])  # a tracker that is late only hands them on


class Noted(NoTracker):
    """Notes what it is told."""

    run_id, page = "run", "page"

    def __init__(self) -> None:
        self.told: list[object] = []

    def catch_up(self, trials: Iterable[TrialRecord]) -> None:
        self.told.append([*trials])

    def log(self, trial: TrialRecord) -> None:
        self.told.append(trial)

    def finish(self, result: StudyResult) -> None:
        self.told.append(result)


def test_what_is_logged_before_it_is_there_arrives_in_order() -> None:
    noted, may_be_made = Noted(), threading.Event()

    def make() -> Noted:
        assert may_be_made.wait(120)
        return noted

    with LateTracker(make) as tracker:
        tracker.catch_up(iter(TRIALS[:1]))
        tracker.log(TRIALS[1])
        assert (tracker.run_id, noted.told) == ("", [])
        may_be_made.set()
        assert (tracker.page, tracker.run_id) == ("page", "run")
        assert noted.told == [TRIALS[:1], TRIALS[1]]
        tracker.log(TRIALS[2])
        assert noted.told[-1] == TRIALS[2]


@pytest.mark.parametrize("asks", [True, False])
def test_it_is_not_made_in_its_quiet_time_before_something_waits_for_it(asks: bool) -> None:
    noted = Noted()
    with LateTracker(lambda: noted, quiet=600) as tracker:
        tracker.log(TRIALS[0])
        assert (tracker.run_id, noted.told) == ("", [])
        if asks:
            assert tracker.page == "page"
    assert noted.told == TRIALS[:1]


def fail() -> NoTracker:
    raise StoreError("no such store")


@pytest.mark.parametrize("asks", [True, False])
def test_what_stops_it_from_being_made_is_raised_once(asks: bool) -> None:
    def search() -> None:
        with LateTracker(fail) as tracker:
            assert tracker.run_id == ""
            if asks:
                with pytest.raises(StoreError, match="no such store"):
                    _ = tracker.page

    if asks:
        search()
    else:
        with pytest.raises(StoreError, match="no such store"):
            search()


def test_an_error_of_the_search_matters_more_than_that_of_the_tracker() -> None:
    with pytest.raises(ValueError, match="search"), LateTracker(fail):
        raise ValueError("of the search")
