"""The interval of a trimmed mean: it holds the truth as often as it says."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import t as student

from tilescout.search.measure.interval import CONFIDENCE, WIDEST, mean_interval, t_quantile, usual_range

# Each draws values about 1; "skewed" ones have it as their median, which a trimmed mean is not quite.
DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, int]], NDArray[np.float64]]] = {
    "normal": lambda rng, shape: np.exp(0.01 * rng.standard_normal(shape)),
    "with outliers": lambda rng, shape: np.exp(0.01 * rng.standard_t(2, shape)),
    "two modes": lambda rng, shape: np.exp(rng.choice([-0.01, 0.01], shape) + 0.003 * rng.standard_normal(shape)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("count", [6, 10, 15, 25, 40])
def test_the_truth_is_inside_as_often_as_promised(count: int, name: str) -> None:
    if name == "two modes" and count < 15:
        pytest.skip("few values may all be of one mode, and nothing in them says so")
    samples = DRAWS[name](np.random.default_rng(count), (2000, count))
    inside = [low <= 1 <= high for _, low, high in map(mean_interval, samples.tolist())]

    assert np.mean(inside) > CONFIDENCE - 0.03


@pytest.mark.parametrize("count", [2, 3, 6, 20])
def test_known_noise_makes_few_values_speak(count: int) -> None:
    samples = np.exp(0.01 * np.random.default_rng(count).standard_normal((2000, count))).tolist()
    intervals = np.array([mean_interval(sample, noise=0.01) for sample in samples])

    assert CONFIDENCE - 0.02 < np.mean((intervals[:, 1] <= 1) & (intervals[:, 2] >= 1)) < CONFIDENCE + 0.02
    if count == 2:  # alone they would need 12.7 standard errors
        assert np.median(intervals[:, 2] - intervals[:, 1]) < 2 * 2.5 * 0.01 / np.sqrt(2)


@given(st.floats(0.6, 0.995), st.integers(1, 200))
def test_quantiles_are_students(probability: float, freedom: int) -> None:
    off = 0.05 if freedom == 2 else 0.01
    assert t_quantile(probability, freedom) == pytest.approx(student.ppf(probability, freedom), rel=off)


def test_the_usual_range_is_three_deviations_wide_and_what_was_disturbed_does_not_move_it() -> None:
    rng = np.random.default_rng(0)
    samples = 5 + 0.01 * rng.standard_normal((500, 40))
    ranges = np.array([usual_range(sample) for sample in samples])
    samples[:, :4] *= rng.choice([0.5, 3.0], (500, 4))
    disturbed = np.array([usual_range(sample) for sample in samples])

    assert ranges.mean(axis=0) == pytest.approx([4.97, 5.03], abs=0.002)
    assert disturbed.mean(axis=0) == pytest.approx([4.97, 5.03], abs=0.008)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60))
def test_at_least_half_of_the_values_are_usual(values: list[float]) -> None:
    low, high = usual_range(np.array(values))

    assert sum(low <= value <= high for value in values) >= len(values) / 2


values = st.lists(st.floats(0.01, 100), min_size=1, max_size=60)


@given(values, st.floats(0, 0.1), st.floats(0, 0.01))
def test_the_ends_enclose_the_middle_and_the_middle_lies_among_the_values(
    values: list[float], noise: float, repeat: float
) -> None:
    middle, low, high = mean_interval(values, noise, repeat)

    assert min(values) * (1 - 1e-9) <= middle <= max(values) * (1 + 1e-9)
    assert 0 <= low <= middle <= high


@given(values, st.sampled_from([2.0**power for power in range(-8, 9)]), st.randoms())
def test_neither_the_unit_nor_the_order_of_the_values_matters(
    values: list[float], unit: float, random: "np.random.Generator"
) -> None:
    shuffled = [value * unit for value in values]
    random.shuffle(shuffled)

    expected = [number * unit for number in mean_interval(values, 0.01)]
    assert mean_interval(shuffled, 0.01) == pytest.approx(expected, rel=1e-6)


def test_one_disturbed_launch_in_ten_hardly_moves_the_middle() -> None:
    quiet = (1 + 0.001 * np.random.default_rng(0).standard_normal(20)).tolist()

    assert mean_interval([*quiet[:18], 1.5, 1.5])[0] == pytest.approx(mean_interval(quiet)[0], abs=0.001)


def test_values_that_have_nothing_in_common_give_an_interval_that_a_record_can_hold() -> None:
    middle, low, high = mean_interval([1e-30, 1e30])
    assert np.log([middle / low, high / middle]) == pytest.approx(WIDEST)


def test_what_differs_between_measurements_widens_every_interval() -> None:
    quiet = (1 + 1e-5 * np.random.default_rng(0).standard_normal(30)).tolist()
    middle, low, high = mean_interval(quiet, repeat=0.001)

    assert high - middle > 0.0019
    assert middle - low > 0.0019


def test_values_that_share_noise_widen_the_interval_by_the_root_of_it() -> None:
    values = np.exp(0.01 * np.random.default_rng(3).standard_normal(30)).tolist()
    width, shared = (np.log(high / low) for _, low, high in (mean_interval(values), mean_interval(values, shared=4.0)))

    assert shared == pytest.approx(2 * width)
