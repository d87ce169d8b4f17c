"""The learned model that is shipped: the mean of a forest and of ranking networks.

The two are wrong in different ways. A forest knows times, also of what is unlike anything measured, and is coarse among
the fast; the networks are trained to order those. On the shipped table, with each problem left out in turn, the mean of
both ranked better than either (`experiments/results/README.md` has the figures). Equal weights: nothing is tuned.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilescout.costmodel.estimator import CostModel, Prediction, Sample, check_features, learnable
from tilescout.costmodel.features import Features, Floats
from tilescout.costmodel.forest import Fitted, ForestModel, ForestOptions
from tilescout.costmodel.ranking import Networks, RankingModel, RankingOptions
from tilescout.costmodel.uncertainty import Errors, estimate_errors
from tilescout.spaces.errors import ModelError


@dataclass(frozen=True)
class BlendOptions:
    """How the members are fitted: see `ForestOptions` and `RankingOptions`."""

    forest: ForestOptions = field(default_factory=ForestOptions)
    ranking: RankingOptions = field(default_factory=RankingOptions)


@dataclass(frozen=True)
class Blended:
    """A fitted forest and fitted networks, of the same features."""

    forest: Fitted
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


class BlendModel(CostModel):
    """See the module; `fit`, `predict`, `score`.

    Attributes
    ----------
    fitted
        What was learned; None before.
    errors
        The errors on new problems, estimated by leaving out problems of the training.
    """

    def __init__(self, options: BlendOptions | None = None) -> None:
        self.options = options if options is not None else BlendOptions()
        self.fitted: Blended | None = None
        self.errors: Errors | None = None

    @classmethod
    def of(cls, fitted: Blended, errors: Errors) -> "BlendModel":
        """A model that was fitted before."""
        model = cls()
        model.fitted, model.errors = fitted, errors
        return model

    def fit(self, samples: Sequence[Sample]) -> "BlendModel":
        samples, options = learnable(samples), self.options
        few = options.forest.validation_trees
        self.errors = estimate_errors(samples, lambda rest: self.learn(rest, few, 1), options.forest.seed)
        self.fitted = self.learn(samples, options.forest.trees, options.ranking.members)
        return self

    def predict(self, features: Features) -> Prediction:
        if self.fitted is None or self.errors is None:
            raise ModelError("the model was not fitted: call fit first, or load a fitted one")
        check_features(features, self.fitted.names)
        mean, between = self.fitted.predict(features)
        return Prediction(mean, self.errors.spread(between), self.errors.shift)

    def learn(self, samples: Sequence[Sample], trees: int, networks: int) -> Blended:
        """What so many trees and networks learn of measurements, without a look at how wrong they are."""
        forest, ranking = ForestModel(self.options.forest), RankingModel(self.options.ranking)
        return Blended(forest.learn(samples, trees), ranking.learn(samples, networks))
