"""Experiments of any kind in MLflow: a run with a description, parameters, figures and files; and what is deleted."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilescout.search.measure.provenance import Dataset
from tilescout.search.tracking.datasets import log_tables
from tilescout.search.tracking.fields import NOTE_TAG, PARENT_TAG, STUDY_TAG, TAG_LENGTH, UI_MODE, milliseconds
from tilescout.search.tracking.mlflow_hooks import View
from tilescout.search.tracking.store import default_store, open_client, opened_experiment, quiet_mlflow, translated
from tilescout.spaces.texts import printable

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PAGE = 1000  # runs that are looked up at once
_FORBIDDEN = re.compile(r"[^\w\-./ ]")  # in the name of a metric
_VALUE = 6000  # characters of a parameter that MLflow keeps
_BATCH = 100  # parameters that it takes at once


@dataclass(frozen=True)
class Logged:
    """A run that was logged. Its text is the run's id.

    Attributes
    ----------
    run, experiment
        Their ids.
    """

    run: str
    experiment: str

    @property
    def page(self) -> str:
        """Its page in MLflow's UI, relative to the address of the server."""
        return f"#/experiments/{self.experiment}/runs/{self.run}?{UI_MODE}"

    def __str__(self) -> str:
        return self.run


def log_experiment(
    store: Path | str,
    name: str,
    params: Mapping[str, object],
    metrics: Mapping[str, float],
    files: Sequence[Path],
    *,
    run_name: str = "",
    description: str = "",
    tables: Sequence[Dataset] = (),
    view: View | None = None,
) -> Logged:
    """Log a finished experiment as one run of the MLflow experiment ``tilescout/NAME``.

    Parameters
    ----------
    store
        A folder, whose SQLite file is used, or an MLflow URI.
    name
        What is examined: the last part of the MLflow experiment's name.
    params, metrics, files, description, tables
        See `log_run`.
    run_name
        What the run is called; the name of the experiment unless given.
    view
        The columns of MLflow's table of such runs, where the experiment is new.

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """
    uri = default_store(store)[0] if isinstance(store, Path) else store
    with opened_experiment(uri, f"tilescout/{name}", view=view) as (client, experiment):
        run = str(client.create_run(experiment, run_name=run_name or name).info.run_id)
        log_run(client, run, params, metrics, files, description, tables)
        client.set_terminated(run)
    return Logged(run, experiment)


def log_run(
    client: "MlflowClient",
    run: str,
    params: Mapping[str, object],
    metrics: Mapping[str, float],
    files: Sequence[Path] = (),
    description: str = "",
    tables: Sequence[Dataset] = (),
) -> None:
    """Write what an experiment found to its run.

    Parameters
    ----------
    client, run
        The store, and the run in it.
    params, metrics
        What was asked, and the figures that were found; a figure that is not finite is left out.
    files
        Plots and data, logged as artifacts. A folder is logged with all in it.
    description
        What the page of the run begins with, in Markdown. The pictures among the files are shown below it.
    tables
        The tables that it is of: the run's inputs.
    """
    from mlflow.entities import Metric, Param, RunTag

    given = [Param(key, printable(str(value))[:_VALUE]) for key, value in params.items()]
    for start in range(0, len(given), _BATCH):
        client.log_batch(run, params=given[start : start + _BATCH])
    stamp = milliseconds(time.time())
    known = [(_FORBIDDEN.sub("-", key), value) for key, value in metrics.items() if math.isfinite(value)]
    figures = [Metric(key, float(value), stamp, 0) for key, value in known]
    for start in range(0, len(figures), _PAGE):
        client.log_batch(run, metrics=figures[start : start + _PAGE])
    if tables:
        log_tables(client, run, tables, "experiment")
    for path in files:
        log = client.log_artifacts if path.is_dir() else client.log_artifact
        log(run, str(path), *([path.name] if path.is_dir() else []))
    shown = [f"![{p.stem}](get-artifact?path={p.name}&run_uuid={run})" for p in files if p.suffix == ".png"]
    note = "\n\n".join([description, *shown]) if description else ""
    tags = {"mlflow.source.name": "tilescout"} | ({NOTE_TAG: note[:TAG_LENGTH]} if note else {})
    client.log_batch(run, tags=[RunTag(key, printable(value)) for key, value in tags.items()])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a description. Each cell has a wide space, because MLflow leaves none between cells."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(
        "|" + "|".join(f" {cell}&emsp;" if n != 1 else cell for cell in line) + "|" for n, line in enumerate(lines)
    )


def delete_study(uri: str, name: str, run_id: str) -> int:
    """Delete the run of a study and those of its trials, and say how many there were. MLflow keeps them unseen.

    Studies in other places may have the same name, and keep theirs.

    Parameters
    ----------
    uri
        MLflow's store.
    name, run_id
        The study, and the run that it names. Nothing is deleted if that run is of a study of another name.

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
            found = client.search_runs(experiments, f"attributes.run_id = '{run_id}'") if run_id.isalnum() else []
            if [run.data.tags.get(STUDY_TAG) for run in found] != [printable(name)]:
                return 0
            while children := client.search_runs(experiments, f"tags.`{PARENT_TAG}` = '{run_id}'", max_results=_PAGE):
                for run in children:
                    client.delete_run(run.info.run_id)
                deleted += len(children)
            client.delete_run(run_id)  # the last: who is interrupted can go on
    return deleted + 1
