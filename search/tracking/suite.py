"""The MLflow run of a suite: the parent of its studies' runs."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from tilescout.search.measure.protocol import UNNAMED, Objective
from tilescout.search.studies.answers import by_problem, fastest, peers_of
from tilescout.search.studies.records import StudyResult
from tilescout.search.tracking import fields
from tilescout.search.tracking.description import as_text
from tilescout.search.tracking.fields import milliseconds
from tilescout.search.tracking.store import (
    Opening,
    artifact_folder,
    find_experiment,
    open_client,
    quiet_mlflow,
    translated,
)
from tilescout.spaces.texts import number_of, printable


@dataclass(frozen=True)
class SuiteInfo:
    """The description of a suite's run.

    Attributes
    ----------
    suite, space, device
        Names of the suite, the search space and the device.
    sampler, seed
        The strategy and its seed.
    problems
        How many there are.
    provenance
        Where measurements come from, in a line.
    objective
        What runs around a kernel while it is timed.
    """

    suite: str
    space: str
    device: str
    sampler: str
    seed: int
    problems: int
    provenance: str
    objective: Objective = UNNAMED

    @property
    def key(self) -> str:
        """Identifies the run that a resumed search of the suite continues."""
        measured = self.device if self.objective is UNNAMED else f"{self.device} {self.objective}"
        key = printable(f"{self.suite} {self.space} {measured} {self.sampler} s{self.seed}")
        return key.replace("'", '"')  # which MLflow's conditions can't have in a text


class SuiteRun:
    """A run in MLflow, open while the studies of a suite are searched; their runs are its children.

    Parameters
    ----------
    uri, artifact_root
        See `MlflowTracker`.
    info
        Its description.
    resume
        Go on with the newest run of the same kind.
    opening
        The store, where it is being opened already.

    Attributes
    ----------
    run_id
        As MLflow calls it.
    page
        Its page in MLflow's UI, relative to the address of the server.

    Raises
    ------
    StoreError
        If the store can't be opened or written.
    """

    def __init__(
        self,
        uri: str,
        artifact_root: Path | None,
        info: SuiteInfo,
        resume: bool = False,
        opening: Opening | None = None,
    ) -> None:
        self._uri, self._status = uri, "KILLED"
        with ExitStack() as stack:
            opened = opening.client() if opening is not None else None
            stack.enter_context(quiet_mlflow())
            self._client = opened or open_client(uri)
            with translated(uri):
                root = artifact_root or artifact_folder(uri)
                self._experiment = find_experiment(
                    self._client, fields.experiment_name(info.space), root, fields.STUDIES
                )
                self.run_id = (self._find(info) if resume else None) or self._create(info)
            self.page = f"#/experiments/{self._experiment}/runs/{self.run_id}?{fields.UI_MODE}"
            self._resources = stack.pop_all()

    def finish(self, results: Sequence[StudyResult]) -> None:
        """Write the figures of all studies together, which have all ended.

        Raises
        ------
        StoreError
            If the store can't be written.
        """
        self.log(results)
        self._status = "FINISHED"

    def log(self, results: Sequence[StudyResult]) -> None:
        """Write the figures of studies together, as far as they have come.

        Raises
        ------
        StoreError
            If the store can't be written.
        """
        from mlflow.entities import Metric, RunTag

        stamp = milliseconds(time.time())
        found = suite_metrics(results)
        # Under the names of studies' columns too: means and sums beside their figures.
        columns = {
            "best_speedup_over_library": found.get("mean_speedup_over_library"),
            "best_speedup_over_library_best": found.get("mean_speedup_over_library_best"),
            "best_speedup_over_default": found.get("mean_speedup_over_default"),
            "cost_gpu_seconds": found["gpu_seconds"],
        }
        told = found | {name: value for name, value in columns.items() if value is not None}
        metrics = [Metric(name, value, stamp, 0) for name, value in told.items()]
        with translated(self._uri):
            tags = [RunTag(fields.NOTE_TAG, printable(_describe(results))[: fields.TAG_LENGTH])]
            self._client.log_batch(self.run_id, metrics, tags=tags)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(failed=isinstance(error, Exception))

    def end(self, failed: bool) -> None:
        """End the run: as failed, as finished after `finish`, or else as killed.

        Raises
        ------
        StoreError
            If the store can't be written.
        """
        with self._resources, translated(self._uri):
            self._client.set_terminated(self.run_id, "FAILED" if failed else self._status)

    def _find(self, info: SuiteInfo) -> str | None:
        condition = f"tags.`{fields.SUITE_TAG}` = '{info.key}'"
        newest = ["attributes.start_time DESC"]
        for run in self._client.search_runs([self._experiment], condition, max_results=1, order_by=newest):
            self._client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
        return None

    def _create(self, info: SuiteInfo) -> str:
        from mlflow.entities import Param

        tags = {
            fields.SUITE_TAG: info.key,
            "mlflow.source.name": "tilescout",
            "device": info.device,
            "measured_by": info.provenance,
            "objective": str(info.objective),
        }
        name = printable(f"{info.sampler}{f' s{info.seed}' if info.seed else ''} {info.suite}")
        run = self._client.create_run(self._experiment, milliseconds(time.time()), tags, name)
        params = {"suite": info.suite, "space": info.space, "sampler": info.sampler, "seed": info.seed}
        params |= {"problem": number_of(info.problems, "problem"), "problems": info.problems, "device": info.device}
        self._client.log_batch(
            run.info.run_id, params=[Param(key, printable(str(value))) for key, value in params.items()]
        )
        return str(run.info.run_id)


def suite_metrics(results: Sequence[StudyResult]) -> dict[str, float]:
    """The figures of a whole suite: geometric means of the problems' speed-ups, and sums of all studies' costs.

    Where a problem has several studies, its answer is the fastest of theirs, and its default that of the first. The
    figures over the library's best, and over a peer, are of the problems on which that is known.
    """
    problems = by_problem(results)
    metrics = {
        "problems": float(len(problems)),
        "trials": float(sum(len(result.trials) for result in results)),
        "gpu_seconds": sum(result.gpu_seconds for result in results),
        "compile_seconds": sum(result.compile_seconds for result in results),
    }
    over_library, over_default = [], []
    answers = [fastest(found) for found in problems]
    over_best = [over.value for result in answers if (over := result.over_library_best) is not None]
    for (first, *_), answer in zip(problems, answers, strict=True):
        best = answer.best.measurement.timing if answer.best is not None else None
        default = first.default.measurement.timing if first.default is not None else None
        if best is not None:
            over_library.append(1 / best.ratio)
            if default is not None:
                over_default.append(fields.speedup(best, default))
    over_peers = {
        name: [result.over_peers[name].value for result in answers if name in result.over_peers]
        for name in peers_of(answers)
    }
    metrics["solved_problems"] = float(len(over_library))
    metrics |= {
        f"known_{whom}": float(len(speeds)) for whom, speeds in {"library_best": over_best, **over_peers}.items()
    }
    found = {"library": over_library, "library_best": over_best, "default": over_default, **over_peers}
    for name, speeds in ((f"speedup_over_{whom}", speeds) for whom, speeds in found.items()):
        if speeds:
            metrics[f"mean_{name}"] = math.exp(float(np.mean(np.log(speeds))))
            metrics[f"least_{name}"] = min(speeds)
    return metrics


def _unit(results: Sequence[StudyResult]) -> str:
    return results[0].info.provenance.unit if results else "µs"


def _describe(results: Sequence[StudyResult]) -> str:
    """A table of the problems, in Markdown."""
    over_library, others = as_text(libraries_of(results)), speeds_over_others(results)
    headings = "".join(f" over {as_text(name)} |" for name in others)
    lines = [f"| problem | trials | {_unit(results)} | over {over_library} |{headings}"]
    lines.append("| --- " * (4 + len(others)) + "|")
    for result, *beside in zip(results, *others.values(), strict=True):
        timing = result.best.measurement.timing if result.best is not None else None
        none = "every trial failed" if result.trials else "not tried"
        found = f"{timing.time_us:.2f} | {1 / timing.ratio:.3f}" if timing is not None else f"{none} | "
        speeds = "".join(f" {speed} |" for speed in beside)
        lines.append(f"| {shown_problem(result, results)} | {len(result.trials)} | {found} |{speeds}")
    return "\n".join(lines)


def shown_problem(result: StudyResult, results: Sequence[StudyResult]) -> str:
    """The problem of a result in a table of them; with the space where that is another one than the first's."""
    space = result.info.space
    return str(result.info.problem) if space == results[0].info.space else f"{result.info.problem}, {space}"


def libraries_of(results: Sequence[StudyResult]) -> str:
    """The functions that the speeds of results are over, which say how sums of 8-bit products are kept."""
    return " and ".join(dict.fromkeys(result.info.library for result in results)) or "the library"


def speeds_over_others(results: Sequence[StudyResult]) -> dict[str, list[str]]:
    """Columns of a table of results, by heading: their speeds over the library's best and over peers, where known."""
    columns = {}
    if best := library_best_heading(results):
        columns[best] = [result.over_library_best for result in results]
    columns |= {name: [result.over_peers.get(name) for result in results] for name in peers_of(results)}
    return {
        name: ["" if speed is None else f"{speed.value:.3f}" for speed in speeds] for name, speeds in columns.items()
    }


def library_best_heading(results: Sequence[StudyResult]) -> str:
    """The name of the library at its best in a table of results, ``cuBLASLt's best``; empty if none knows it."""
    known = (f"{result.library_best.library}'s best" for result in results if result.library_best is not None)
    return next(known, "")
