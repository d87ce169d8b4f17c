"""Measure what tilescout takes on much: a table of a million rows, a study of 20,000 trials, a store of 5,000 studies.

    python -m tilescout.experiments.research load --out load.json

Everything is made here, in a folder that is removed again: a cache of Kernel Tuner is written and imported, searched
at random, and the journal of a search of one trial is copied. Commands run as processes of their own. The seconds are
of the wall, and of the processor in all of a command's processes; the memory is the most that one of them had.
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
from tilescout.search.studies.records import TrialRecord
from tilescout.search.tables.shipped import named_template
from tilescout.search.tables.table import Table
from tilescout.search.tuning.loop import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.processes import module_command, safe_environment

ROWS, TRIALS, STUDIES = 1_000_000, 20_000, 5000
_TIMED = ("import", "tune_of_many_rows", "report_of_many_trials", "tune_among_one", "tune_among_many", "studies_listed")
_SUM = re.compile(r',"sum":"[0-9a-f]{16}"')


def write_cache(path: Path, rows: int, seed: int = 0) -> None:
    """Write a cache of at least so many configurations of three parameters; their times are drawn."""
    side = round(rows ** (1 / 3) + 0.499)
    values = list(range(1, side + 1))
    times = np.random.default_rng(seed).uniform(1, 2, (side**3, 2)).round(6)
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


def served(store: Path) -> float:
    """Seconds until the page of MLflow's UI is there, once it is started on a store."""
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
                        return time.perf_counter() - began
                except OSError:
                    if server.poll() is not None or time.perf_counter() - began > 300:
                        raise
                    time.sleep(0.1)
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
    shutil.rmtree(store)
    replay = ("--problem", "1024x1024x1024:bf16", "--device", "replay", "--sampler", "random")
    one = ("tune", "gemm_sm90", *replay, "--store", store, "--trials", 1)
    timed(folder, *one)
    result["tune_among_one"] = timed(folder, *one)
    next((store / "studies").glob("*-2.journal")).unlink()
    copy_studies(store / "studies", studies)
    result["studies"] = len(list((store / "studies").glob("*.journal")))
    result["tune_among_many"] = timed(folder, *one)
    result["studies_listed"] = timed(folder, "studies", "--store", store)
    result["ui_seconds"] = served(store)
    result["search"] = searched(fewer, trials, folder / "long")
    (journal,) = (folder / "long").glob("*.journal")
    result["report_of_many_trials"] = timed(folder, "report", journal, "--out", folder / "page.html")
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
    return [*lines, f"the UI answers after {result['ui_seconds']:.1f} s"]


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
