"""Cost models in MLflow: logged with signature and lineage, loaded by code instead of pickle."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from tilescout.costmodel.features import Features
from tilescout.costmodel.persistence import ModelCard, SavedModel, load_model
from tilescout.search.measure.provenance import Dataset
from tilescout.search.tracking.datasets import log_tables
from tilescout.search.tracking.experiment import Logged, log_run
from tilescout.search.tracking.mlflow_hooks import View
from tilescout.search.tracking.store import find_experiment, opened_experiment
from tilescout.spaces.errors import ModelError

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "tilescout/cost models"
CHECKSUM = "sha256"  # the tag of a logged model that tells it from others

_CODE = """from mlflow.models import set_model

from tilescout.search.tracking.models import served_model

set_model(served_model())
"""  # what MLflow stores and runs in place of a pickled object (its "models from code")

_VIEW = View(("regret_top1", "regret_top10", "rank_correlation", "covered", "rows"), ("space", "device", "tables"))
EXAMPLES = 5
"""Rows of features that go with a model as an example of its input."""


@dataclass(frozen=True)
class Evaluation:
    """How good a model is, as its run and its version in the registry show it.

    Attributes
    ----------
    metrics
        The figures.
    description
        What they are of, and the figures, in Markdown.
    pictures
        Files of plots.
    """

    metrics: Mapping[str, float]
    description: str
    pictures: Sequence[Path] = ()


def log_model(
    uri: str, path: Path, card: ModelCard, features: Features, tables: Sequence[Dataset], evaluation: Evaluation
) -> tuple[Logged, str]:
    """Log the model file at `path` as an MLflow model of flavour pyfunc, in a run of its own, and register it.

    Its input is a table with a column a feature; its output has the columns ``log_time`` and ``std``. The registered
    model is named after the space and the device, and gets a version.

    Parameters
    ----------
    uri
        The store.
    path
        What `tilescout.costmodel.persistence.save_model` wrote.
    card
        Its card: the parameters of the run.
    features
        Some features that it was trained on.
    tables
        The tables that it was trained on: the run's inputs.
    evaluation
        How good it is.

    Returns
    -------
    tuple
        The run, and the version as ``NAME version N``.

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """
    with opened_experiment(uri, EXPERIMENT, view=_VIEW) as (client, experiment):
        run_id = str(client.create_run(experiment, run_name=f"{card.space} on {card.device}").info.run_id)
        log_run(client, run_id, _params(card), evaluation.metrics, evaluation.pictures, evaluation.description)
        log_tables(client, run_id, tables, "training")
        model_id = _log(client, experiment, path, run_id, Features(features.names, features.values[:EXAMPLES]))
        for name, value in evaluation.metrics.items():
            client.log_metric(run_id, name, value, model_id=model_id)
        version = _register(client, model_id, run_id, card, evaluation)
        client.set_terminated(run_id)
    return Logged(run_id, experiment), version


def _register(client: "MlflowClient", model_id: str, run_id: str, card: ModelCard, evaluation: Evaluation) -> str:
    """Make a version of the registered model of a space and device, and name it."""
    from mlflow.exceptions import MlflowException

    name = _model_name(card)
    try:
        client.create_registered_model(name, description=f"Predicts log times of {card.space} on {card.device}.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = {key: f"{value:.6g}" for key, value in evaluation.metrics.items()} | _params(card)
    # By its files: a source `models:/ID`, and `model_id`, have MLflow 3.17 look in the store of the environment.
    source = client.get_logged_model(model_id).artifact_location
    version = client.create_model_version(name, source, run_id, tags=tags, description=evaluation.description)
    return f"{name} version {version.version}"


def _model_name(card: ModelCard) -> str:
    return f"{card.space}-{card.device}".replace(".", "-").replace(":", "-").replace("/", "-")


def find_or_log(client: "MlflowClient", artifacts: Path | None, path: Path) -> str:
    """The id of the logged model that has the content of a file; it is logged first if the store has none.

    Parameters
    ----------
    client
        The store.
    artifacts
        Where a new experiment keeps its files; None leaves it to the server.
    path
        The model's file.

    Raises
    ------
    ModelError
        If the file can't be read.
    """
    experiment = find_experiment(client, EXPERIMENT, artifacts)
    found = client.search_logged_models([experiment], f"tags.`{CHECKSUM}` = '{_checksum(path)}'", max_results=1)
    return str(found[0].model_id) if found else _log(client, experiment, path, None, None)


def _params(card: ModelCard) -> dict[str, str]:
    return {
        "space": card.space,
        "device": card.device,
        "tables": ", ".join(table.name for table in card.tables),
        "rows": str(card.rows),
    }


def _checksum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelError(f"can't read the model {path}: {error.strerror}") from error


def _log(client: "MlflowClient", experiment: str, path: Path, run_id: str | None, example: Features | None) -> str:
    """Log a model file, as the output of a run if there is one; return the model's id.

    By MLflow's client and not by ``mlflow.pyfunc.log_model``, which changes the state of the whole process.
    """
    import mlflow.pyfunc
    import pandas as pd
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    model, card = load_model(path)
    signature = ModelSignature(
        Schema([ColSpec(DataType.double, name) for name in _features_of(model)]),
        Schema([ColSpec(DataType.double, name) for name in ("log_time", "std")]),
    )
    logged = client.create_logged_model(
        experiment,
        name=_model_name(card),
        source_run_id=run_id,
        tags={CHECKSUM: _checksum(path), "table_sha256": ", ".join(table.sha256 for table in card.tables)},
        params=_params(card) | {"problems": ", ".join(card.problems)[:500]},
        model_type="cost model",
    )
    if run_id is not None:
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
    with TemporaryDirectory(prefix="tilescout-") as temporary, warnings.catch_warnings():
        # It wishes for an example of the input: there is none where a study logs the model that guided it.
        warnings.simplefilter("ignore", UserWarning)
        code, folder = Path(temporary, "served_model.py"), Path(temporary, "model")
        code.write_text(_CODE)
        about = Model(
            artifact_path=logged.artifact_location,
            model_uuid=logged.model_id,
            run_id=run_id,
            model_id=logged.model_id,
        )
        mlflow.pyfunc.save_model(
            folder,
            python_model=str(code),
            artifacts={"model": str(path)},
            signature=signature,
            input_example=pd.DataFrame(example.values, columns=list(example.names)) if example is not None else None,
            pip_requirements=["tilescout"],
            mlflow_model=about,
        )
        client.log_model_artifacts(logged.model_id, str(folder))
    client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
    return str(logged.model_id)


def _features_of(model: SavedModel) -> tuple[str, ...]:
    assert model.fitted is not None  # a model that was read from a file
    return model.fitted.names


def served_model() -> Any:
    """The object that MLflow serves. It predicts log times and their standard deviations from a table of features."""
    import pandas as pd
    from mlflow.pyfunc.model import PythonModel

    class Served(PythonModel):
        def load_context(self, context: Any) -> None:
            self._model, _ = load_model(Path(context.artifacts["model"]))

        # The table's type has to be named: MLflow warns of what else could stand here.
        def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> Any:
            features = Features(tuple(model_input.columns), np.asarray(model_input, dtype=np.float64))
            prediction = self._model.predict(features)
            return pd.DataFrame({"log_time": prediction.mean, "std": prediction.std})

    return Served()
