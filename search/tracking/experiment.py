"""An experiment of any kind in MLflow: one run with its parameters, figures and files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilescout.search.tracking.store import default_store, opened_experiment


def log_experiment(
    store: Path | str,
    name: str,
    params: Mapping[str, object],
    metrics: Mapping[str, float],
    files: Sequence[Path],
) -> str:
    """Log a finished experiment as one run of the MLflow experiment ``tilescout/NAME``; return the run's id.

    Parameters
    ----------
    store
        A folder, whose SQLite file is used, or an MLflow URI.
    name
        What is examined: the last part of the MLflow experiment's name.
    params, metrics
        What was asked, and the figures that were found.
    files
        Plots and data, logged as artifacts. A folder is logged with all in it.

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """
    uri = default_store(store)[0] if isinstance(store, Path) else store
    with opened_experiment(uri, f"tilescout/{name}") as (client, experiment):
        run = client.create_run(experiment, run_name=name).info.run_id
        for key, value in params.items():
            client.log_param(run, key, value)
        for key, figure in metrics.items():
            client.log_metric(run, key.replace(":", "-"), figure)
        for path in files:
            log = client.log_artifacts if path.is_dir() else client.log_artifact
            log(run, str(path), *([path.name] if path.is_dir() else []))
        client.set_terminated(run)
    return str(run)
