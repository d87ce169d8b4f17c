"""Models that learned from kernels in chains and from kernels among others: they speak of the latter."""

import numpy as np
import pytest

from tilescout.costmodel.blend import BlendModel, BlendOptions
from tilescout.costmodel.ensemble import Judged
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.objectives import AMONG_OTHERS, among_others, told_apart
from tilescout.costmodel.ranking import RankingOptions
from tilescout.costmodel.trees import Forest
from tilescout.spaces.errors import ModelError

OPTIONS = BlendOptions(ForestOptions(trees=6, validation_trees=2), RankingOptions(members=2, steps=30, width=8))
NAMES = ("first", "second", "third")


def sample_of(problem: int, slower: float) -> Sample:
    """Times that one feature makes longer, the more so by `slower`."""
    values = np.random.default_rng(problem).random((120, len(NAMES)))
    log_time = values[:, 0] + slower * values[:, 1]
    return Sample(str(problem), Features(NAMES, values), log_time, np.zeros(len(values), dtype=np.bool_))


@pytest.fixture(scope="module")
def fitted() -> Judged:
    """By these, the second feature counts in a chain alone."""
    chains = [told_apart([sample_of(problem, 1.0)], among_others=False)[0] for problem in range(4)]
    others = [told_apart([sample_of(problem, 0.0)], among_others=True)[0] for problem in range(4, 8)]
    model = BlendModel(OPTIONS).fit([*chains, *others])
    assert model.fitted is not None
    return model.fitted


def test_samples_say_how_they_were_timed_in_a_feature_more() -> None:
    (chain,) = told_apart([sample_of(0, 1.0)], among_others=False)
    (sandwich,) = told_apart([sample_of(0, 1.0)], among_others=True)
    assert chain.features.names == sandwich.features.names == (*NAMES, AMONG_OTHERS)
    assert (chain.features.values[:, -1] == 0).all()
    assert (sandwich.features.values[:, -1] == 1).all()
    assert np.array_equal(chain.features.values[:, :-1], sample_of(0, 1.0).features.values)


def test_the_model_says_what_it_said_of_kernels_among_others_and_asks_for_no_feature_more(fitted: Judged) -> None:
    asked = sample_of(9, 0.0)
    settled = among_others(fitted)
    assert settled.names == NAMES
    assert settled.errors == fitted.errors
    found = settled.predict(asked.features)
    (told,) = told_apart([asked], among_others=True)
    before = fitted.predict(told.features)
    np.testing.assert_allclose(found.mean, before.mean, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.spread, before.spread, rtol=1e-3)
    (chain,) = told_apart([asked], among_others=False)
    assert np.abs(fitted.predict(chain.features).mean - found.mean).max() > 0.1


def test_a_model_of_one_objective_is_refused(fitted: Judged) -> None:
    with pytest.raises(ModelError, match="learned from tables of one objective"):
        among_others(among_others(fitted))


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
