"""Plots of predictions, as ``tilescout train`` logs them."""

import warnings
from pathlib import Path

import numpy as np

from tilescout.costmodel.estimator import Prediction, Sample
from tilescout.costmodel.features import Features
from tilescout.experiments.commands.model_plots import draw_predictions


def test_a_plot_of_as_many_problems_as_are_shipped_has_room_for_its_axes(tmp_path: Path) -> None:
    times = np.array([1.0, 1.5])
    sample = Sample("512x512x512:bf16", Features(("size",), times[:, None]), times, np.zeros(2, bool))
    predicted = [(sample, Prediction(times, np.full(2, 0.1), 0.1))] * 84

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns, on standard error, where the axes have no room
        path = draw_predictions("problems left out", predicted, tmp_path)

    assert path.stat().st_size > 10_000
