"""The parts of a guided search that choose among candidates."""

import numpy as np

from tilescout.search.samplers.guided.acquisition import held_by


def test_what_is_held_is_told_as_by_sets() -> None:
    generator = np.random.default_rng(0)
    for free, some in ((50, 5), (50, 40), (3, 60), (0, 4), (4, 0)):
        one, other = (np.sort(generator.choice(64, count, replace=False)) for count in (free, some))
        assert held_by(one, other).tolist() == np.isin(one, other).tolist()
