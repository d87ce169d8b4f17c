"""Uniformly random configurations."""

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.samplers import RandomSampler as OrdinaryRandomSampler
from optuna.trial import FrozenTrial

from tilescout.search.samplers.base import SpaceSampler
from tilescout.spaces.space import Indices


class RandomSampler(SpaceSampler):
    """Any configuration that was not tried, each as likely."""

    def ordinary(self, seed: int) -> BaseSampler:
        return OrdinaryRandomSampler(seed=seed)

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        return int(np.random.default_rng(self.seed_of(trial)).choice(free))
