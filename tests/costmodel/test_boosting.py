"""Trees grown by boosting learn a function, and the same one each time."""

from dataclasses import replace

import numpy as np

from tilescout.costmodel.boosting import BoostingOptions, grow

OPTIONS = BoostingOptions(trees=40, levels=4, rate=0.2)


def _drawn(seed: int) -> tuple["np.typing.NDArray[np.float32]", "np.typing.NDArray[np.float64]"]:
    values = np.random.default_rng(seed).uniform(-1, 1, (2000, 5)).astype(np.float32)
    return values, np.where(values[:, 1] > 0.2, 1.0, 0.0) * values[:, 3] + 0.3 * values[:, 0]


def test_a_function_with_an_interaction_is_learned() -> None:
    values, target = _drawn(0)
    unseen, truth = _drawn(1)
    error = np.mean((grow(values, target, np.ones(len(target)), OPTIONS).predict(unseen) - truth) ** 2)
    assert error < 0.1 * truth.var()


def test_what_weighs_nothing_teaches_nothing() -> None:
    values, target = _drawn(0)
    weights = (np.arange(len(target)) % 2).astype(np.float64)
    wrong = np.where(weights == 0, 50.0, target)
    trees = grow(values, wrong, weights, OPTIONS)
    assert np.abs(trees.predict(values)).max() < 3


def test_the_same_seed_grows_the_same_trees_and_another_one_others() -> None:
    values, target = _drawn(0)
    first, second, other = (
        grow(values, target, np.ones(len(target)), replace(OPTIONS, seed=seed)).predict(values) for seed in (0, 0, 1)
    )
    assert (first == second).all()
    assert (first != other).any()


def test_a_feature_that_is_always_the_same_is_no_obstacle() -> None:
    values, target = _drawn(0)
    values[:, 2] = 7
    assert np.isfinite(grow(values, target, np.ones(len(target)), OPTIONS).predict(values)).all()
