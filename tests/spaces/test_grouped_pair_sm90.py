"""Two grouped kernels as one: what the device counts, and how a pair is written down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90 import TEMPLATE as SINGLE
from tilescout.spaces.grouped_pair_sm90 import TEMPLATE, pair_of
from tilescout.spaces.grouped_pair_sm90.rule import SCALE, PairRule, Side, counted, sums_at
from tilescout.spaces.grouped_pair_sm90.template import SIDES, side_of, single_of
from tilescout.spaces.grouped_streamk_sm90 import TEMPLATE as SHARING
from tilescout.spaces.knobs import Configuration

H200 = DEVICES["h200"]
FEW = SINGLE.default(GroupedProblem.parse("8x64x28672x4096"), H200)
MANY = SINGLE.default(GroupedProblem.parse("8x8192x28672x4096"), H200)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20), st.integers(1, 60))
def test_tiles_and_rounds_are_those_that_a_walk_over_all_groups_finds(groups: list[int], columns: int) -> None:
    sides, n, at_once = (Side(16, 128, 1), Side(256, 192, 2)), 8 * columns, 132
    expected = [1, sum(size > 0 for size in groups)]
    tiles = [sum(len(range(0, size, side.tokens)) for size in groups) for side in sides]
    units = [many * len(range(0, n, side.columns)) for many, side in zip(tiles, sides, strict=True)]
    rounds = [len(range(0, many, at_once // side.blocks)) for many, side in zip(units, sides, strict=True)]
    assert counted(groups, n, sides, at_once).tolist() == [*expected, *tiles, *rounds]


def test_the_second_runs_where_the_weighted_sum_is_above_zero() -> None:
    sides = (Side(16, 128, 1), Side(128, 192, 1))
    rule = PairRule((-3 * SCALE, 0, SCALE, -SCALE, 0, 0))  # more than 3 tiles of the first for those of the second
    for groups, second in (((16, 16), False), ((64, 0), False), ((64, 16), False), ((80, 0), True)):
        assert (rule.score(counted(groups, 256, sides, 132)) > 0) == second


def test_a_pair_holds_both_configurations_and_the_rule() -> None:
    rule = PairRule((1, -2, 3, -4, 5, -6))
    sharing = Configuration.of({**MANY, "shares": 1})
    pair = pair_of(FEW, sharing, rule)
    assert [dict(single_of(pair, side)) for side in SIDES] == [{**FEW, "shares": 0}, dict(sharing)]
    assert [pair[name] for name in ("constant", "second_rounds")] == [1, -6]


def test_a_pair_has_memory_for_the_offsets_of_both_and_behind_them_for_the_sums_of_a_shared_wave() -> None:
    rule, problem = PairRule((0,) * 6), GroupedProblem.parse("9x64x28672x4096")
    sharing = Configuration.of({**MANY, "shares": 1})
    offsets = TEMPLATE.scratch_bytes(pair_of(FEW, MANY, rule), problem)
    assert offsets == 4 * sums_at(9) >= 2 * 4 * 9
    needed = SHARING.scratch_bytes(sharing, problem)
    # A tile of both blocks for each of 72 clusters, and for each but one where it ends one tile and begins the next.
    assert needed == (2 * 72 - 1) * 2 * 128 * 192 * 4
    assert TEMPLATE.scratch_bytes(pair_of(FEW, sharing, rule), problem) == offsets + needed


def test_sides_are_told_along_the_tokens_whether_operands_are_swapped_or_not() -> None:
    assert (FEW["swap_ab"], FEW["tile_m"], FEW["tile_n"]) == (1, 128, 16)
    assert side_of(FEW) == Side(16, 128, 1)
    assert (MANY["swap_ab"], MANY["tile_m"], MANY["tile_n"], MANY["cluster_m"]) == (0, 128, 192, 2)
    assert side_of(MANY) == Side(256, 192, 2)


def test_pairs_are_no_space_to_search() -> None:
    with pytest.raises(SpaceError, match="search grouped_streamk_sm90"):
        TEMPLATE.space(GroupedProblem.parse("8x64x28672x4096"), H200)
