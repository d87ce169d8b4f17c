"""Measure what tilescout takes on much: a table of a million rows, a study of 20,000 trials, 5,000 studies in a store.

    python -m tilescout.experiments.research load --out load.json

Everything is made here, in a folder that is removed again: a cache of Kernel Tuner is written and imported, searched
at random, and the journal of a search of one trial is copied. Commands run as processes of their own. The seconds are
of the wall, and of the processor in all of a command's processes; the memory is the most that one of them had. The
study of many trials is logged to MLflow, whose store then gets a run for each of the many studies.
"""

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from tilescout.experiments.research.runner import Run, study
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tables.shipped import largest_table, named_template
from tilescout.search.tables.table import Table
from tilescout.search.tracking import MlflowTracker, default_store, open_client, quiet_mlflow
from tilescout.search.tracking.fields import common_tags, milliseconds, study_name, study_params
from tilescout.search.tracking.mlflow_hooks import ChildRun, DatabaseRuns
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.processes import module_command, safe_environment
from tilescout.spaces.templates import find_template

ROWS, TRIALS, STUDIES = 1_000_000, 20_000, 5000
_TIMED = (
    *("import", "tune_of_many_rows", "report_of_many_rows", "report_of_many_trials"),
    *("tune_among_one", "tune_among_many", "studies_listed"),
)
_STARTS = 5  # searches whose starts are timed, in each of two stores
_PAGE = 100  # runs that MLflow's UI asks for at once
_SUM = re.compile(r',"sum":"[0-9a-f]{16}"')


def write_cache(path: Path, rows: int) -> None:
    """Write a cache of at least so many configurations of three parameters; their times are drawn."""
    side = round(rows ** (1 / 3) + 0.499)
    values = list(range(1, side + 1))
    times = np.random.default_rng(0).uniform(1, 2, (side**3, 2)).round(6)
    header = {
        "device_name": "a device",
        "kernel_name": "load",
        "problem_size": [8, 8],
        "tune_params_keys": ["a", "b", "c"],
        "tune_params": {"a": values, "b": values, "c": values},
        "objective": "time",
    }
    with path.open("w") as file:
        file.write(json.dumps(header)[:-1] + ', "cache": {')
        for number, ((a, b, c), (one, two)) in enumerate(
            zip(itertools.product(values, repeat=3), times.tolist(), strict=True)
        ):
            entry = {"a": a, "b": b, "c": c, "time": (one + two) / 2, "times": [one, two], "compile_time": 100.0}
            entry |= {"benchmark_time": 20.0, "verification_time": 0.0, "timestamp": "2026-11-22 00:00:00"}
            file.write(f'{"," if number else ""}\n"{a},{b},{c}": {json.dumps(entry)}')
        file.write("}}\n")


def copy_studies(folder: Path, copies: int) -> None:
    """Copy the only study of a folder under the names that later searches of its kind would have.

    Records without checksums, as older ones were, are read too.
    """
    (journal,) = folder.glob("*.journal")
    text = _SUM.sub("", journal.read_text())
    for number in range(2, copies + 1):
        name = f"{journal.stem}-{number}"
        (folder / f"{name}.journal").write_text(text.replace(f'"{journal.stem}"', f'"{name}"'))


def timed(folder: Path, *arguments: object) -> dict[str, float]:
    """Run a command of tilescout: the seconds that it took, and the MiB that it had at most.

    Raises
    ------
    CalledProcessError
        If it fails.
    """
    began = time.perf_counter()
    command = module_command("tilescout.experiments", *map(str, arguments))
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=folder, env=safe_environment(), stdout=quiet, stderr=quiet)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024}


