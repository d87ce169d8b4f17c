"""The interval of a median: it holds the truth as often as it says, whatever the values are distributed like."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tilescout.search.evaluate.interval import CONFIDENCE, median_interval

# Each draws values whose median is 1.
DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]] = {
    "normal": lambda rng, shape: 1 + 0.01 * rng.standard_normal(shape),
    "skewed": lambda rng, shape: np.exp(0.5 * rng.standard_normal(shape)),
    "with outliers": lambda rng, shape: 1 + 0.01 * rng.standard_cauchy(shape),
    "two modes": lambda rng, shape: 1 + rng.choice([-0.02, 0.02], shape) * (1 + rng.random(shape)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=list(DRAWS))
@pytest.mark.parametrize("count", [6, 7, 10, 15, 25, 40])
def test_the_true_median_is_inside_at_least_as_often_as_promised(
    count: int, draw: Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]
) -> None:
    samples = draw(np.random.default_rng(count), (4000, count))
    inside = 0
    for sample in samples:
        _, low, high = median_interval(sample.tolist())
        inside += low <= 1 <= high

    assert inside / len(samples) > CONFIDENCE - 0.007  # two standard errors of 4000 samples


@pytest.mark.parametrize(("count", "rank"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (15, 3), (25, 7), (40, 13)])
def test_the_ends_are_the_order_statistics_of_the_textbooks_table(count: int, rank: int) -> None:
    middle, low, high = median_interval([float(value) for value in np.random.default_rng(0).permutation(count)])

    assert (low, high) == (rank, count - 1 - rank)
    assert middle == (count - 1) / 2


values = st.lists(st.floats(0.01, 100), min_size=1, max_size=60)


@given(values)
def test_the_interval_holds_the_median_and_lies_within_the_values(values: list[float]) -> None:
    middle, low, high = median_interval(values)

    assert min(values) <= low <= middle <= high <= max(values)
    assert low in values
    assert high in values


@given(values, st.sampled_from([2.0**power for power in range(-8, 9)]), st.randoms())
def test_neither_the_unit_nor_the_order_of_the_values_matters(
    values: list[float], unit: float, random: "np.random.Generator"
) -> None:
    shuffled = [value * unit for value in values]
    random.shuffle(shuffled)

    assert median_interval(shuffled) == tuple(number * unit for number in median_interval(values))
