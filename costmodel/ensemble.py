"""Models that are ensembles: the mean of the members is the prediction, and where they disagree it is uncertain."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.uncertainty import Ensemble, Errors, estimate_errors


@dataclass(frozen=True)
class Judged:
    """A fitted ensemble, and how wrong it is on problems that it has not seen.

    Attributes
    ----------
    ensemble
        What was learned.
    errors
        The errors on new problems, estimated by leaving out problems of the training.
    """

    ensemble: Ensemble
    errors: Errors

    @property
    def names(self) -> tuple[str, ...]:
        """The features that it was fitted to."""
        return self.ensemble.names

    def predict(self, features: Features) -> Prediction:
        """The mean of the members, with the spread that their disagreement has on new problems."""
        mean, between = self.ensemble.predict(features)
        return Prediction(mean, self.errors.spread(between), self.errors.shift)


class EnsembleModel(CostModel):
    """A model that learns an ensemble; a subclass writes `grow`.

    Attributes
    ----------
    seed
        Of all randomness of the fit.
    """

    fitted: Judged | None = None
    seed: int

    @classmethod
    def of(cls, ensemble: Ensemble, errors: Errors) -> Self:
        """A model that was fitted before, as from a file."""
        model = cls()
        model.fitted = Judged(ensemble, errors)
        return model

    @abstractmethod
    def grow(self, samples: Sequence[Sample], draft: bool = False) -> Ensemble:
        """An ensemble that learned from samples, without a look at how wrong it is.

        Parameters
        ----------
        samples
            As `learn` takes them.
        draft
            Use the fewer members that are enough to estimate the errors.
        """

    def learn(self, samples: Sequence[Sample]) -> Judged:
        errors = estimate_errors(samples, lambda rest: self.grow(rest, draft=True), self.seed)
        return Judged(self.grow(samples), errors)
