"""The learned model that is shipped: the weighted mean of a forest and of ranking networks.

The two err in different ways. A forest predicts times, also of configurations unlike any that was measured, but is
coarse among the fast ones; the networks are trained to order those. On the shipped table, with each problem left out in
turn, the mean of both ranked better than either (`experiments/results/README.md` has the figures).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.ensemble import EnsembleModel, Judged
from tilescout.costmodel.estimator import Prediction, Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.forest import CorrectedForest, ForestModel, ForestOptions
from tilescout.costmodel.objectives import AMONG_OTHERS, told_apart
from tilescout.costmodel.ranking import Networks, RankingModel, RankingOptions
from tilescout.costmodel.threads import one_thread

HOPEFUL = 8192
"""Configurations that a search asks all networks for. Twelve problems have spaces of 16,608 to 141,432 of them in
`gemm_sm90` and of 17,072 to 248,825 in `gemm_streamk_sm90`: with 16,384 of them, the 1,024 of the least mean less
spread are the same as with all in 23 of these 24 spaces (2026-11-23). Of six other problems, whose spaces have up to
258,007, the 256 of the least mean are the same with 8,192 as with 16,384 in all of twelve, and 970 or more of those
1,024 (2026-11-28)."""

LIKELIEST = 2048
"""Configurations that it asks the forest for, too, whose trees take most of the time. Of twelve problems in both spaces
the 256 of the least mean are the same as with 8,192 in all 24 spaces, and 1,017 or more of the first 1,024
(2026-11-30). For 8,192 the 48 trees took 0.15 and 0.22 s of the 0.8 s from the start of a search of both spaces to its
first kernels, on a host of 16 cores."""

SCOUTS = 2
"""Networks that say which the `HOPEFUL` are. Of twelve spaces of 17,207 to 269,185 configurations the 1,024 that all
expect to be the fastest were among the `HOPEFUL` of two in each (2026-11-29)."""


@dataclass(frozen=True)
class BlendOptions:
    """How the members are fitted.

    Attributes
    ----------
    forest, ranking
        How the trees and the networks are.
    weight
        Share of the networks in the mean.
    """

    forest: ForestOptions = field(default_factory=ForestOptions)
    ranking: RankingOptions = field(default_factory=RankingOptions)
    weight: float = 0.7


@dataclass(frozen=True)
class Blended:
    """A fitted forest and fitted networks, of the same features, and the share of the networks in the mean."""

    forest: CorrectedForest
    networks: Networks
    weight: float

    @property
    def names(self) -> tuple[str, ...]:
        """The features."""
        return self.forest.names

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """The mean log time, and the variance between all members, each of shape [configurations]."""
        (trees, within_trees), (said, within) = self.forest.predict(features), self.networks.predict(features)
        mean = (1 - self.weight) * trees + self.weight * said
        apart = self.weight * (1 - self.weight) * np.square(trees - said)
        return mean, (1 - self.weight) * within_trees + self.weight * within + apart

    def settled(self, name: str, value: float) -> "Blended":
        """The same of configurations whose feature of this name is a given one, which they need not have any more."""
        return replace(self, forest=self.forest.settled(name, value), networks=self.networks.settled(name, value))

    def foresee(self, features: Features) -> tuple[Floats, Floats]:
        """The same of the `LIKELIEST`, and for the rest what networks say: all of them for the `HOPEFUL`."""
        if len(features) <= LIKELIEST:
            return self.predict(features)
        if len(features) <= HOPEFUL:
            said = self.networks.predict(features)
        else:
            said = _refined(self.networks.first(SCOUTS).predict(features), features, HOPEFUL, self.networks.predict)
        return _refined(said, features, LIKELIEST, self.predict)


def _refined(
    said: tuple[Floats, Floats], features: Features, count: int, ask: Callable[[Features], tuple[Floats, Floats]]
) -> tuple[Floats, Floats]:
    """Predictions of all, with another asked for so many of the fastest: the rest is shifted as those are."""
    mean = said[0]
    fastest = np.sort(np.argpartition(mean, count)[:count])
    asked, variance = ask(features.take(fastest))
    all_, spread = mean + (asked - mean[fastest]).mean(), np.full(len(features), variance.mean())
    all_[fastest], spread[fastest] = asked, variance
    return all_, spread


class BlendModel(EnsembleModel):
    """See the module."""

    def __init__(self, options: BlendOptions | None = None) -> None:
        self.options = options if options is not None else BlendOptions()
        self.seed = self.options.forest.seed

    def grow(self, samples: Sequence[Sample], draft: bool = False) -> Blended:
        forest, ranking = ForestModel(self.options.forest), RankingModel(self.options.ranking)
        return Blended(forest.grow(samples, draft), ranking.grow(samples, draft), self.options.weight)

    def learn(self, samples: Sequence[Sample]) -> Judged:
        learned = super().learn(told_apart(samples))
        if AMONG_OTHERS not in learned.names:
            return learned
        assert isinstance(learned.ensemble, Blended)
        return replace(learned, ensemble=learned.ensemble.settled(AMONG_OTHERS, 1.0))

    def foresee(self, features: Features) -> Prediction:
        if self.fitted is None or not isinstance(self.fitted.ensemble, Blended):
            return self.predict(features)
        features = self.known(features)
        with one_thread():
            return self.fitted.expected(*self.fitted.ensemble.foresee(features))
