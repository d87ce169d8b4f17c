"""The parameters of ``tilescout tune``, for one problem and for a suite alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.commands.options import shown_at
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.search.api import DEFAULT_TRIALS
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.peers import patient_with
from tilescout.search.measure.protocol import Objective
from tilescout.search.tuning.budget import Budget
from tilescout.spaces.errors import StoreError
from tilescout.spaces.terminal import Console


@dataclass(frozen=True)
class TuneRequest:
    """The parameters as they were typed; the command's help text says what each means."""

    space: str
    problem: str | None
    suite: str | None
    signature: str | None
    device: str
    gpus: int | None
    cluster: str | None
    table: Path | None
    skip_unrecorded: bool
    objective: Objective | None
    standby: bool
    library_kernels: int
    peers: tuple[str, ...]
    complement: bool
    sampler: str | None
    model: Path | None
    first: str | None
    trials: int | None
    gpu_seconds: float | None
    seconds: float | None
    whole_budget: bool
    seed: int
    resume: bool
    store: Path
    storage: str | None
    mlflow_uri: str | None
    json_path: Path | None

    def check(self) -> None:
        """Refuse parameters that do not go together, and a result file that can't be written.

        Raises
        ------
        UsageError, StoreError
            If that is so.
        """
        if (self.problem is None) == (self.suite is None):
            raise click.UsageError("give one of --problem and --suite")
        check_result(self.json_path)
        if self.problem is not None and self.signature is not None:
            raise click.UsageError("--signature is for a suite: write types, layout and epilogue behind the problem")
        if self.problem is not None and self.skip_unrecorded:
            raise click.UsageError("--skip-unrecorded is for a suite, and --problem names one problem: leave it out")
        if self.suite is not None and self.first is not None:
            raise click.UsageError("--first is for one problem: a list is of one space, and a suite has many")
        if self.suite is not None and self.storage is not None:
            raise click.UsageError("--storage is for one problem: the searches of a suite take turns in one process")

    def budget(self, problems: int) -> Budget:
        """The limits of all problems together; without any, each problem has its usual trials."""
        unlimited = self.trials is None and self.gpu_seconds is None and self.seconds is None
        trials = DEFAULT_TRIALS * problems if unlimited else self.trials
        return Budget(trials, self.gpu_seconds, self.seconds, self.whole_budget)

    @property
    def live(self) -> LiveOptions:
        """How kernels are compiled and measured."""
        return patient_with(self.peers, LiveOptions(CompileOptions(standby=self.standby)))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the sampler besides its seed."""
        return {"model": self.model} if self.model is not None else {}

    def shown_at(self, page: str) -> str:
        """How to see a page of MLflow's UI."""
        return shown_at(page, self.mlflow_uri, self.store)

    @property
    def console(self) -> Console:
        """Where the result is printed."""
        return console_beside(self.json_path)

    def deliver(self, result: Any, not_tracked: str) -> None:
        """Write the result as JSON if that was asked for; raises as `check_tracked` does."""
        write_result(self.json_path, result)
        self.check_tracked(not_tracked)

    def check_tracked(self, not_tracked: str) -> None:
        """Tell what MLflow did not get.

        Raises
        ------
        StoreError
            If it did not get all of it, which ``not_tracked`` explains.
        """
        if not_tracked:
            raise StoreError(f"{not_tracked}; tune --resume delivers the rest")
