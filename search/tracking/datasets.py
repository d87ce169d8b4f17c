"""Tables as MLflow's datasets: the inputs of a run."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tilescout.search.measure.provenance import Dataset
from tilescout.spaces.texts import printable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

_DIGEST = 36  # characters that MLflow keeps
_KINDS = {"int": "long", "uint": "long", "float": "float", "double": "double", "bool": "boolean"}


def log_tables(client: "MlflowClient", run_id: str, tables: Iterable[Dataset], context: str) -> None:
    """Log tables as the inputs of a run; see `dataset_input`.

    A store keeps a table once an experiment. MLflow looks whether it is there, and then adds it: of two processes that
    do so at the same time, one fails, and finds it when it asks again.
    """
    from mlflow.exceptions import MlflowException

    inputs = [dataset_input(table, context) for table in tables]
    try:
        client.log_inputs(run_id, inputs)
    except MlflowException:
        client.log_inputs(run_id, inputs)


def dataset_input(table: Dataset, context: str) -> "DatasetInput":
    """The table with its schema, as an input of a run.

    Parameters
    ----------
    table
        The table.
    context
        What it is to the run: ``replay``, ``training`` ...
    """
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag

    columns = [{"name": name, "type": _kind(kind)} for name, kind in table.columns.items()]
    entity = Entity(
        name=printable(table.name),
        digest=table.sha256[:_DIGEST],
        source_type="local",
        source=json.dumps({"uri": table.path}),
        schema=json.dumps({"mlflow_colspec": columns}),
        profile=json.dumps({"num_rows": table.rows, "sha256": table.sha256}),
    )
    return DatasetInput(entity, [InputTag("mlflow.data.context", context)])


def _kind(arrow: str) -> str:
    """MLflow's name for a type of Arrow's."""
    return next((kind for start, kind in _KINDS.items() if arrow.startswith(start)), "string")
