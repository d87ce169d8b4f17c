"""Every configuration, in the order of the space."""

from typing import ClassVar

import optuna
from optuna.trial import FrozenTrial

from tilescout.search.samplers.base import SpaceSampler
from tilescout.spaces.space import Indices


class ExhaustiveSampler(SpaceSampler):
    """The first configuration that was not tried; parameters that are not knobs are random.

    Optuna's own enumeration refuses parameters with infinitely many values.
    """

    name = "exhaustive"
    summary = "every configuration, in the order of the space"
    deterministic = True
    several_objectives = True
    lookahead: ClassVar[int | None] = None

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        return int(free[0])
