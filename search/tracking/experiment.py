"""Experiments of any kind in MLflow: one run with its parameters, figures and files; and what is deleted there."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilescout.search.tracking.fields import STUDY_TAG
from tilescout.search.tracking.store import default_store, open_client, opened_experiment, quiet_mlflow, translated

_PAGE = 1000  # runs that are looked up at once


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


def delete_study(uri: str, name: str) -> int:
    """Delete the runs of a study and of its trials, and say how many there were. MLflow keeps them unseen.

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """
    deleted = 0
    with quiet_mlflow():
        client = open_client(uri)
        with translated(uri):
            experiments = [each.experiment_id for each in client.search_experiments()]
            condition = f"tags.`{STUDY_TAG}` = '{name}'"
            while found := client.search_runs(experiments, condition, max_results=_PAGE):
                for run in found:
                    client.delete_run(run.info.run_id)
                deleted += len(found)
    return deleted
