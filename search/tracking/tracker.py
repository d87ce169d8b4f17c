"""Live logging of a search to MLflow, from a thread that does not hold the search up."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking.fields import UI_MODE
from tilescout.search.tracking.plots import draw, to_png
from tilescout.search.tracking.runs import StudyRuns
from tilescout.search.tracking.store import (
    Opening,
    artifact_folder,
    importing,
    is_passing,
    open_client,
    quiet_mlflow,
    translated,
)
from tilescout.search.tracking.views import importance
from tilescout.search.tracking.writer import TrackingError, Writer

if TYPE_CHECKING:
    from mlflow import MlflowClient

PACE = 1.0
"""Seconds between two deliveries when trials finish fast. A killed search delivers the rest when it is resumed."""

_LOAD_INTERVAL = 5.0  # seconds between two samples of the machine's load


class MlflowTracker:
    """Logs a study to MLflow while it runs: a parent run, and a nested run for each trial.

    A thread does the writing. If the store fails meanwhile, the search goes on, the thread tries again, and `finish`
    says what did not arrive. Use it as a context manager: left without `finish`, the parent run ends as KILLED (after
    Ctrl-C or without an error) or FAILED.

    Parameters
    ----------
    uri
        The store: ``sqlite:////path/mlflow.db``, ``http://host:port``, or anything else that MLflow takes.
    artifact_root
        Where a new experiment keeps its files. None leaves it to the server; with SQLite it is ``mlartifacts`` beside
        the file.
    info
        The study.
    run_id
        The parent run to go on with; None starts a new one. Hand `catch_up` the trials of before, then.
    suite
        The run of the suite that a new parent run belongs to, if it does.
    opening
        The store, where it is being opened already.
    patience
        Seconds without a single delivery after which `finish` and `close` give up on the store.

    Attributes
    ----------
    run_id, experiment_id
        The parent run and its experiment, as MLflow calls them.
    page
        The parent run's page in MLflow's UI, relative to the address of the server.

    Raises
    ------
    StoreError
        If the store can't be opened or written, or does not have the run.
    """

    def __init__(
        self,
        uri: str,
        artifact_root: Path | None,
        info: StudyInfo,
        run_id: str | None = None,
        *,
        suite: str | None = None,
        opening: Opening | None = None,
        patience: float = 30.0,
    ) -> None:
        self._patience = patience
        self._logged: set[int] = set()
        self._held: list[TrialRecord] = []  # logged, and not yet passed to the thread
        self._handed_on = -math.inf  # time of the last pass to the thread
        self._noted: set[int] = set()
        self._closed = False
        with ExitStack() as stack:
            opened = opening.client() if opening is not None else None
            stack.enter_context(quiet_mlflow())
            client = opened or open_client(uri)
            with translated(uri):
                self._runs = StudyRuns(client, artifact_root or artifact_folder(uri), info, run_id, suite)
                if not info.provenance.replayed:
                    stack.enter_context(_system_metrics(client, uri, self._runs.run_id))
            self._writer = Writer(is_passing)
            stack.callback(self._writer.stop)
            self._resources = stack.pop_all()
        self.run_id = self._runs.run_id
        self.experiment_id = self._runs.experiment_id
        self.page = f"#/experiments/{self.experiment_id}/runs/{self.run_id}?{UI_MODE}"
        if run_id is not None:
            self._writer.put("the list of what is there", self._runs.read_children)

    def log(self, trial: TrialRecord) -> None:
        """Queue a finished trial and return at once. A trial that was logged before is ignored.

        Trials that come fast are handed on together: those of less than `PACE` seconds cost one transaction.
        """
        self._hold(trial)
        if time.monotonic() - self._handed_on >= PACE:
            self._hand_on()

    def note(self, trial: TrialRecord) -> None:
        """Take note of a trial that another process delivers to the same run. It counts for the best so far only."""
        if trial.number not in self._logged | self._noted:
            self._noted.add(trial.number)
            self._writer.put(f"the count of trial {trial.number}", partial(self._runs.count, trial))

    def adopt(self, trials: Iterable[TrialRecord]) -> None:
        """Queue the trials of a dead process that MLflow does not have, or has incompletely."""
        missing = [trial for trial in trials if trial.number not in self._logged]
        if missing:
            self._writer.put("the list of what is there", self._runs.read_children)
            self.catch_up(missing)

    def catch_up(self, trials: Iterable[TrialRecord]) -> None:
        """Queue the finished trials of a resumed study that MLflow lacks, or has incompletely. Call it before `log`."""
        for trial in sorted(trials, key=lambda trial: trial.finished):
            self._hold(trial)
        self._hand_on()

    def finish(self, result: StudyResult) -> None:
        """Attach the result, end the parent run and wait until everything is delivered.

        Raises
        ------
        TrackingError
            If something could not be delivered; it names what.
        """
        self.catch_up(trial for trial in result.trials if trial.number not in self._noted)
        if self._noted:
            self._writer.put("the list of what is there", self._runs.read_children)
        # The plots are drawn here and not in the thread, so that their time does not count towards the store's timeout.
        with importing(ImportError):
            pictures = {name: to_png(figure) for name, figure in draw(result, importance(result)).items()}
        self._writer.put("the summary", partial(self._runs.summarise, result, pictures))
        self._deliver()

    def close(self, status: str = "KILLED") -> None:
        """End the parent run with a status of MLflow's, unless `finish` was called; deliver what is queued.

        Raises
        ------
        TrackingError
            If something could not be delivered; it names what.
        """
        if not self._closed:
            self._hand_on()
            self._writer.put("the end of the run", partial(self._runs.end, status))
            self._deliver()

    def _hold(self, trial: TrialRecord) -> None:
        if trial.number not in self._logged:
            self._logged.add(trial.number)
            self._held.append(trial)

    def _hand_on(self) -> None:
        for trial in self._held:
            self._runs.announce(trial)
        for trial in self._held:
            self._writer.put(f"trial {trial.number}", partial(self._runs.deliver, trial))
        self._held.clear()
        self._handed_on = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close("FAILED" if isinstance(error, Exception) else "KILLED")
        except TrackingError as failure:  # the error that ended the search matters more
            error.add_note(str(failure))

    def _deliver(self) -> None:
        self._closed = True
        with self._resources:
            self._writer.drain(self._patience)


@contextmanager
def _system_metrics(client: "MlflowClient", uri: str, run_id: str) -> Iterator[None]:
    """Log CPU, memory, disk, network and GPUs of this machine to a run of the store at `uri`, from a thread.

    An outage of the store ends the logging of these and nothing else.
    """
    if find_spec("psutil") is None:
        client.set_tag(run_id, "system_metrics", "none: psutil is not installed")
        yield
        return
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, sampling_interval=_LOAD_INTERVAL, resume_logging=True, tracking_uri=uri)
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()
