"""The forest model: extremely randomised trees that correct the analytic model.

P. Geurts, D. Ernst, L. Wehenkel: Extremely randomized trees. Machine Learning 63, 2006.

The trees predict the difference between the log time and that of the analytic model, which is calibrated on the same
measurements. The difference is alike for problems of different sizes; the time is not. On the shipped table, with each
problem left out in turn, the error within a problem was 9.7 %, and 11.5 % with a plain lower bound in place of the
analytic model. If the template of a space does not describe its tiling, the trees predict the log time from the knobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.analytic import HANDFUL, Constants, calibrate_from, log_base
from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.ensemble import EnsembleModel
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.trees import Forest


@dataclass(frozen=True)
class ForestOptions:
    """How a forest is grown.

    Attributes
    ----------
    trees
        Trees of the ensemble; its size on disk goes with it.
    validation_trees
        Trees of each forest that is grown without some of the problems, to estimate the errors on new ones.
    leaf
        Fewest measurements in a leaf. With 2, a forest of 63,278 measurements took 12.5 MB.
    share
        Share of the features that are tried at each split. Half of them take a third of the time of all.
    imputations
        Times that censored measurements are filled in and the forest grown again. A second time changed nothing.
    censored
        The most censored measurements of a problem that are used, drawn at random. They only say what is slow, and
        are half of a large table.
    handful
        Random measurements a problem that the analytic model is calibrated with.
    seed
        Seed of all random draws.
    """

    trees: int = 48
    validation_trees: int = 12
    leaf: int = 6
    share: float = 0.5
    imputations: int = 1
    censored: int = 400
    handful: int = HANDFUL
    seed: int = 0


@dataclass(frozen=True)
class CorrectedForest:
    """A fitted forest, and the analytic model that it corrects.

    Attributes
    ----------
    names
        The features that it was fitted to.
    forest
        The trees.
    constants
        Of the analytic model that they correct; None if they predict the log time.
    """

    names: tuple[str, ...]
    forest: Forest
    constants: Constants | None

    def settled(self, name: str, value: float) -> "CorrectedForest":
        """The same of configurations whose feature of this name is a given one, which they need not have any more."""
        column = self.names.index(name)
        names = self.names[:column] + self.names[column + 1 :]
        return CorrectedForest(names, self.forest.settled(column, value), self.constants)

    def base(self, features: Features) -> Floats:
        """The log time that the trees correct, of shape [configurations]."""
        return log_base(features, self.constants)

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """The mean log time, and the variance between trees, each of shape [configurations]."""
        said = self.forest.each(features.values)
        return self.base(features) + said.mean(axis=0, dtype=np.float64), said.var(axis=0, dtype=np.float64)


class ForestModel(EnsembleModel):
    """See the module; `tilescout.costmodel.ensemble` says how far a fit is reproducible."""

    def __init__(self, options: ForestOptions | None = None) -> None:
        self.options = options if options is not None else ForestOptions()
        self.seed = self.options.seed

    def grow(self, samples: Sequence[Sample], draft: bool = False) -> CorrectedForest:
        trees = self.options.validation_trees if draft else self.options.trees
        options, names = self.options, samples[0].features.names
        constants = calibrate_from(samples, options.handful, options.seed)
        empty = CorrectedForest(names, Forest.constant(0.0), constants)
        generator = np.random.default_rng(options.seed)
        samples = [_thinned(sample, options.censored, generator) for sample in samples]
        values = np.concatenate([sample.features.values for sample in samples]).astype(np.float32)
        target = np.concatenate([sample.log_time - empty.base(sample.features) for sample in samples])
        target = self._impute(values, target, np.concatenate([sample.censored for sample in samples]))
        return CorrectedForest(names, self._grow(values, target, trees), constants)

    def _grow(self, values: NDArray[np.float32], target: Floats, trees: int) -> Forest:
        from sklearn.ensemble import ExtraTreesRegressor

        options = self.options
        ensemble = ExtraTreesRegressor(
            trees, min_samples_leaf=options.leaf, max_features=options.share, random_state=options.seed
        )
        return Forest.of(ensemble.fit(values, target))

    def _impute(self, values: NDArray[np.float32], target: Floats, censored: NDArray[np.bool_]) -> Floats:
        """The targets, with each censored one replaced by its expected value above the known bound.

        F. Hutter, H. Hoos, K. Leyton-Brown: Bayesian optimization with censored response data, 2011 (after J. Schmee
        and G. Hahn: A simple method for regression analysis with censored data, Technometrics 21, 1979).
        """
        if not censored.any():
            return target
        filled = target.copy()
        for number in range(self.options.imputations):
            known = ~censored if number == 0 else np.ones(len(target), dtype=np.bool_)
            said = self._grow(values[known], filled[known], self.options.validation_trees).each(values[censored])
            mean, spread = said.mean(axis=0, dtype=np.float64), np.maximum(said.std(axis=0, dtype=np.float64), 1e-3)
            filled[censored] = np.maximum(truncated_mean(mean, spread, target[censored]), target[censored])
        return filled


def _thinned(sample: Sample, censored: int, generator: np.random.Generator) -> Sample:
    """The exact measurements, and at most so many of the censored ones."""
    given_up = np.flatnonzero(sample.censored)
    if len(given_up) <= censored:
        return sample
    kept = np.concatenate([np.flatnonzero(~sample.censored), generator.choice(given_up, censored, replace=False)])
    return sample.take(np.sort(kept))


def truncated_mean(mean: Floats, spread: Floats, above: Floats) -> Floats:
    """The mean of normal variables, given that each is larger than `above`."""
    from scipy.stats import norm

    z = (above - mean) / spread
    # As logarithms the ratio keeps its precision far out in the tail.
    return np.asarray(mean + spread * np.exp(norm.logpdf(z) - norm.logsf(z)))
