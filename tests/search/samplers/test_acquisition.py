"""The parts of a guided search that choose among candidates, and what they do before anything is foreseen."""

import warnings

import numpy as np
import optuna

from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.guided.acquisition import held_by
from tilescout.search.samplers.testing import SPACES


def test_what_is_held_is_told_as_by_sets() -> None:
    generator = np.random.default_rng(0)
    for free, some in ((50, 5), (50, 40), (3, 60), (0, 4), (4, 0)):
        one, other = (np.sort(generator.choice(64, count, replace=False)) for count in (free, some))
        assert held_by(one, other).tolist() == np.isin(one, other).tolist()


def test_a_search_without_a_model_does_not_stop_before_it_foresees_anything() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = make_sampler("guided-cold:least_cold=1:startup=3", SPACES[0], 0)
    study = optuna.create_study(sampler=sampler)
    for number in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sampler.done(study) is None
        study.tell(study.ask({**distributions(SPACES[0])}), 1.0 + number)
