"""The decisions of the measuring protocol."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.evaluate.protocol import ProtocolOptions, block_launches, input_sets

OPTIONS = ProtocolOptions()
times = st.floats(0.01, 1e6)
sets = st.integers(1, 500)


@given(input_bytes=st.integers(48, 2**34), l2_bytes=st.sampled_from([0, 50 * 2**20, 126 * 2**20]))
def test_inputs_are_rotated_past_the_l2_by_as_few_sets_as_will_do(input_bytes: int, l2_bytes: int) -> None:
    count = input_sets(input_bytes, l2_bytes, OPTIONS)
    cold = max(OPTIONS.cold_l2 * l2_bytes, OPTIONS.cold_bytes)

    assert 1 <= count <= OPTIONS.block_us
    assert count * input_bytes >= cold or count == OPTIONS.block_us
    assert count == 1 or (count - 1) * input_bytes < cold


@given(times, sets)
def test_a_block_is_filled_and_takes_every_set_equally_often_or_none_twice(launch_us: float, sets: int) -> None:
    launches = block_launches(launch_us, sets, OPTIONS)

    assert launches * max(launch_us, 0.1) >= OPTIONS.block_us * (1 - 1e-9)
    assert launches % sets == 0 or launches < sets


@given(times, sets)
def test_a_block_is_no_longer_than_it_must_be(launch_us: float, sets: int) -> None:
    launches = block_launches(launch_us, sets, OPTIONS)

    assert launches < math.ceil(OPTIONS.block_us / max(launch_us, 0.1)) + sets
