"""The parts of a guided search that choose among candidates, and what they do before anything is foreseen."""

import warnings

import numpy as np
import optuna
from hypothesis import given
from hypothesis import strategies as st

from tilescout.costmodel.estimator import Prediction
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.guided.acquisition import Neighbours, candidates_among, held_by, runs_of
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.samplers.testing import SPACES


def test_what_is_held_is_told_as_by_sets() -> None:
    generator = np.random.default_rng(0)
    for free, some in ((50, 5), (50, 40), (3, 60), (0, 4), (4, 0)):
        one, other = (np.sort(generator.choice(64, count, replace=False)) for count in (free, some))
        assert held_by(one, other).tolist() == np.isin(one, other).tolist()


@given(st.sets(st.integers(0, 60), min_size=1), st.sets(st.integers(0, 60), min_size=1))
def test_the_runs_of_configurations_are_the_same_for_the_same_ones_alone(one: set[int], other: set[int]) -> None:
    runs = [runs_of(np.array(sorted(some))) for some in (one, other)]
    assert (runs[0] == runs[1]) == (one == other)


def test_the_most_hopeful_of_those_that_are_free_are_looked_at() -> None:
    space, generator = SPACES[0], np.random.default_rng(0)
    prior = Prediction(generator.normal(size=len(space)), generator.random(len(space)), 0.1)
    nothing, few = History.of_running(np.empty(0, dtype=np.int64)), GuidedOptions(candidates=3)
    for left in (7, len(space) // 2, len(space)):
        free = np.sort(generator.choice(len(space), left, replace=False))
        also = generator.choice(len(space), 2, replace=False)
        looked = candidates_among(free, Neighbours(space), nothing, prior, few, generator, also)
        hopeful = free[np.argsort(prior.mean[free] - prior.spread[free])[:3]]
        assert set(looked.tolist()) == set(hopeful.tolist()) | set(also.tolist()) & set(free.tolist())


def test_a_search_without_a_model_does_not_stop_before_it_foresees_anything() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = make_sampler("guided-cold:least_cold=1:startup=3", SPACES[0], 0)
    study = optuna.create_study(sampler=sampler)
    for number in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert sampler.done(study) is None
        study.tell(study.ask({**distributions(SPACES[0])}), 1.0 + number)
