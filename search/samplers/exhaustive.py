"""Every configuration, in the order of the space."""

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from tilescout.search.samplers.base import SpaceSampler
from tilescout.spaces.space import Indices


class ExhaustiveSampler(SpaceSampler):
    """The first configuration that was not tried; parameters that are not knobs are random."""

    def ordinary(self, seed: int) -> BaseSampler:
        return RandomSampler(seed=seed)  # optuna's own enumeration refuses parameters with infinitely many values

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        return int(free[0])
