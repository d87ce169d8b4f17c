"""The MLflow runs of one study: a parent, and a child for each trial."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tilescout.search.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking import fields
from tilescout.search.tracking.fields import Progress, milliseconds
from tilescout.search.tracking.plots import draw_convergence
from tilescout.search.tracking.report import describe, opening, write_trials
from tilescout.spaces.errors import StoreError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, Run, RunTag

_PAGE = 200  # runs a page when reading back; each comes with all it holds


class StudyRuns:
    """Writes a study to MLflow, one call at a time.

    Every method may be called again after it failed halfway, in this process or, on the reopened parent, in a later
    one: what is there already is found, not written twice. For that, a trial's child is terminated last, after all
    that the trial adds to the parent.

    Parameters
    ----------
    client
        The store.
    artifacts
        Where a new experiment keeps its files; None leaves it to the server.
    info
        The study.
    run_id
        The parent run to reopen; None starts a new one.
    suite
        The run of the suite that a new parent run belongs to, if it does.
    """

    def __init__(
        self,
        client: "MlflowClient",
        artifacts: Path | None,
        info: StudyInfo,
        run_id: str | None = None,
        suite: str | None = None,
    ) -> None:
        self._client = client
        self._info = info
        self._progress = Progress()
        self._children: dict[int, str] = {}  # run of each trial, by its number
        self._finished: set[int] = set()  # trials whose run is complete
        self._attempted: set[int] = set()  # trials whose run may exist although we never heard so
        self._awaiting_default: list[TrialRecord] = []  # finished before the default's times were known
        self._tags = fields.common_tags(info)
        if run_id is None:
            self.experiment_id = find_experiment(client, fields.experiment_name(info.space), artifacts)
            tags = {fields.NOTE_TAG: opening(info)} | ({fields.PARENT_TAG: suite} if suite else {})
            self.run_id = self._create(fields.study_name(info), time.time(), tags)
        else:
            run = self._reopen(run_id)
            self.experiment_id, self.run_id = run.info.experiment_id, run_id
        # On a reopened run this changes nothing, or fails because the run is of another study.
        client.log_batch(self.run_id, params=_params(fields.study_params(info)))

    def read_children(self) -> None:
        """Learn which trials are there already."""
        self._children, self._finished = {}, set()
        for run in self._search(f"tags.`{fields.PARENT_TAG}` = '{self.run_id}'"):
            number = int(run.data.tags[fields.TRIAL_TAG])
            self._children[number] = run.info.run_id
            if run.info.status != "RUNNING":
                self._finished.add(number)

    def deliver(self, trial: TrialRecord) -> None:
        """Write a finished trial, unless it is there."""
        progress = self._progress.after(trial, self._info)
        if trial.number not in self._finished:
            stamp = milliseconds(trial.finished)
            run_id = self._child(trial)
            metrics = fields.trial_metrics(trial, self._info, progress.default)
            self._client.log_batch(run_id, _metrics(metrics, stamp), _params(fields.trial_params(trial)))
            parent = progress.metrics(self._info)
            self._client.log_batch(self.run_id, _metrics(parent, stamp, step=progress.trials))
            if progress.default is not None:
                self._complete_earlier(progress, stamp)
            self._client.set_terminated(run_id, fields.trial_status(trial), stamp)
            self._finished.add(trial.number)
        if progress.default is not None:
            self._awaiting_default.clear()
        elif trial.measurement.ok:
            self._awaiting_default.append(trial)
        self._progress = progress

    def summarise(self, result: StudyResult) -> None:
        """Attach the result to the parent, and end it."""
        with TemporaryDirectory(prefix="tilescout-") as folder:
            path = Path(folder)
            (path / "best_configuration.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n")
            write_trials(result, path / "trials.csv")
            draw_convergence(result, path / "convergence.png")
            self._client.log_artifacts(self.run_id, folder)
        tags = {fields.NOTE_TAG: describe(result, self.run_id, self.experiment_id, self._children)}
        tags |= fields.result_tags(result)
        last = max((trial.finished for trial in result.trials), default=time.time())
        metrics = _metrics(fields.result_metrics(result), milliseconds(last), step=self._progress.trials)
        self._client.log_batch(self.run_id, metrics, tags=_tags(tags))
        self.end("FAILED" if result.best is None else "FINISHED")

    def end(self, status: str) -> None:
        """Terminate the parent."""
        self._client.set_terminated(self.run_id, status, milliseconds(time.time()))

    def _reopen(self, run_id: str) -> "Run":
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise StoreError(
                f"the MLflow store has no run {run_id} of study {self._info.name}: resume with the store that the "
                "study was started with, or start a new study"
            ) from error
        if run.info.lifecycle_stage != "active":
            raise StoreError(
                f"the MLflow run {run_id} of study {self._info.name} was deleted: restore it with "
                f"`mlflow runs restore --run-id {run_id}`, or start a new study"
            )
        self._client.update_run(run_id, status="RUNNING")
        return run

    def _create(self, name: str, started: float, tags: Mapping[str, str]) -> str:
        clipped = {key: value[: fields.TAG_LENGTH] for key, value in {**self._tags, **tags}.items()}
        run = self._client.create_run(self.experiment_id, milliseconds(started), clipped, name)
        return str(run.info.run_id)

    def _child(self, trial: TrialRecord) -> str:
        if trial.number not in self._children and trial.number in self._attempted:
            parent = f"tags.`{fields.PARENT_TAG}` = '{self.run_id}'"
            for run in self._search(f"{parent} and tags.`{fields.TRIAL_TAG}` = '{trial.number}'"):
                self._children[trial.number] = run.info.run_id
        if trial.number not in self._children:
            self._attempted.add(trial.number)
            tags = fields.trial_tags(trial) | {fields.PARENT_TAG: self.run_id}
            self._children[trial.number] = self._create(fields.trial_name(trial), trial.started, tags)
        return self._children[trial.number]

    def _complete_earlier(self, progress: Progress, stamp: int) -> None:
        """Give trials that finished before the default was measured their speedup over it."""
        for trial in self._awaiting_default:
            metrics = fields.trial_metrics(trial, self._info, progress.default)
            late = {"speedup_over_default": metrics["speedup_over_default"]}
            self._client.log_batch(self._children[trial.number], _metrics(late, stamp))

    def _search(self, condition: str) -> "list[Run]":
        runs: list[Run] = []
        token: str | None = None
        while True:
            page = self._client.search_runs([self.experiment_id], condition, max_results=_PAGE, page_token=token)
            runs.extend(page)
            token = page.token
            if not token:
                return runs


def find_experiment(client: "MlflowClient", name: str, artifacts: Path | None) -> str:
    """The experiment of this name, made if there is none, with its files in `artifacts`.

    Raises
    ------
    StoreError
        If it was deleted.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifacts.absolute().as_uri() if artifacts else None))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process was faster
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise StoreError(
            f"the MLflow experiment {name} was deleted: restore it with "
            f"`mlflow experiments restore -x {experiment.experiment_id}`, or use another store"
        )
    return str(experiment.experiment_id)


def _metrics(values: Mapping[str, float], stamp: int, step: int = 0) -> "list[Metric]":
    from mlflow.entities import Metric

    return [Metric(key, value, stamp, step) for key, value in values.items()]


def _params(values: Mapping[str, str]) -> "list[Param]":
    from mlflow.entities import Param

    return [Param(key, value) for key, value in values.items()]


def _tags(values: Mapping[str, str]) -> "list[RunTag]":
    from mlflow.entities import RunTag

    return [RunTag(key, value[: fields.TAG_LENGTH]) for key, value in values.items()]
