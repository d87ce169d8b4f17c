"""Trees that ask one question a level say what walking them says."""

import numpy as np

from tilescout.spaces.oblivious import MOST_LEVELS, ObliviousTrees


def test_the_leaf_of_a_row_has_one_bit_a_level_the_first_question_the_highest() -> None:
    trees = ObliviousTrees(
        feature=np.array([[0, 1], [1, 0]], dtype=np.int16),
        threshold=np.array([[0.5, 2.0], [3.0, 0.5]], dtype=np.float32),
        leaf=np.array([[0, 1, 2, 3], [0, 10, 20, 30]], dtype=np.float32),
        base=100.0,
    )
    values = np.array([[0, 0], [0, 2.5], [1, 2.0], [1, 9]], dtype=np.float32)
    assert trees.predict(values).tolist() == [100, 101, 112, 133]


def test_trees_of_most_levels_say_what_walking_them_says() -> None:
    generator = np.random.default_rng(0)
    shape = (20, MOST_LEVELS)
    trees = ObliviousTrees(
        generator.integers(0, 5, shape, dtype=np.int16),
        generator.normal(size=shape).astype(np.float32),
        generator.integers(0, 100, (20, 2**MOST_LEVELS)).astype(np.float32),
        1.0,
    )
    values = generator.normal(size=(9, 5)).astype(np.float32)
    walked = []
    for row in values:
        bits = row[trees.feature] > trees.threshold
        places = (bits * 2 ** np.arange(MOST_LEVELS)[::-1]).sum(axis=1)
        walked.append(1 + sum(leaf[place] for leaf, place in zip(trees.leaf, places, strict=True)))
    assert trees.predict(values).tolist() == walked


def test_of_no_rows_nothing_is_said() -> None:
    trees = ObliviousTrees(
        np.zeros((1, 1), dtype=np.int16), np.zeros((1, 1), np.float32), np.zeros((1, 2), np.float32), 0.0
    )
    assert trees.predict(np.zeros((0, 1))).shape == (0,)
