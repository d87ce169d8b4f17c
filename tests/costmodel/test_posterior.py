"""The process between measurements: exact where it measured, unsure far away."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import check_grad

from tilescout.costmodel.posterior import (
    Kernel,
    KernelSum,
    Observed,
    _unlikelihood,
    chance_below,
    condition,
    expected_improvement,
    fit_kernel,
)

KERNEL = Kernel.even(2, 0.5, 0.01)


def observed(noise: float = 1e-3, errors: np.ndarray | None = None) -> Observed:
    points = np.random.default_rng(0).random((12, 2))
    values = np.sin(5 * points).sum(axis=1) if errors is None else errors
    return Observed.here(points, values, np.ones(12), np.full(12, noise))


def test_it_believes_what_was_measured_and_is_sure_there() -> None:
    seen = observed()
    mean, std = condition(KERNEL, 1.0, seen, seen.points, seen.spread)
    np.testing.assert_allclose(mean, seen.errors, atol=1e-3)
    assert (std < 0.01).all()


def test_far_away_it_expects_what_all_share() -> None:
    seen = observed(errors=np.full(12, 0.7))
    mean, std = condition(KERNEL, 1.0, seen, np.array([[50.0, 50.0]]), np.ones(1))
    assert 0.35 < mean[0] < 0.7
    assert std[0] > 0.5


def test_a_prior_that_was_too_sure_becomes_less_so() -> None:
    points = np.array([[0.5, 0.5]])
    errors = np.random.default_rng(1).normal(size=12)
    _, calm = condition(KERNEL, 0.1, observed(errors=0.01 * errors, noise=0.01), points, np.ones(1))
    _, shaken = condition(KERNEL, 0.1, observed(errors=3 * errors, noise=0.01), points, np.ones(1))
    assert shaken[0] > 2 * calm[0]


def test_noise_is_not_believed() -> None:
    seen = observed(noise=10.0)
    mean, _ = condition(KERNEL, 0.0, seen, seen.points, seen.spread)
    assert np.abs(mean).max() < 0.2 * np.abs(seen.errors).max()


def test_the_gradient_is_that_of_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    points, values = rng.random((15, 3)), rng.normal(size=15)
    squares = np.moveaxis((points[:, None] - points[None]) ** 2, 2, 0).copy()
    usual = np.array([0.0, 0.0, 0.0, 0.0, -2.0])
    at = np.array([0.3, -0.5, 0.1, 0.2, -1.0])
    off = check_grad(
        lambda x: _unlikelihood(x, squares, values, usual)[0], lambda x: _unlikelihood(x, squares, values, usual)[1], at
    )
    assert off < 1e-4


def test_a_fit_finds_which_coordinate_matters() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((60, 3))
    values = np.sin(8 * points[:, 1])
    kernel = fit_kernel(points, (values - values.mean()) / values.std(), rng)
    assert kernel.lengths[1] < 0.5 * min(kernel.lengths[0], kernel.lengths[2])


def test_improvement_and_chance_are_those_of_draws() -> None:
    draws = np.random.default_rng(0).normal(1.0, 0.5, 1_000_000)
    mean, std = np.array([1.0]), np.array([0.5])
    assert expected_improvement(mean, std, 0.8)[0] == pytest.approx(np.maximum(0.8 - draws, 0).mean(), rel=0.01)
    assert chance_below(mean, std, 0.8)[0] == pytest.approx((draws < 0.8).mean(), rel=0.01)


def test_of_values_that_are_known_the_improvement_is_the_difference() -> None:
    mean, sure = np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 5e-324])
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_allclose(expected_improvement(mean, sure, 2.0), [1.0, 0.0, 0.0], atol=1e-11)
        np.testing.assert_allclose(chance_below(mean, sure, 2.0), [1.0, 0.5, 0.0])


def test_measurements_of_another_problem_say_which_is_fast_and_not_how_fast() -> None:
    seen = observed()
    elsewhere = Observed(seen.points, seen.errors + 5.0, seen.spread, seen.noise, np.ones(12, dtype=np.int64))
    mean, std = condition(KERNEL, 3.0, elsewhere, seen.points, seen.spread)
    assert np.corrcoef(mean, seen.errors)[0, 1] > 0.95
    assert np.abs(mean).max() < 3  # the 5.0 stays where it was measured
    assert (std > 2.5).all()
    both, _ = condition(KERNEL, 3.0, seen.and_(elsewhere), seen.points, seen.spread)
    np.testing.assert_allclose(both, seen.errors, atol=1e-2)


def test_near_a_measurement_an_error_that_each_has_alone_stays_unknown() -> None:
    seen = observed()
    near = seen.points + 1e-6
    for alone in (0.0, 0.04):
        _, std = condition(KernelSum((KERNEL,), alone), 0.0, seen, near, np.ones(12))
        assert (std**2 >= alone).all()
        assert (std**2 < 2 * alone + 0.01).all()


def test_what_several_likenesses_share_is_the_sum_of_what_each_does() -> None:
    points = np.random.default_rng(0).random((12, 3))
    first, second = Kernel.even(2, 0.5, 0.01), Kernel.even(1, 2.0, 0.01)
    both = KernelSum((first, second), 0.1)
    expected = first.between(points[:5, :2], points[:, :2]) + second.between(points[:5, 2:], points[:, 2:])
    np.testing.assert_allclose(both.between(points[:5], points), expected)
    assert both.shared == 2


def test_few_measurements_and_many_are_solved_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    points, others = generator.random((30, 3)), generator.random((50, 3))
    observed = Observed.here(points, generator.normal(size=30), np.ones(30), np.full(30, 0.1))
    found = []
    for few in (0, 64):
        monkeypatch.setattr("tilescout.costmodel.posterior._FEW", few)
        found.append(condition(Kernel.even(3, 0.5, 0.1), 0.3, observed, others, np.ones(50)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_a_search_of_one_problem_does_without_scipy() -> None:
    code = """
import sys
import numpy as np
from tilescout.costmodel.posterior import Kernel, Observed, chance_below, condition, expected_improvement
some = np.random.default_rng(0).random((40, 2))
observed = Observed.here(some, some[:, 0], np.ones(40), np.full(40, 0.1))
mean, std = condition(Kernel.even(2, 0.5, 0.1), 0.3, observed, some, np.ones(40))
expected_improvement(mean, std, 0.0), chance_below(mean, std, 0.0)
assert not any(name.startswith("scipy") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
