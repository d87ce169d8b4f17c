"""Models that learned from kernels in chains and from kernels among others: they speak of the latter."""

import numpy as np
import pytest

from tilescout.costmodel.blend import Blended, BlendModel, BlendOptions
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.objectives import AMONG_OTHERS, told_apart
from tilescout.costmodel.ranking import RankingOptions
from tilescout.costmodel.trees import Forest

OPTIONS = BlendOptions(ForestOptions(trees=6, validation_trees=2), RankingOptions(members=2, steps=30, width=8))
NAMES = ("first", "second", "third")


def sample_of(problem: int, among_others: bool) -> Sample:
    """Times that the first feature makes longer, and in a chain the second one too."""
    values = np.random.default_rng(problem).random((120, len(NAMES)))
    log_time = values[:, 0] + (0.0 if among_others else 1.0) * values[:, 1]
    none = np.zeros(len(values), dtype=np.bool_)
    return Sample(str(problem), Features(NAMES, values), log_time, none, among_others=among_others)


SAMPLES = [*(sample_of(problem, False) for problem in range(4)), *(sample_of(problem, True) for problem in range(4, 8))]


@pytest.fixture(scope="module")
def model() -> BlendModel:
    return BlendModel(OPTIONS).fit(SAMPLES)


def test_samples_of_both_kinds_say_how_they_were_timed_in_a_feature_more() -> None:
    for sample, told in zip(SAMPLES, told_apart(SAMPLES), strict=True):
        assert told.features.names == (*NAMES, AMONG_OTHERS)
        assert (told.features.values[:, -1] == sample.among_others).all()
        assert np.array_equal(told.features.values[:, :-1], sample.features.values)


@pytest.mark.parametrize("among_others", [False, True])
def test_samples_of_one_kind_stay_as_they_are(among_others: bool) -> None:
    samples = [sample for sample in SAMPLES if sample.among_others == among_others]
    assert told_apart(samples) is samples


def test_a_model_of_both_speaks_of_kernels_among_others_and_asks_for_no_feature_more(model: BlendModel) -> None:
    assert model.fitted is not None
    assert model.fitted.names == NAMES
    asked = sample_of(9, True)
    errors = {kind: model.predict(asked.features).mean - sample_of(9, kind).log_time for kind in (False, True)}
    assert np.std(errors[True]) < 0.7 * np.std(errors[False])


def test_an_ensemble_says_the_same_once_a_feature_is_settled() -> None:
    grown = BlendModel(OPTIONS).grow(told_apart(SAMPLES))
    assert isinstance(grown, Blended)
    asked, as_chain = sample_of(9, True), sample_of(9, False)
    chain, among = told_apart([as_chain, asked])
    for told, value in ((chain, 0.0), (among, 1.0)):
        settled = grown.settled(AMONG_OTHERS, value)
        assert settled.names == NAMES
        for found, before in zip(settled.predict(asked.features), grown.predict(told.features), strict=True):
            np.testing.assert_allclose(found, before, rtol=0, atol=1e-5)
    assert np.abs(grown.predict(chain.features)[0] - grown.predict(among.features)[0]).max() > 0.1


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("column", [0, 2, 4])
def test_trees_say_the_same_once_a_column_is_settled(column: int, value: float) -> None:
    from sklearn.ensemble import ExtraTreesRegressor

    generator = np.random.default_rng(column)
    values = generator.random((300, 5))
    values[:, column] = generator.integers(0, 3, 300) / 2
    target = values[:, 1] * (1 + values[:, column]) + values[:, 3] ** 2
    fitted = ExtraTreesRegressor(5, min_samples_leaf=2, random_state=0).fit(values.astype(np.float32), target)
    forest = Forest.of(fitted)
    asked = generator.random((200, 5))
    asked[:, column] = value

    settled = forest.settled(column, value)

    assert len(settled) == len(forest)
    assert len(settled.feature) < len(forest.feature)
    assert np.array_equal(settled.each(np.delete(asked, column, axis=1)), forest.each(asked))


def test_a_tree_that_compares_one_column_alone_is_a_leaf_once_that_is_settled() -> None:
    feature, value = np.array([0, -1, -1], dtype=np.int16), np.array([0.5, 1.0, 2.0], dtype=np.float32)
    forest = Forest(feature, value, np.array([2, 0, 0], dtype=np.int32), np.zeros(1, dtype=np.int32))
    others = np.ones((3, 1))
    assert forest.settled(0, 0.0).each(others).tolist() == [[1.0] * 3]
    assert forest.settled(0, 1.0).each(others).tolist() == [[2.0] * 3]
