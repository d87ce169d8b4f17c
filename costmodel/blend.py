"""The learned model that is shipped: the mean of a forest and of ranking networks.

The two err in different ways. A forest predicts times, also of configurations unlike any that was measured, but is
coarse among the fast ones; the networks are trained to order those. On the shipped table, with each problem left out in
turn, the mean of both ranked better than either (`experiments/results/README.md` has the figures). The weights are
equal; nothing was tuned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.ensemble import EnsembleModel
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.forest import CorrectedForest, ForestModel, ForestOptions
from tilescout.costmodel.ranking import Networks, RankingModel, RankingOptions


@dataclass(frozen=True)
class BlendOptions:
    """How the members are fitted: see `ForestOptions` and `RankingOptions`."""

    forest: ForestOptions = field(default_factory=ForestOptions)
    ranking: RankingOptions = field(default_factory=RankingOptions)


@dataclass(frozen=True)
class Blended:
    """A fitted forest and fitted networks, of the same features."""

    forest: CorrectedForest
    networks: Networks

    @property
    def names(self) -> tuple[str, ...]:
        """The features."""
        return self.forest.names

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """The mean log time, and the variance between all members, each of shape [configurations]."""
        (first, within_first), (second, within_second) = (
            self.forest.predict(features),
            self.networks.predict(features),
        )
        between = np.square((first - second) / 2)
        return (first + second) / 2, (within_first + within_second) / 2 + between


class BlendModel(EnsembleModel):
    """See the module."""

    def __init__(self, options: BlendOptions | None = None) -> None:
        self.options = options if options is not None else BlendOptions()
        self.seed = self.options.forest.seed

    def grow(self, samples: Sequence[Sample], draft: bool = False) -> Blended:
        forest, ranking = ForestModel(self.options.forest), RankingModel(self.options.ranking)
        return Blended(forest.grow(samples, draft), ranking.grow(samples, draft))
