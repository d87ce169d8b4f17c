"""Predictions, whoever makes them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.costmodel import estimator
from tilescout.costmodel.analytic import AnalyticModel
from tilescout.costmodel.estimator import Expected, Prediction
from tilescout.costmodel.features import Features
from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.costmodel.testing import example_samples
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


@pytest.mark.parametrize("log_time", [np.nan, np.inf, -np.inf, 1e300])
def test_a_time_that_can_not_be_is_refused_before_anything_is_learned_from_it(log_time: float) -> None:
    first, *others = example_samples()
    first.log_time[3] = log_time
    with pytest.raises(ModelError, match="1024x1024x1024:bf16: a time is no number"):
        AnalyticModel().fit([first, *others])


def test_times_of_other_configurations_than_the_features_are_refused() -> None:
    first, *others = example_samples()
    with pytest.raises(ModelError, match="10 times, 80 marks of censored ones and the features of 80 configurations"):
        AnalyticModel().fit([replace(first, log_time=first.log_time[:10]), *others])


def test_a_model_predicts_the_same_where_there_are_features_that_it_never_learned_from() -> None:
    samples = example_samples(count=20)
    features = samples[0].features
    model = ForestModel(ForestOptions(trees=4, validation_trees=2)).fit(samples)
    more = Features(("new",), np.ones((len(features), 1))).beside(features)
    assert np.array_equal(model.predict(more).mean, model.predict(features).mean)
    with pytest.raises(ModelError, match="these have no batch; train"):
        model.predict(more.only(tuple(name for name in more.names if name != "batch")))


def test_samples_of_different_features_or_of_another_order_are_refused() -> None:
    first, *others = example_samples(count=20)
    more = first.features.beside(Features(("new",), np.ones((len(first), 1))))
    turned = first.features.only(first.features.names[::-1])
    for features, told in ((more, "only one has new"), (turned, "they are in another order")):
        with pytest.raises(ModelError, match=f"1024x1024x1024:bf16 have different features: {told}"):
            AnalyticModel().fit([first, *others, replace(first, features=features)])


def test_a_score_needs_two_different_times_of_a_problem() -> None:
    samples = example_samples()
    model = AnalyticModel().fit(samples)
    censored = replace(samples[0], censored=np.ones(80, np.bool_))
    alike = replace(samples[1], log_time=np.zeros(80))
    assert model.score([*samples, censored]) == model.score(samples) > 0
    for learned in ([], [censored], [alike], [samples[0].take(np.array([5]))]):
        with pytest.raises(ModelError, match="no problem has two different times"):
            model.score(learned)


@given(
    least=st.lists(st.integers(-3, 3), min_size=1, max_size=30),
    first=st.integers(1, 12),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=4),
)
def test_the_most_hopeful_come_first_and_of_those_alike_the_first(
    least: list[int], first: int, counts: list[int]
) -> None:
    prediction = Prediction(np.array(least) + 0.5, np.full(len(least), 0.5), 0.1)
    order = sorted(range(len(least)), key=lambda row: least[row])  # stable
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimator, "_FIRST", first)
        for count in counts:
            assert prediction.hopeful(count).tolist() == order[:count]
