"""How good a model is that is just being trained, by the parts of its own cross-validation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilescout.costmodel.ensemble import EnsembleModel, Judged
from tilescout.costmodel.estimator import Prediction, Sample
from tilescout.costmodel.evaluation import quality, summarise
from tilescout.costmodel.uncertainty import Ensemble
from tilescout.experiments.commands.model_plots import draw_predictions, quality_table
from tilescout.search.tracking.models import Evaluation
from tilescout.spaces.texts import number_of


@dataclass
class CrossValidation:
    """Takes the ensembles of a fit, each of which did not see some of the problems.

    Attributes
    ----------
    grown
        Each ensemble, and the samples that it learned from.
    """

    grown: list[tuple[Ensemble, Sequence[Sample]]] = field(default_factory=list)

    def add(self, ensemble: Ensemble, learned: Sequence[Sample]) -> None:
        """Take an ensemble; see `EnsembleModel.on_grown`."""
        self.grown.append((ensemble, learned))

    def evaluation(
        self, model: EnsembleModel, samples: Sequence[Sample], shapes: Mapping[str, str], folder: Path
    ) -> Evaluation:
        """The quality on problems that were left out, with a plot in `folder`.

        Parameters
        ----------
        model
            The fitted model: its errors say how wide intervals are.
        samples
            All that was learned from, a sample a problem.
        shapes
            The label of the shape of each problem: those of one shape count as one in an interval.
        folder
            An existing folder.
        """
        assert model.fitted is not None
        errors = model.fitted.errors
        predicted: list[tuple[Sample, Prediction]] = []
        for ensemble, learned in self.grown:
            seen = {sample.problem for sample in learned}
            judged = Judged(ensemble, errors)
            left_out = [sample for sample in samples if sample.problem not in seen and not sample.censored.all()]
            predicted += [(sample, judged.predict(sample.features)) for sample in left_out]
        metrics = {"rows": float(sum(map(len, samples))), "problems": float(len(samples))}
        metrics |= {"error_shift": errors.shift, "error_floor": errors.floor}
        about = (
            f"Learned from {number_of(int(metrics['rows']), 'measurement')} of {number_of(len(samples), 'problem')}."
        )
        if not predicted:  # of a single problem, parts are left out
            return Evaluation(metrics, about)
        qualities = [quality(sample, prediction) for sample, prediction in predicted]
        summary = summarise(qualities, [shapes[sample.problem] for sample, _ in predicted])
        figures = {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in summary.items()}
        metrics |= {name: one.value for name, one in summary.items()}
        description = (
            f"{about} On problems that were left out of the training in turn, by smaller models of the same kind, "
            f"medians with 95 % intervals over {number_of(len(predicted), 'problem')}:\n\n"
            f"{quality_table({'left out': figures})}\n\n"
            "`regret_topN`: the fastest of the N that are ranked first, over the fastest of all, less 1."
        )
        return Evaluation(metrics, description, [draw_predictions("problems left out", predicted, folder)])
