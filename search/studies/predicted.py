"""A cost model's predictions for the trials of a study that it did not guide."""

from dataclasses import replace
from pathlib import Path

from tilescout.costmodel.estimator import Expected
from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, model_file
from tilescout.search.studies.records import StudyResult
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import NONE_NAMED, Named, find_template


def with_expected(result: StudyResult, path: Path, named: Named = NONE_NAMED) -> StudyResult:
    """The result, with the prediction of the model in a file added to every trial.

    Parameters
    ----------
    result
        The study.
    path
        The model, or a folder that has it.
    named
        Templates that the study may be of, see `StudyStore.read`.

    Raises
    ------
    ModelError
        If the model can't be read, or is of another space or device.
    SpaceError
        If the space has no template here, or the study's configurations are no longer legal in it.
    """
    info = result.info
    path = model_file(path, info.space, info.device)
    model, card = load_model(path)
    if (card.space, card.device) != (info.space, info.device):
        raise ModelError(
            f"model {path} is of {card.space} on {card.device}, not of {info.space} on {info.device}: name another"
        )
    template = find_template(info.space, named)
    whole = template.space(info.problem, template.device(info.device))
    indices = [whole.index(trial.configuration) for trial in result.trials]
    if not indices:
        return result
    part = whole.subset(indices)
    prediction = model.predict(space_features(part, template))
    trials = [
        replace(trial, expected=Expected.of(prediction, part.index(trial.configuration))) for trial in result.trials
    ]
    knows = str(info.problem) in card.problems
    about = replace(info, model=str(path), hindsight=knows, model_sha256=card.sha256, model_object="")
    return replace(result, info=about, trials=trials)
