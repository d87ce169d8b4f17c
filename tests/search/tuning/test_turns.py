"""Who of several searches has a GPU next."""

import threading
import time
from contextlib import suppress

import pytest

from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.turns import Claim, Line, StoppedError, Turns


def test_what_was_never_tried_comes_first_then_what_can_not_say_then_the_largest_gain_a_second() -> None:
    new, mute, much, little = Claim(0, 0.0, None), Claim(5, 9.0, None), Claim(5, 1.0, 0.1), Claim(5, 1.0, 0.01)
    costly = Claim(5, 100.0, 0.1)
    assert sorted([costly, little, much, mute, new], key=Claim.rank) == [new, mute, much, little, costly]


def test_searches_that_can_not_say_what_they_expect_share_the_time_evenly() -> None:
    turns = Turns(2, 1, Budget(), slice=4)
    spent = [0.0, 0.0]
    order = []
    costs = (3.0, 1.0)  # of a turn

    def search(number: int) -> None:
        trials = 0
        while True:
            turn = turns.take(number, Claim(trials, spent[number], None))
            order.append(number)
            trials, spent[number] = trials + turn.trials, spent[number] + costs[number]
            if len(order) < 12:
                turns.give(number, turn, Claim(trials, spent[number], None))
                continue
            turns.leave(number, turn, Claim(trials, spent[number], None))
            turns.stop()
            return

    threads = [threading.Thread(target=_ignoring_stop, args=(search, number)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert order[:10] == [0, 1, 1, 1, 0, 1, 1, 1, 0, 1]


def _ignoring_stop(search, number: int) -> None:
    with suppress(StoppedError):
        search(number)


def test_the_budget_is_that_of_all_together() -> None:
    turns = Turns(1, 1, Budget(trials=10), slice=8)
    turn = turns.take(0, Claim(0, 0.0, None))
    assert turn.trials == 8
    turns.give(0, turn, Claim(8, 1.0, None))
    turn = turns.take(0, Claim(8, 1.0, None))
    assert turn.trials == 2
    turns.give(0, turn, Claim(10, 1.0, None))
    assert turns.take(0, Claim(10, 1.0, None)).trials == 0


def test_what_a_turn_took_counts_as_soon_as_it_ends_whoever_asks_next() -> None:
    turns = Turns(2, 1, Budget(trials=10), slice=4, seats=2)
    claim = Claim(4, 1.0, None)
    for search, turn in enumerate([turns.take(search, Claim(0, 0.0, None)) for search in range(2)]):
        turns.give(search, turn, claim)
    assert turns.take(1, claim).trials == 2  # though the first has not asked again


def test_turns_that_run_at_the_same_time_share_the_gpu_seconds_that_are_left() -> None:
    turns = Turns(3, 1, Budget(gpu_seconds=6.0), slice=4, seats=2)
    begun = [turns.take(search, Claim(0, 0.0, None)) for search in range(2)]
    assert [turn.gpu_seconds for turn in begun] == [3.0, 3.0]
    for search, turn in enumerate(begun):
        turns.leave(search, turn, Claim(4, 1.0, None))
    assert turns.take(2, Claim(0, 0.0, None)).gpu_seconds == 4.0  # nobody else is left


def test_gpu_seconds_that_a_turn_has_are_no_others_until_it_ends() -> None:
    turns = Turns(3, 1, Budget(gpu_seconds=6.0), slice=4, seats=3)
    begun = [turns.take(search, Claim(0, 0.0, None)) for search in range(3)]
    assert [turn.gpu_seconds for turn in begun] == [2.0] * 3
    turns.give(0, begun[0], Claim(4, 2.0, None))
    assert turns.ask(0, Claim(4, 2.0, None)) is None
    turns.give(1, begun[1], Claim(4, 0.5, None))
    for search, claim in ((1, Claim(4, 0.5, None)), (0, Claim(4, 2.0, None))):
        assert turns.take(search, claim).gpu_seconds == 0.75


def test_a_search_goes_on_where_rounding_alone_leaves_some_of_the_gpu_seconds() -> None:
    spent = sum([0.1] * 10)
    assert 0.0 < 1.0 - spent < 1e-9
    turns, claim = Turns(1, 1, Budget(gpu_seconds=1.0), slice=10), Claim(10, spent, None)
    turns.give(0, turns.take(0, Claim(0, 0.0, None)), claim)
    assert turns.ask(0, claim) == 0  # no other turn runs whose end it could wait for


@pytest.mark.parametrize("budget", [Budget(gpu_seconds=1.0), Budget(seconds=1e-9)])
def test_when_the_time_is_up_a_turn_is_for_the_race_alone(budget: Budget) -> None:
    turns = Turns(1, 1, budget, slice=8)
    turns.give(0, turns.take(0, Claim(0, 0.0, None)), Claim(8, 1.0, None))
    assert turns.take(0, Claim(8, 1.0, None)).trials == 0


@pytest.mark.parametrize("budget", [Budget(trials=2), Budget(gpu_seconds=1e-9), Budget(seconds=1e-9)])
def test_a_search_has_its_default_tried_however_small_the_budget_is(budget: Budget) -> None:
    turns = Turns(3, 3, budget, slice=8)
    taken: dict[int, int] = {}

    def take(search: int) -> None:
        taken[search] = turns.take(search, Claim(0, 1.0, None)).trials

    threads = [threading.Thread(target=take, args=(search,)) for search in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert taken == {0: 1, 1: 1, 2: 1}


def test_none_goes_on_before_all_have_looked_at_what_they_have() -> None:
    turns = Turns(3, 1, Budget(trials=20), slice=8, seats=2, resumed=True)
    new, had = Claim(0, 0.0, None), (Claim(0, 0.0, None), Claim(4, 1.0, None), Claim(11, 2.0, None))
    looked = [turns.take(search, new) for search in range(2)]
    assert all(turn.looks for turn in looked)
    for search, turn in enumerate(looked):
        turns.give(search, turn, had[search])
        assert turns.ask(search, had[search]) is None
    last = turns.take(2, new)
    turns.give(2, last, had[2])
    assert turns.ask(2, had[2]) is None  # it had its first turn, and the others have not

    first = [turns.take(search, had[search]) for search in range(2)]
    assert [turn.trials for turn in first] == [2, 2]  # of the 5 that are left: one lacks 6 of its first turn, one 2
    for search, turn in enumerate(first):
        turns.leave(search, turn, Claim(had[search].trials + turn.trials, 3.0, None))
    assert turns.take(2, had[2]).trials == 1


def test_a_resumed_search_has_its_default_tried_where_others_spent_all() -> None:
    turns = Turns(2, 2, Budget(trials=8), slice=8, resumed=True)
    new, had = Claim(0, 0.0, None), Claim(9, 1.0, None)
    assert [turns.ask(search, new) for search in range(2)] == [None, 1]
    for search, claim in ((0, new), (1, had)):
        turns.give(search, turns.take(search, new), claim)
    assert turns.ask(1, had) is None
    assert turns.take(0, new).trials == 1


def test_a_search_is_given_the_gpu_that_it_had() -> None:
    turns = Turns(1, 3, Budget(), slice=8)
    first = turns.take(0, Claim(0, 0.0, None))
    turns.give(0, first, Claim(8, 1.0, None))
    assert turns.take(0, Claim(8, 1.0, None)).gpu == first.gpu


def test_a_turn_that_was_asked_for_is_the_one_that_is_taken_and_goes_back_if_it_never_is() -> None:
    turns = Turns(3, 1, Budget(), slice=8, seats=2)
    claim = Claim(0, 0.0, None)
    assert [turns.ask(search, claim) for search in range(3)] == [0, 0, None]
    turns.take(0, claim)
    turns.leave(1, None, claim)
    assert turns.take(2, claim).gpu == 0


def test_a_turn_has_what_is_left_of_the_seconds() -> None:
    turns = Turns(1, 1, Budget(gpu_seconds=5.0, seconds=600.0), slice=8)
    claim = Claim(8, 2.0, None)
    turns.give(0, turns.take(0, Claim(0, 0.0, None)), claim)
    left = turns.take(0, claim).budget(claim, whole=False)
    assert (left.trials, left.gpu_seconds) == (16, 5.0)
    assert left.seconds is not None
    assert 500 < left.seconds <= 600


def test_whoever_has_the_least_rank_of_those_that_wait_is_next_in_line() -> None:
    line, begun = Line(), list[tuple[int, int]]()

    def hold(*rank: int) -> None:
        with line.held(*rank):
            begun.append((rank[0], rank[1]))

    ranks = [(2, 0), (0, 1), (1, 0), (1, 1)]
    threads = [threading.Thread(target=hold, args=rank) for rank in ranks]
    with line.held(3, 0):
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 60
        while len(line._waiting) < len(ranks) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not begun
    for thread in threads:
        thread.join(timeout=60)

    assert begun == sorted(ranks)


def test_a_line_goes_on_behind_one_that_failed() -> None:
    line = Line()
    with suppress(ValueError), line.held(0, 0):
        raise ValueError
    with line.held(0, 0):
        pass


def test_as_many_as_there_are_places_hold_a_line_at_the_same_time() -> None:
    line, inside, go_on = Line(2), list[int](), threading.Event()

    def hold(rank: int) -> None:
        with line.held(rank):
            inside.append(rank)
            go_on.wait(60)

    threads = [threading.Thread(target=hold, args=(rank,)) for rank in range(3)]
    for thread in threads[:2]:
        thread.start()
    deadline = time.monotonic() + 60
    while len(inside) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    threads[2].start()
    while not line._waiting and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(inside) == [0, 1]
    go_on.set()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(inside) == [0, 1, 2]
