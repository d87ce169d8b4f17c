"""Cost models in MLflow: logged with their signature, loaded by code instead of pickle."""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tilescout.costmodel.features import Features
from tilescout.costmodel.persistence import ModelCard
from tilescout.search.tracking.store import artifact_folder, manners, open_client, translated

EXPERIMENT = "tilescout/cost models"

_CODE = """from mlflow.models import set_model

from tilescout.search.tracking.models import served_model

set_model(served_model())
"""  # what MLflow stores and runs in place of a pickled object (its "models from code")

EXAMPLES = 5
"""Rows of features that go with a model as an example of its input."""


def log_model(uri: str, path: Path, card: ModelCard, features: Features) -> str:
    """Log the model file at `path` as an MLflow model of flavour pyfunc; return the run.

    Its input is a table with a column a feature; its output has the columns ``log_time`` and ``std``.

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

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """
    with manners():
        import mlflow
        import pandas as pd
        from mlflow.models import infer_signature

        from tilescout.costmodel.persistence import load_model

        client = open_client(uri)
        model, _ = load_model(path)
        few = Features(features.names, features.values[:EXAMPLES])
        prediction = model.predict(few)
        example = pd.DataFrame(few.values, columns=list(few.names))
        answer = pd.DataFrame({"log_time": prediction.mean, "std": prediction.std})
        before = mlflow.get_tracking_uri()
        with translated(uri):
            found = client.get_experiment_by_name(EXPERIMENT)
            folder = artifact_folder(uri)
            location = folder.as_uri() if folder is not None else None
            experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT, location)
            mlflow.set_tracking_uri(uri)
            try:
                with mlflow.start_run(experiment_id=experiment, run_name=f"{card.space} on {card.device}") as run:
                    mlflow.log_params(
                        {"space": card.space, "device": card.device, "table": card.table, "rows": card.rows}
                    )
                    with TemporaryDirectory() as temporary, warnings.catch_warnings():
                        # It wishes for type hints of a form that a table of features does not have.
                        warnings.simplefilter("ignore", UserWarning)
                        code = Path(temporary, "served_model.py")
                        code.write_text(_CODE)
                        mlflow.pyfunc.log_model(
                            name="model",
                            python_model=str(code),
                            artifacts={"model": str(path)},
                            signature=infer_signature(example, answer),
                            input_example=example,
                            pip_requirements=["tilescout"],
                        )
            finally:
                mlflow.set_tracking_uri(before)
    return str(run.info.run_id)


def served_model() -> Any:
    """What MLflow serves: predicts log times and their standard deviations from a table of features."""
    from mlflow.pyfunc.model import PythonModel

    from tilescout.costmodel.persistence import load_model

    class Served(PythonModel):
        def load_context(self, context: Any) -> None:
            self._model, _ = load_model(Path(context.artifacts["model"]))

        def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
            import pandas as pd

            features = Features(tuple(model_input.columns), np.asarray(model_input, dtype=np.float64))
            prediction = self._model.predict(features)
            return pd.DataFrame({"log_time": prediction.mean, "std": prediction.std})

    return Served()
