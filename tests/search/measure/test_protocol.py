"""The decisions of the measuring protocol."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.protocol import (
    Estimate,
    ProtocolOptions,
    block_launches,
    input_sets,
    is_doubtful,
    is_pruned,
    is_settled,
    most_pairs,
    pairs_to_add,
    settling_pairs,
)

OPTIONS = ProtocolOptions()
MOST_SETS = 256
MOST = 30
ENOUGH = OPTIONS.first + OPTIONS.batch
times = st.floats(0.01, 1e6)
ratios = st.floats(0.1, 100)


@given(input_bytes=st.integers(48, 2**34), l2_bytes=st.sampled_from([0, 50 * 2**20, 126 * 2**20]))
def test_inputs_are_rotated_past_the_l2_by_as_few_sets_as_will_do(input_bytes: int, l2_bytes: int) -> None:
    count = input_sets(input_bytes, l2_bytes, OPTIONS)
    cold = max(OPTIONS.cold_l2 * l2_bytes, OPTIONS.cold_bytes)

    assert 1 <= count <= MOST_SETS
    assert count * input_bytes >= cold or count == MOST_SETS
    assert count == 1 or (count - 1) * input_bytes < cold


@given(times, st.sampled_from([OPTIONS.block_us, OPTIONS.pilot_us]))
def test_a_block_is_filled_or_one_launch(library_us: float, block_us: float) -> None:
    launches = block_launches(library_us, block_us, OPTIONS)

    if library_us >= OPTIONS.single_us:
        assert launches == 1
    else:
        assert launches >= 2
        assert launches == 2 or abs(launches * max(library_us, 0.1) - block_us) <= 0.501 * max(library_us, 0.1)


@given(st.floats(1, 1e6), st.booleans())
def test_pairs_fit_into_their_time_but_for_a_few(pair_us: float, single: bool) -> None:
    most = most_pairs(pair_us, single, OPTIONS)

    fewest = OPTIONS.first if single else ENOUGH
    assert most >= fewest
    assert most * pair_us <= OPTIONS.pairs_us or most <= (OPTIONS.few_pairs if single else ENOUGH)
    assert most * pair_us <= max(OPTIONS.pairs_us, OPTIONS.long_us) or most == fewest


@given(st.lists(ratios, min_size=1, max_size=2))
def test_without_an_incumbent_nothing_is_pruned(pilots: list[float]) -> None:
    assert not is_pruned(pilots, None, OPTIONS)
    assert not is_doubtful(pilots[0], None, OPTIONS)


@given(ratios, ratios, ratios)
def test_one_pilot_prunes_what_is_far_off_and_two_must_agree_on_the_rest(
    first: float, second: float, incumbent: float
) -> None:
    doubtful, pruned = is_doubtful(first, incumbent, OPTIONS), is_pruned([first], incumbent, OPTIONS)

    assert not (doubtful and pruned)
    assert pruned == (first > OPTIONS.prune_at_once * incumbent)
    if doubtful:
        assert is_pruned([first, second], incumbent, OPTIONS) == (min(first, second) > OPTIONS.prune * incumbent)
    assert not is_pruned([incumbent], incumbent, OPTIONS)
    assert not is_doubtful(incumbent, incumbent, OPTIONS)


def estimate(values: list[float], noise: float = 0.0) -> Estimate:
    return Estimate(*mean_interval(values, noise, OPTIONS.repeat), values)


@given(st.lists(ratios, min_size=1, max_size=60), st.none() | ratios)
def test_timing_never_goes_on_past_the_most_pairs(values: list[float], incumbent: float | None) -> None:
    assert len(values) < MOST or is_settled(estimate(values), MOST, incumbent, OPTIONS)


@given(st.lists(ratios, min_size=ENOUGH, max_size=MOST - 1), st.none() | ratios)
def test_timing_ends_when_the_interval_is_narrow_or_the_case_is_lost(
    values: list[float], incumbent: float | None
) -> None:
    found = estimate(values)
    narrow = found.high / found.ratio - 1 <= (OPTIONS.precision if incumbent is None else OPTIONS.rough)
    lost = incumbent is not None and found.low > (1 + OPTIONS.hopeless) * incumbent

    assert is_settled(found, MOST, incumbent, OPTIONS) == (narrow or lost)


def test_two_pairs_decide_only_against_a_kernel_and_only_if_they_agree() -> None:
    noise = 0.003

    assert not is_settled(estimate([1.0, 1.0], noise), MOST, None, OPTIONS)
    assert not is_settled(estimate([1.0, 1.0], noise), MOST, 1.0, OPTIONS)
    assert is_settled(estimate([1.0, 1.0], noise), MOST, 0.95, OPTIONS)
    assert not is_settled(estimate([1.0, 1.5], noise), MOST, 1.0, OPTIONS)
    assert not is_settled(estimate([1.0, 1.0], noise=0.05), MOST, 0.95, OPTIONS)


def test_a_kernel_within_reach_of_the_incumbent_is_timed_on() -> None:
    spread = [1.0, 1.1, 1.2, 1.05, 1.15, 1.02, 1.18]

    assert not is_settled(estimate(spread), MOST, 1.05, OPTIONS)
    assert is_settled(estimate(spread), MOST, 0.9, OPTIONS)


@given(st.lists(ratios, min_size=1, max_size=MOST - 1), st.none() | ratios)
def test_more_pairs_are_a_batch_at_least_and_never_past_the_most(values: list[float], incumbent: float | None) -> None:
    added = pairs_to_add(estimate(values), MOST, incumbent, OPTIONS)

    assert min(OPTIONS.batch, MOST - len(values)) <= added <= MOST - len(values)


def test_the_pairs_that_two_call_for_mostly_do() -> None:
    noise, most, settled, counts = 0.004, 100, 0, []
    for seed in range(200):
        drawn = (1 + noise * np.random.default_rng(seed).standard_normal(most)).tolist()
        first = estimate(drawn[: OPTIONS.first], noise)
        counts.append(OPTIONS.first + pairs_to_add(first, most, 1.0, OPTIONS))
        settled += is_settled(estimate(drawn[: counts[-1]], noise), most, 1.0, OPTIONS)

    assert settled > 100
    assert np.mean(counts) < 2 * ENOUGH  # 0.5 % of a ratio that is known to 0.4 % by a pair does not take dozens


def test_the_quieter_the_ratios_the_fewer_pairs_are_needed() -> None:
    def pairs_needed(noise: float, seed: int) -> int:
        drawn = 1 + noise * np.random.default_rng(seed).standard_normal(MOST)
        counts = range(OPTIONS.first, MOST + OPTIONS.batch, OPTIONS.batch)
        return next(
            count for count in counts if is_settled(estimate(drawn[:count].tolist(), noise), MOST, None, OPTIONS)
        )

    means = [np.mean([pairs_needed(noise, seed) for seed in range(50)]) for noise in (0.0001, 0.002, 0.004, 0.05)]

    assert means[0] == pytest.approx(ENOUGH, abs=OPTIONS.batch)
    assert means[0] < means[1] < means[2] < means[3]
    assert means[3] >= MOST


@pytest.mark.parametrize("noise", [0.0005, 0.003, 0.03])
def test_noise_alone_takes_no_pairs_away(noise: float) -> None:
    rng = np.random.default_rng(1)

    def beside() -> NDArray[np.float64]:
        blocks = 300.0 * np.exp(noise * rng.standard_normal(31))
        found: NDArray[np.float64] = (blocks[:-1] + blocks[1:]) / 2
        return found

    assert np.mean([settling_pairs(beside(), OPTIONS) > 0 for _ in range(500)]) < 0.01


def test_of_a_library_that_comes_back_to_its_clock_only_the_later_half_counts() -> None:
    rng = np.random.default_rng(2)
    coming = 1600.0 * (1 - 0.1 * np.exp(-np.arange(30) / 6)) * np.exp(0.002 * rng.standard_normal(30))

    assert settling_pairs(coming, OPTIONS) == 15
    assert settling_pairs(coming[15:], OPTIONS) == 0
    assert settling_pairs(coming[: 2 * ENOUGH - 1], OPTIONS) == 0  # too few to tell
