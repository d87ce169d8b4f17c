"""The order of tiles by strands: nothing is left out, and blocks that run together are at several places."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.grouped_strands_sm90.order import unit_at


@given(st.integers(0, 300), st.integers(1, 9))
def test_every_unit_of_work_has_one_turn(count: int, strands: int) -> None:
    assert sorted(unit_at(turn, count, strands) for turn in range(count)) == list(range(count))


@given(st.integers(1, 40), st.integers(2, 9), st.integers(0, 8))
def test_strands_begin_evenly_apart_and_each_goes_on_in_the_order_of_the_list(
    rounds: int, strands: int, more: int
) -> None:
    count = rounds * strands + more % strands
    order = [unit_at(turn, count, strands) for turn in range(count)]
    begins = order[:strands]
    assert {after - before for before, after in pairwise(begins)} <= {rounds, rounds + 1}
    for strand, begin in enumerate(begins):
        mine = order[strand::strands]
        assert mine == list(range(begin, begin + len(mine)))


def test_one_strand_is_the_list() -> None:
    assert [unit_at(turn, 5, 1) for turn in range(5)] == [0, 1, 2, 3, 4]
