"""The study of correlated errors: what its likelihoods prefer, and what its figures count."""

import numpy as np
import pytest

from tilescout.experiments.research.studies.correlated_errors import (
    AT,
    GAIN,
    LEAST,
    TRIALS,
    Played,
    covariances,
    figures,
    log_likelihood,
)


@pytest.mark.parametrize("true", ["knobs, alone", "features, alone", "knobs, features, alone"])
def test_errors_are_likeliest_under_the_covariance_that_they_were_drawn_from(true: str) -> None:
    rng = np.random.default_rng(0)
    points, spread, shift = rng.random((120, 6)) * 4, rng.uniform(0.05, 0.1, 120), 0.05
    known = covariances(3, 3)
    covariance, seen = known[true]
    shared = covariance.between(points[:, seen], points[:, seen]) + covariance.alone * np.eye(120)
    factor = np.linalg.cholesky(shared * np.outer(spread, spread) + shift**2 + 1e-6 * np.eye(120))
    found = {
        name: np.mean(
            [
                log_likelihood(factor @ np.random.default_rng(seed).normal(size=120), spread, shift, one, points[:, at])
                for seed in range(4)
            ]
        )
        for name, (one, at) in known.items()
    }
    assert max(found, key=found.__getitem__) == true


def test_the_figures_are_those_of_the_searches() -> None:
    soon = Played(
        "t", "a", "", [0.05] * 5 + [0.0] * (TRIALS - 5), [0.3] * LEAST + [0.1] + [0.01] * (TRIALS - LEAST - 1)
    )
    late = Played("t", "b", "", [0.05] * TRIALS, [0.9] * TRIALS)
    found = figures([soon, late])
    assert found["mean"] == pytest.approx([0.05, *[0.025] * (len(AT) - 1)])
    assert found["missed"] == [2, 1, 1, 1]
    assert found["to_1"][:2] == [35.0, 35.0]
    assert found["held"][0] == 0  # it said 0.01, and nothing was left
    assert found["held"][-1] == 1
    assert soon.left[LEAST] < GAIN