def searched(table: Path, trials: int, studies: Path) -> dict[str, float]:
    """Search a table at random: ms a trial, of the wall and of the processor, in the first tenth and in the last."""
    template, marks = named_template("load", table), list[tuple[float, float]]()

    def on_trial(trial: TrialRecord) -> None:
        marks.append((time.perf_counter(), time.process_time()))

    recorded = Table.read(table)
    with Evaluator(ReplayEngine(recorded, template), recorded.problems[0]) as evaluator:
        run_study(evaluator, TuneOptions("random", 0, Budget(trials=trials), studies), on_trial=on_trial)
    tenth = max(1, trials // 10)
    spans = {"": (0, -1), "first_": (0, tenth), "last_": (-tenth - 1, -1)}
    found = {"trials": float(len(marks))}
    for name, (low, high) in spans.items():
        (wall, busy), count = np.subtract(marks[high], marks[low]), len(marks[low:high]) if name else len(marks) - 1
        found |= {f"{name}ms": 1e3 * wall / count, f"{name}cpu_ms": 1e3 * busy / count}
    return found


def started(folders: Mapping[str, Path], table: Table) -> dict[str, dict[str, float]]:
    """Seconds from the begin of a search to its first trial, by the folder of studies: medians of searches in turns."""
    template = find_template(table.card.space)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in folders}

    def on_trial(trial: TrialRecord) -> None:
        marks.append((time.perf_counter(), time.process_time()))

    with Evaluator(ReplayEngine(table, template), table.problems[0]) as evaluator:
        for name in [*folders] * _STARTS:
            marks = [(time.perf_counter(), time.process_time())]
            run_study(evaluator, TuneOptions("random", 0, Budget(trials=1), folders[name]), on_trial=on_trial)
            found[name].append((marks[1][0] - marks[0][0], marks[1][1] - marks[0][1]))
    medians = {name: np.median(spans, axis=0).tolist() for name, spans in found.items()}
    return {name: {"seconds": wall, "cpu_seconds": busy} for name, (wall, busy) in medians.items()}


def logged(result: StudyResult, uri: str, studies: int) -> dict[str, float]:
    """Log a study to an MLflow store, and runs like its own for many studies; ms of the processor for a trial."""
    began = time.process_time()
    with MlflowTracker(uri, None, result.info) as tracker:
        for trial in result.trials:
            tracker.log(trial)
        tracker.finish(result)
    spent = time.process_time() - began
    with quiet_mlflow():
        writer = DatabaseRuns.of(open_client(uri), tracker.run_id, tracker.experiment_id)
        assert writer is not None
        now = milliseconds(time.time())
        best = {"best_time_us": 1.0, "best_speedup_over_library": 1.0, "trials": 1.0}
        for first in range(0, studies, _PAGE):
            # Numbers of their own: a run is named after its parent and its number.
            runs = [
                ChildRun(
                    len(result.trials) + number, study_name(result.info), "FINISHED", now, now,
                    common_tags(result.info), study_params(result.info), best,
                )
                for number in range(first, min(first + _PAGE, studies))
            ]  # fmt: skip
            writer.write([(run, {}, 0) for run in runs])
    return {"cpu_ms": 1e3 * spent / len(result.trials), "trials": float(len(result.trials)), "studies": float(studies)}


