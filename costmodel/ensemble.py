"""Models that are ensembles: the mean of the members is the prediction, and where they disagree it is uncertain.

Is a fit reproducible? With the same versions of NumPy, SciPy, scikit-learn and torch, and the same seed:

- On one CPU, to the bit. One thread or eight, and another PYTHONHASHSEED, gave the same file (90,505 measurements).
- Between CPUs of other vector instructions, not to the bit. NumPy's log2 and exp, and OpenBLAS in the fit of the
  analytic model, round the last digit differently with AVX-512 and with AVX2. The constants of the analytic model then
  differ by 1e-6 of their size, and trees choose otherwise between splits that are nearly equal. Predictions for four
  problems differed by 0.5 to 0.8 % (root mean square) and by 5 % at most.
- The shipped models were trained without AVX-512. With NPY_DISABLE_CPU_FEATURES=X86_V4 and OPENBLAS_CORETYPE=Haswell in
  the environment, a CPU with AVX-512 wrote the same files to the bit (NumPy 2.4.6, SciPy 1.17.1, scikit-learn 1.9.1,
  torch 2.13.0).
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from tilescout.costmodel.arrays import Floats
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
        return self.expected(*self.ensemble.predict(features))

    def expected(self, mean: Floats, between: Floats) -> Prediction:
        """Log times of a new problem, by what an ensemble says; `between` is the variance between its members."""
        return Prediction(mean, self.errors.spread(between), self.errors.shift)


class EnsembleModel(CostModel):
    """A model that learns an ensemble; a subclass writes `grow`.

    Attributes
    ----------
    seed
        Of all randomness of the fit.
    on_grown
        Called whenever a fit has one more ensemble, with that and the samples that it learned from: one for each of the
        `FOLDS` by which errors are estimated, and the whole.
    """

    fitted: Judged | None = None
    seed: int
    on_grown: Callable[[Ensemble, Sequence[Sample]], None] = staticmethod(lambda grown, samples: None)

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
        def grown(some: Sequence[Sample], draft: bool = False) -> Ensemble:
            found = self.grow(some, draft)
            self.on_grown(found, some)
            return found

        errors = estimate_errors(samples, lambda rest: grown(rest, draft=True), self.seed)
        return Judged(grown(samples), errors)
