"""Predictions, whoever makes them."""

import numpy as np
import pytest

from tilescout.costmodel.estimator import Expected, Prediction
from tilescout.spaces.errors import ModelError


@pytest.mark.parametrize("log_time", [float("nan"), float("inf"), -float("inf"), 1000.0])
def test_a_time_that_can_not_be_is_refused_before_a_study_notes_it(log_time: float) -> None:
    spread = np.full(2, 0.1)
    assert Expected.of(Prediction(np.array([0.0, 1.0]), spread, 0.1), 0).time_us == 1.0
    with pytest.raises(ModelError, match="times that can't be"):
        Prediction(np.array([0.0, log_time]), spread, 0.1)


@pytest.mark.parametrize("error", [float("nan"), float("inf"), -0.1, 20.0])
def test_an_uncertainty_that_can_not_be_is_refused_before_a_study_notes_its_interval(error: float) -> None:
    mean, spread = np.zeros(2), np.full(2, 0.1)
    assert Expected.of(Prediction(mean, np.zeros(2), 0.0), 0).high_us == 1.0
    for faulty in ((np.array([0.1, error]), 0.1), (spread, error)):
        with pytest.raises(ModelError, match="times that can't be"):
            Prediction(mean, *faulty)
