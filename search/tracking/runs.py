"""The MLflow runs of one study: a parent, and a child for each trial."""

import csv
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking import fields
from tilescout.search.tracking.datasets import log_tables
from tilescout.search.tracking.description import Place, describe, opening
from tilescout.search.tracking.fields import Progress, milliseconds
from tilescout.search.tracking.mlflow_hooks import ChildRun, DatabaseRuns
from tilescout.search.tracking.models import find_or_log
from tilescout.search.tracking.store import find_experiment
from tilescout.search.tracking.views import trial_rows
from tilescout.spaces.errors import StoreError
from tilescout.spaces.texts import printable

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, Run, RunTag

_BATCH = 256  # most trials that are written at once
_PAGE = 200  # runs per request when reading back: each comes with all its data


class StudyRuns:
    """Writes a study to MLflow, one call at a time.

    Every method may be called again after it failed halfway, in this process or, on the reopened parent, in a later
    one: what is there already is found, not written twice. For that, a trial's child is written together with all that
    the trial adds to the parent or, where the store takes one call after the other, terminated last.

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
        self._artifacts = artifacts
        self._info = info
        self._progress = Progress()
        self._counted: set[int] = set()  # trials that `_progress` has
        self._children: dict[int, str] = {}  # run of each trial, by its number
        self._finished: set[int] = set()  # trials whose run is complete
        self._delivered: set[int] = set()  # those of them that `deliver` wrote, or found complete
        self._announced: deque[TrialRecord] = deque()
        self._attempted: set[int] = set()  # trials whose run may exist although the request for it failed
        self._doubtful: set[int] = set()  # those of them whose run was requested again
        self._awaiting_default: list[TrialRecord] = []  # finished before the default was measured
        self._tags = fields.common_tags(info)
        if run_id is None:
            self.experiment_id = find_experiment(client, fields.experiment_name(info.space), artifacts, fields.STUDIES)
            self._trials_id = find_experiment(
                client, fields.trials_experiment_name(info.space), artifacts, fields.TRIALS
            )
            tags = {fields.NOTE_TAG: opening(info), fields.TRIALS_TAG: self._trials_id}
            tags |= {fields.PARENT_TAG: suite} if suite else {}
            name, now = fields.study_name(info), milliseconds(time.time())
            self.run_id = self._create(self.experiment_id, name, now, self._clipped(tags))
            if info.provenance.table is not None:
                log_tables(client, self.run_id, [info.provenance.table], info.provenance.kind)
        else:
            run = self._reopen(run_id)
            self.experiment_id, self.run_id = run.info.experiment_id, run_id
            self._trials_id = run.data.tags.get(fields.TRIALS_TAG, self.experiment_id)  # older runs: beside the parent
        # On a reopened run this changes nothing, or fails if the run is of another study.
        client.log_batch(self.run_id, params=_params(fields.study_params(info)))
        self._database = DatabaseRuns.of(client, self.run_id, self._trials_id)

    @property
    def _place(self) -> Place:
        return Place(self.run_id, self.experiment_id, self._trials_id)

    def read_children(self) -> None:
        """Learn which trials are there already."""
        self._children, self._finished = {}, set()
        for run in self._search(f"tags.`{fields.PARENT_TAG}` = '{self.run_id}'"):
            number = int(run.data.tags[fields.TRIAL_TAG])
            if number in self._finished:  # a server made this one late, see `_drop_doubles`
                continue
            self._children[number] = run.info.run_id
            if run.info.status != "RUNNING":
                self._finished.add(number)

    def count(self, trial: TrialRecord) -> None:
        """Count a finished trial that another process writes."""
        if trial.number not in self._counted:
            progress = self._progress.after(trial, self._info)
            if progress.default is not None:
                self._complete_earlier(progress, milliseconds(trial.finished))
                self._awaiting_default.clear()
            self._progress = progress
            self._counted.add(trial.number)

    def announce(self, trial: TrialRecord) -> None:
        """Announce that `deliver` will be called for a trial, after those announced before: one call can write several.

        Any thread may call it.
        """
        self._announced.append(trial)

    def deliver(self, trial: TrialRecord) -> None:
        """Write a finished trial, unless it is there, and where possible the trials announced after it."""
        if trial.number in self._delivered:
            return
        while self._announced and self._announced[0].number != trial.number:
            self._announced.popleft()  # it was refused
        batch: list[tuple[ChildRun, dict[str, float], int]] = []
        settled: list[TrialRecord] = []
        progress = self._progress
        for each in list(islice(self._announced, _BATCH)) or [trial]:
            after = progress if each.number in self._counted else progress.after(each, self._info)
            # Trials before the default have no speed-up over it yet; they get it when the default is measured.
            if settled and (self._database is None or after.default is not progress.default):
                break
            if each.number not in self._finished:
                child = self._child_of(each, after)
                begun = each.number in self._children or each.number in self._attempted
                if self._database is None or begun or not child.plain:
                    if settled:
                        break
                    self._complete_earlier(after, child.ended)
                    self._write(child, after)
                else:
                    if not settled:
                        self._complete_earlier(after, child.ended)
                    batch.append((child, after.metrics(self._info), after.trials))
            settled.append(each)
            progress = after
        if batch and self._database is not None:
            ids = self._database.write(batch)
            self._children |= {child.number: run_id for (child, _, _), run_id in zip(batch, ids, strict=True)}
        self._settle(settled, progress)

    def _settle(self, trials: Sequence[TrialRecord], progress: Progress) -> None:
        """Remember which trials were written."""
        numbers = {trial.number for trial in trials}
        self._finished |= numbers
        self._delivered |= numbers
        self._counted |= numbers
        while self._announced and self._announced[0].number in numbers:
            self._announced.popleft()
        if progress.default is not None:
            self._awaiting_default.clear()
        else:
            self._awaiting_default += [trial for trial in trials if trial.measurement.ok]
        self._progress = progress

    def _child_of(self, trial: TrialRecord, progress: Progress) -> ChildRun:
        return ChildRun(
            number=trial.number,
            name=fields.trial_name(trial),
            status=fields.trial_status(trial),
            started=milliseconds(trial.started),
            ended=milliseconds(trial.finished),
            tags=self._clipped(fields.trial_tags(trial) | {fields.PARENT_TAG: self.run_id}),
            params=fields.trial_params(trial),
            metrics=fields.trial_metrics(trial, self._info, progress.default),
        )

    def summarise(self, result: StudyResult, pictures: Mapping[str, bytes]) -> None:
        """Attach the result to the parent with its pictures, which are PNG files by name, and end it."""
        from mlflow.entities import LoggedModelInput

        self._drop_doubles()

        with TemporaryDirectory(prefix="tilescout-") as folder:
            path = Path(folder)
            (path / "best_configuration.json").write_text(json.dumps(result.to_dict(), indent=2) + "\n")
            _write_csv(trial_rows(result), path / "trials.csv")
            for name, picture in pictures.items():
                (path / f"{name}.png").write_bytes(picture)
            self._client.log_artifacts(self.run_id, folder)
        described = describe(result, self._place, self._children, list(pictures))
        tags = {fields.NOTE_TAG: described}
        tags |= fields.result_tags(result)
        if self._info.model:
            model_id = find_or_log(self._client, self._artifacts, Path(self._info.model))
            self._client.log_inputs(self.run_id, models=[LoggedModelInput(model_id)])
        last = max((trial.finished for trial in result.trials), default=time.time())
        for number, metrics in fields.race_metrics(result).items():
            if number in self._children:
                self._client.log_batch(self._children[number], _metrics(metrics, milliseconds(last)))
        behind = milliseconds(last) + 1  # the trial with the same step: MLflow shows what is latest
        account = _metrics(fields.result_metrics(result), behind, step=self._progress.trials)
        self._client.log_batch(self.run_id, account, tags=_tags(tags))
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

    def _clipped(self, tags: Mapping[str, str]) -> dict[str, str]:
        return {key: printable(value)[: fields.TAG_LENGTH] for key, value in {**self._tags, **tags}.items()}

    def _create(self, experiment: str, name: str, started: int, tags: Mapping[str, str]) -> str:
        return str(self._client.create_run(experiment, started, dict(tags), printable(name)).info.run_id)

    def _write(self, child: ChildRun, progress: Progress) -> None:
        """Write a child through MLflow's client, one call after the other."""
        run_id = self._child(child)
        self._client.log_batch(run_id, _metrics(child.metrics, child.ended), _params(child.params))
        parent = progress.metrics(self._info)
        self._client.log_batch(self.run_id, _metrics(parent, child.ended, step=progress.trials))
        self._client.set_terminated(run_id, child.status, child.ended)

    def _child(self, child: ChildRun) -> str:
        if child.number not in self._children and child.number in self._attempted:
            self._doubtful.add(child.number)
            for run in self._runs_of(child.number):
                self._children[child.number] = run.info.run_id
        if child.number not in self._children:
            self._attempted.add(child.number)
            self._children[child.number] = self._create(self._trials_id, child.name, child.started, child.tags)
        return self._children[child.number]

    def _runs_of(self, number: int) -> "list[Run]":
        parent = f"tags.`{fields.PARENT_TAG}` = '{self.run_id}'"
        return self._search(f"{parent} and tags.`{fields.TRIAL_TAG}` = '{number}'")

    def _drop_doubles(self) -> None:
        """Delete duplicate runs: a request that seemed to fail may have been carried out after it was repeated."""
        for number in self._doubtful:
            for run in self._runs_of(number):
                if run.info.run_id != self._children.get(number):
                    self._client.delete_run(run.info.run_id)
        self._doubtful.clear()

    def _complete_earlier(self, progress: Progress, stamp: int) -> None:
        """Give trials that finished before the default was measured their speedup over it, once it is known."""
        if progress.default is None:
            return
        for trial in self._awaiting_default:
            metrics = fields.trial_metrics(trial, self._info, progress.default)
            late = {"speedup_over_default": metrics["speedup_over_default"]}
            self._client.log_batch(self._children[trial.number], _metrics(late, stamp))

    def _search(self, condition: str) -> "list[Run]":
        runs: list[Run] = []
        token: str | None = None
        while True:
            page = self._client.search_runs([self._trials_id], condition, max_results=_PAGE, page_token=token)
            runs.extend(page)
            token = page.token
            if not token:
                return runs


def _write_csv(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write rows with the same columns as CSV, which MLflow shows as a table."""
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _metrics(values: Mapping[str, float], stamp: int, step: int = 0) -> "list[Metric]":
    from mlflow.entities import Metric

    return [Metric(key, value, stamp, step) for key, value in values.items()]


def _params(values: Mapping[str, str]) -> "list[Param]":
    from mlflow.entities import Param

    return [Param(key, printable(value)) for key, value in values.items()]


def _tags(values: Mapping[str, str]) -> "list[RunTag]":
    from mlflow.entities import RunTag

    return [RunTag(key, printable(value)[: fields.TAG_LENGTH]) for key, value in values.items()]
