"""Means over heats, and how sure they are."""

import numpy as np
import pytest

from tilescout.search.measure.heats import HeatNoise, correlation, mean_of_heats, ran
from tilescout.search.measure.interval import WIDEST
from tilescout.search.measure.measurement import check_interval

NOTHING = HeatNoise(0.0, 0.0)


def test_the_mean_of_heats_is_the_mean_and_identical_rounds_leave_no_doubt() -> None:
    found = mean_of_heats(np.full((3, 4), 0.25), 0.0, NOTHING)

    assert (found.mean, found.error, found.half) == (0.25, 0.0, 0.0)


def test_heats_that_differ_count_and_not_their_many_rounds() -> None:
    generator = np.random.default_rng(0)
    heats = 0.01 * generator.standard_normal((8, 1)) + 0.0001 * generator.standard_normal((8, 100))

    # Of 800 independent rounds the error would be 0.01 / sqrt(800) = 0.00035.
    assert mean_of_heats(heats, 0.0, NOTHING).error > 0.001


def test_one_heat_is_as_sure_as_what_is_known_of_heats_allows() -> None:
    found = mean_of_heats(np.full((1, 6), 0.1), 0.0, HeatNoise(0.0013, 0.0))

    assert found.error == pytest.approx(0.0013)
    assert found.freedom == 2
    assert found.here == pytest.approx(4.303 * 0.0013, rel=1e-3)


def test_heats_that_have_nothing_in_common_give_an_interval_that_a_record_can_hold() -> None:
    found = mean_of_heats(np.array([[50.0] * 4, [-50.0] * 4]), 0.0, NOTHING)

    assert found.half == pytest.approx(WIDEST)
    check_interval(*(float(np.exp(found.mean + side * found.half)) for side in (0, -1, 1)))


def test_other_processes_and_hosts_widen_the_interval_however_many_heats_there_are() -> None:
    found = mean_of_heats(np.zeros((50, 6)), 0.0, HeatNoise(0.0, 0.0016))

    assert found.here == 0
    assert found.half == pytest.approx(1.96 * 0.0016)


@pytest.mark.parametrize("true", [0.0, 0.4, 0.8])
def test_the_correlation_of_rounds_is_found_over_the_configurations_together(true: float) -> None:
    generator = np.random.default_rng(1)
    rounds = generator.standard_normal((200, 12, 6))
    for number in range(1, 12):
        rounds[:, number] = true * rounds[:, number - 1] + np.sqrt(1 - true**2) * rounds[:, number]

    assert correlation(rounds) == pytest.approx(true, abs=0.03)
    assert correlation(rounds[:, :2]) == 0  # two rounds tell nothing
    assert correlation(np.zeros((2, 6, 2))) == 0


def test_correlated_rounds_are_worth_fewer() -> None:
    logs = np.random.default_rng(2).standard_normal((1, 12))

    independent, correlated = (mean_of_heats(logs, of, NOTHING) for of in (0.0, 0.5))

    assert correlated.error == pytest.approx(independent.error * np.sqrt(3))


def test_heats_in_which_one_did_not_run_are_left_out() -> None:
    logs = np.zeros((3, 2, 3))
    logs[1:, :, 2] = np.nan

    assert ran(logs, [0, 1]).shape == (3, 2, 2)
    assert ran(logs, [0, 2]).shape == (1, 2, 2)
