"""A sampler of your own: the untried configuration nearest to the best so far, and now and then a random one.

tilescout tune gemm_sm90 --problem 512x512x512:bf16 --sampler own_sampler:NearestSampler:startup=10
"""

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.samplers import Option, SpaceSampler
from tilescout.spaces import Indices


class NearestSampler(SpaceSampler):
    """The untried configuration nearest to the best so far."""

    name = "nearest"
    options = (
        Option("startup", 5, 1, 1000, "random trials first"),
        Option("surprise", 0.2, 0.0, 1.0, "share of random trials afterwards"),
    )

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        rng = np.random.default_rng(self.seed_of(trial))
        timed = self.trials(study, TrialState.COMPLETE)
        if len(timed) < self.option["startup"] or rng.random() < self.option["surprise"]:
            return int(rng.choice(free))
        best = min(timed, key=lambda trial: trial.value)
        return self.space.nearest([best.params[name] for name in self.knobs], free)
