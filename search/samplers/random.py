"""Uniformly random configurations."""

from typing import ClassVar

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from tilescout.search.samplers.base import SpaceSampler
from tilescout.spaces.space import Indices


class RandomSampler(SpaceSampler):
    """Any configuration that was not tried, each as likely."""

    name = "random"
    summary = "configurations at random, each as likely"
    several_objectives = True
    lookahead: ClassVar[int | None] = None

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        return int(np.random.default_rng(self.seed_of(trial)).choice(free))
