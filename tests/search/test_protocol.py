"""The decisions of the measuring protocol."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.evaluate.interval import median_interval
from tilescout.search.evaluate.protocol import ProtocolOptions, block_launches, input_sets, is_pruned, is_settled

OPTIONS = ProtocolOptions()
MOST_SETS = 256
times = st.floats(0.01, 1e6)
ratios = st.floats(0.1, 100)
sets = st.integers(1, MOST_SETS)


@given(input_bytes=st.integers(48, 2**34), l2_bytes=st.sampled_from([0, 50 * 2**20, 126 * 2**20]))
def test_inputs_are_rotated_past_the_l2_by_as_few_sets_as_will_do(input_bytes: int, l2_bytes: int) -> None:
    count = input_sets(input_bytes, l2_bytes, OPTIONS)
    cold = max(OPTIONS.cold_l2 * l2_bytes, OPTIONS.cold_bytes)

    assert 1 <= count <= MOST_SETS
    assert count * input_bytes >= cold or count == MOST_SETS
    assert count == 1 or (count - 1) * input_bytes < cold


@given(times, sets)
def test_a_block_is_filled_and_takes_every_set_equally_often_or_is_one_launch(library_us: float, sets: int) -> None:
    launches = block_launches(library_us, sets, OPTIONS)

    if library_us >= OPTIONS.single_us:
        assert launches == 1
    else:
        assert launches % sets == 0
        rotation_us = sets * max(library_us, 0.1)
        assert launches == sets or abs(launches * max(library_us, 0.1) - OPTIONS.block_us) <= 0.501 * rotation_us


@given(ratios)
def test_without_an_incumbent_nothing_is_pruned(pilot: float) -> None:
    assert not is_pruned(pilot, None, OPTIONS)


@given(ratios, ratios)
def test_a_pilot_is_pruned_if_it_is_so_much_slower_than_the_incumbent(pilot: float, incumbent: float) -> None:
    assert is_pruned(pilot, incumbent, OPTIONS) == (pilot / incumbent > OPTIONS.prune * (1 + 1e-12)) or (
        pilot / incumbent == pytest.approx(OPTIONS.prune)
    )
    assert not is_pruned(incumbent, incumbent, OPTIONS)


@given(st.lists(ratios, min_size=1, max_size=60), st.none() | ratios)
def test_timing_never_goes_on_past_the_most_pairs(values: list[float], incumbent: float | None) -> None:
    assert len(values) < OPTIONS.max_pairs or is_settled(values, incumbent, OPTIONS)


@given(st.lists(ratios, min_size=6, max_size=39), st.none() | ratios)
def test_timing_ends_when_the_interval_is_narrow_or_the_case_is_lost(
    values: list[float], incumbent: float | None
) -> None:
    middle, low, high = median_interval(values)
    narrow = (high - low) / 2 <= OPTIONS.precision * middle
    lost = incumbent is not None and low > (1 + OPTIONS.hopeless) * incumbent

    assert is_settled(values, incumbent, OPTIONS) == (narrow or lost)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_too_few_pairs_for_an_interval_decide_only_against_a_kernel(count: int) -> None:
    assert not is_settled([1.0] * count, None, OPTIONS)
    assert not is_settled([1.0] * count, 1.0, OPTIONS)
    assert is_settled([1.0] * count, 0.9, OPTIONS)


def test_a_kernel_within_reach_of_the_incumbent_is_timed_on() -> None:
    spread = [1.0, 1.1, 1.2, 1.05, 1.15, 1.02, 1.18]

    assert not is_settled(spread, 1.0, OPTIONS)
    assert is_settled(spread, 0.9, OPTIONS)


def test_the_quieter_the_ratios_the_fewer_pairs_are_needed() -> None:
    def pairs_needed(noise: float, seed: int) -> int:
        drawn = 1 + noise * np.random.default_rng(seed).standard_normal(2 * OPTIONS.max_pairs)
        counts = range(OPTIONS.first, OPTIONS.max_pairs + OPTIONS.batch, OPTIONS.batch)
        return next(count for count in counts if is_settled(drawn[:count].tolist(), None, OPTIONS))

    means = [np.mean([pairs_needed(noise, seed) for seed in range(50)]) for noise in (0.0005, 0.003, 0.006, 0.05)]

    assert means[0] == OPTIONS.first + OPTIONS.batch
    assert means == sorted(means)
    assert means[0] < means[1] < means[2] < means[3] >= OPTIONS.max_pairs