def served(store: Path) -> dict[str, float]:
    """Seconds until MLflow's UI is there, once it is started on a store, and then for a page of each experiment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    began = time.perf_counter()
    command = module_command("tilescout.experiments", "ui", "--store", str(store), "--port", str(port))
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with subprocess.Popen(command, env=safe_environment(), stderr=subprocess.DEVNULL) as server:
        try:
            while True:
                try:
                    with direct.open(f"http://127.0.0.1:{port}/", timeout=60):
                        found = {"front": time.perf_counter() - began}
                    break
                except OSError:
                    if server.poll() is not None or time.perf_counter() - began > 300:
                        raise
                    time.sleep(0.1)
            api = f"http://127.0.0.1:{port}/ajax-api/2.0/mlflow"
            with direct.open(f"{api}/experiments/search?max_results={_PAGE}", timeout=60) as answer:
                experiments = json.load(answer)["experiments"]
            for each in experiments:
                if each["name"].startswith("tilescout/"):
                    order = "metrics.time_us ASC" if each["name"].endswith("/trials") else "metrics.best_time_us ASC"
                    asked = {"experiment_ids": [each["experiment_id"]], "max_results": _PAGE, "order_by": [order]}
                    request = urllib.request.Request(
                        f"{api}/runs/search", json.dumps(asked).encode(), {"Content-Type": "application/json"}
                    )
                    began = time.perf_counter()
                    with direct.open(request, timeout=300) as answer:
                        assert json.load(answer)["runs"]
                    found["trials" if each["name"].endswith("/trials") else "studies"] = time.perf_counter() - began
            return found
        finally:
            server.terminate()


def measure(folder: Path, rows: int, trials: int, studies: int) -> dict[str, Any]:
    """All of it, in an empty folder; commands first: what a process has in memory counts as its children's."""
    many, fewer, store = folder / "table.parquet", folder / "fewer.parquet", folder / "store"
    result: dict[str, Any] = {}
    for table, size in ((fewer, 2 * trials), (many, rows)):
        cache = table.with_suffix(".cache")
        write_cache(cache, size)
        result["import"] = timed(folder, "tables", "import", cache, table)
        cache.unlink()
    search = ("tune", "load", "--problem", "8x8", "--sampler", "random", "--store", store)
    result["tune_of_many_rows"] = timed(folder, *search, "--table", many, "--trials", 10)
    (journal,) = (store / "studies").glob("*.journal")
    result["report_of_many_rows"] = timed(folder, "report", journal, "--out", folder / "rows.html")
    shutil.rmtree(store)
    replay = ("--problem", "1024x1024x1024:bf16", "--device", "replay", "--sampler", "random", "--trials", 1)
    few = folder / "few"
    stores = {"one": few, "many": store}
    for each in stores.values():
        timed(folder, "tune", "gemm_sm90", *replay, "--store", each)
    copy_studies(store / "studies", studies)
    result["studies"] = len(list((store / "studies").glob("*.journal")))
    took: dict[str, list[dict[str, float]]] = {name: [] for name in stores}
    for name in [*stores] * _STARTS:
        took[name].append(timed(folder, "tune", "gemm_sm90", *replay, "--store", stores[name]))
    for name, spans in took.items():
        result[f"tune_among_{name}"] = {key: float(np.median([one[key] for one in spans])) for key in spans[0]}
    result["studies_listed"] = timed(folder, "studies", "--store", store)
    recorded = largest_table(find_template("gemm_sm90"))
    result["to_first_trial"] = started({name: each / "studies" for name, each in stores.items()}, recorded)
    result["search"] = searched(fewer, trials, folder / "long")
    (journal,) = (folder / "long").glob("*.journal")
    result["report_of_many_trials"] = timed(folder, "report", journal, "--out", folder / "page.html")
    result["logged"] = logged(read_study(str(journal), ""), default_store(store)[0], studies)
    result["ui"] = served(store)
    result["rows"] = len(Table.read(many))
    return result


def told(result: Mapping[str, Any]) -> list[str]:
    """The lines of the table that is printed."""
    lines = [f"{'':34}{'s':>8}{'CPU s':>8}{'MiB':>8}"]
    for name in _TIMED:
        one = result[name]
        lines.append(f"{name.replace('_', ' '):34}{one['seconds']:8.1f}{one['cpu_seconds']:8.1f}{one['mib']:8.0f}")
    found = result["search"]
    lines.append(f"{result['rows']:,} rows, {result['studies']:,} studies, {found['trials']:,.0f} trials:")
    lines += [
        f"{name or 'all_':6} {found[f'{name}ms']:.2f} ms a trial, {found[f'{name}cpu_ms']:.2f} of CPU"
        for name in ("", "first_", "last_")
    ]
    lines += [
        f"to the first trial among {name}: {one['seconds']:.3f} s, {one['cpu_seconds']:.3f} of CPU"
        for name, one in result["to_first_trial"].items()
    ]
    lines.append(f"MLflow: {result['logged']['cpu_ms']:.2f} ms of CPU a trial of {result['logged']['trials']:,.0f}")
    return [*lines, "the UI: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result["ui"].items())]


@study("nothing")
@click.option("--rows", default=ROWS, show_default=True, type=click.IntRange(min=8), help="Rows of the table.")
@click.option("--trials", default=TRIALS, show_default=True, type=click.IntRange(min=10), help="Trials of the study.")
@click.option("--studies", default=STUDIES, show_default=True, type=click.IntRange(min=2), help="Studies of the store.")
def main(run: Run, rows: int, trials: int, studies: int) -> None:
    """Measure, and print what it took."""
    with TemporaryDirectory() as folder:
        result = measure(Path(folder), rows, trials, studies)
    run.keep(result)
    print("\n".join(told(result)))
