"""The divisor of a kernel's times: the library's times beside them, shrunk towards their recent mean by their noise."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.reference import Reference

LIBRARY_US = 300.0
TRUTH = 1.1
OPTIONS = ProtocolOptions()


def pairs(
    rng: np.random.Generator, drift: float, noise: float, library_noise: float, count: int = 25
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times of a kernel and of the library beside it; the clock wanders by `drift` in a measurement."""
    clock = 1 + drift * np.sin(rng.uniform(0, 7) + np.linspace(0, 6, count))
    kernel = TRUTH * LIBRARY_US * clock * np.exp(noise * rng.standard_normal(count))
    # the library's own noise lasts: it is much the same in a measurement, and another in the next
    own = library_noise * (rng.standard_normal() + 0.3 * rng.standard_normal(count))
    return kernel, LIBRARY_US * clock * np.exp(own)


def spread(drift: float, noise: float, library_noise: float) -> tuple[Reference, float, float]:
    """The reference after 60 measurements, and the standard deviations of its ratios and of plain ones."""
    rng = np.random.default_rng(7)
    reference = Reference(LIBRARY_US, (LIBRARY_US * (1 + noise * rng.standard_normal(12))).tolist(), ProtocolOptions())
    found, plain = [], []
    for _ in range(60):
        kernel_us, beside_us = pairs(rng, drift, noise, library_noise)
        found.append(reference.estimate(kernel_us, beside_us).ratio)
        plain.append(float(np.mean(kernel_us / beside_us)))
        reference.learn(kernel_us, beside_us)
    assert np.mean(found) == pytest.approx(TRUTH, rel=0.004)
    return reference, float(np.std(found[10:]) / TRUTH), float(np.std(plain[10:]) / TRUTH)


def test_where_the_clock_drifts_the_ratio_of_neighbours_is_taken() -> None:
    reference, found, plain = spread(drift=0.03, noise=0.002, library_noise=0.0005)

    assert reference.within > 0.95
    assert found < 0.001
    assert found == pytest.approx(plain, rel=0.5)


def test_where_nothing_drifts_the_librarys_noise_is_kept_out() -> None:
    reference, found, plain = spread(drift=0.0, noise=0.002, library_noise=0.003)

    assert reference.between(25) == 0
    assert found < plain / 2


def test_where_the_clock_wanders_a_little_neither_the_neighbours_nor_the_level_do_as_well() -> None:
    rng = np.random.default_rng(11)
    noise, count = 0.004, 25
    alone = LIBRARY_US * np.exp(noise * rng.standard_normal(40))
    reference = Reference(LIBRARY_US, alone.tolist(), OPTIONS)
    logs = []
    for _ in range(300):
        wave = np.sin(rng.uniform(0, 7) + np.linspace(0, 6.28, 2 * count + 1))
        clock = 0.0008 * rng.standard_normal() + 0.0025 * wave
        blocks = np.exp(clock + noise * rng.standard_normal(2 * count + 1)) * LIBRARY_US
        kernel_us, beside_us = TRUTH * blocks[1::2], (blocks[:-1:2] + blocks[2::2]) / 2
        shrunk = reference.estimate(kernel_us, beside_us).ratio
        logs.append(np.log([shrunk, (kernel_us / beside_us).mean(), kernel_us.mean() / LIBRARY_US]))
        reference.learn(kernel_us, beside_us)
    shrunk, neighbours, level = np.std(logs[50:], axis=0)

    assert 0.2 < reference.between(count) < 0.8
    assert 0.15 < reference.within < 0.6
    assert shrunk < 0.95 * min(neighbours, level)


def test_the_more_pairs_the_more_the_librarys_time_beside_them_counts() -> None:
    rng = np.random.default_rng(5)
    reference, _, _ = spread(drift=0.002, noise=0.004, library_noise=0.004)
    for _ in range(30):
        reference.learn(*pairs(rng, drift=0.002, noise=0.004, library_noise=0.004))

    assert 0 < reference.between(2) < reference.between(8) < reference.between(30) < 1


def test_until_something_is_known_the_ratio_of_neighbours_is_taken() -> None:
    reference = Reference(LIBRARY_US, [LIBRARY_US] * 12, ProtocolOptions())

    assert reference.between(2) == 1
    assert reference.estimate(np.array([330.0, 345.0]), np.array([300.0, 300.0 * 345 / 330])).ratio == pytest.approx(
        1.1
    )


def test_a_library_far_from_where_it_was_is_divided_by_even_if_the_pairs_do_not_move_together() -> None:
    rng = np.random.default_rng(1)
    reference = Reference(LIBRARY_US, (LIBRARY_US * (1 + 0.001 * rng.standard_normal(12))).tolist(), ProtocolOptions())
    for _ in range(5):
        reference.learn(*pairs(rng, drift=0.0, noise=0.002, library_noise=0.002))
    assert reference.between(25) == 0

    kernel_us, beside_us = pairs(rng, drift=0.0, noise=0.001, library_noise=0.0)
    assert reference.estimate(1.05 * kernel_us, 1.05 * beside_us).ratio == pytest.approx(TRUTH, rel=0.002)


def test_on_a_throttled_device_the_library_beside_counts_even_if_no_pair_shows_it() -> None:
    rng = np.random.default_rng(3)
    reference = Reference(LIBRARY_US, [LIBRARY_US * (1 + 0.001 * each) for each in rng.standard_normal(12)], OPTIONS)
    for _ in range(40):
        reference.learn(*pairs(rng, drift=0.0, noise=0.002, library_noise=0.002))
    assert reference.between(25) == 0

    kernel_us, beside_us = pairs(rng, drift=0.0, noise=0.0005, library_noise=0.0)
    slower = 1.005  # all the time of this measurement, and not enough to be seen without being told
    found, told = (reference.estimate(slower * kernel_us, slower * beside_us, throttled) for throttled in (False, True))
    assert found.ratio == pytest.approx(slower * TRUTH, rel=0.001)
    assert told.ratio == pytest.approx(TRUTH, rel=0.001)


def test_a_disturbed_block_decides_nothing() -> None:
    rng = np.random.default_rng(2)
    reference = Reference(LIBRARY_US, (LIBRARY_US * (1 + 0.002 * rng.standard_normal(12))).tolist(), ProtocolOptions())
    for _ in range(20):
        kernel_us, beside_us = pairs(rng, drift=0.03, noise=0.002, library_noise=0.0005)
        beside_us[rng.integers(len(beside_us))] *= 1.5
        reference.learn(kernel_us, beside_us)

    assert reference.within > 0.95
