"""``tilescout tune`` as a person runs it: a process, a store, MLflow."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import mlflow
import pytest
from mlflow.entities import Run

from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.tables.shipped import default_table
from tilescout.search.tracking.standing.unlogged import mark, unlogged
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

PROBLEM = "4096x4096x4096:bf16"
RunCommand = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = str(Path(sys.executable).with_name("tilescout"))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command, and wait for what a process that it left alone still logs."""
    done = subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    deadline = time.monotonic() + 120
    while list(folder.glob(".tilescout/studies/*.unlogged")) and time.monotonic() < deadline:
        time.sleep(0.1)
    return done


def trial_runs(folder: Path) -> tuple[Run, Sequence[Run]]:
    """The parent run and the trials' runs in the folder's MLflow store."""
    client = mlflow.MlflowClient(f"sqlite:///{folder}/.tilescout/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, max_results=5000)
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    return parents[0], [run for run in runs if run is not parents[0]]


def test_a_search_writes_its_result_and_64_trials_to_mlflow(tmp_path: Path) -> None:
    arguments = ("--problem", PROBLEM, "--device", "replay", "--sampler", "tpe", "--trials", "64", "--json", "r.json")
    printed = run(tmp_path, "tune", "gemm_sm90", *arguments)

    result = json.loads((tmp_path / "r.json").read_text())
    assert result["trials"] == 64
    assert result["problem"] == PROBLEM
    low, high = result["best"]["interval_us"]
    assert low <= result["best"]["time_us"] <= high
    assert result["best"]["time_us"] <= result["default"]["time_us"]
    assert result["library"]["time_us"] > result["roofline_us"]
    table = default_table(find_template("gemm_sm90"), GemmProblem.parse(PROBLEM))
    recorded = table.row(result["best"]["configuration"], GemmProblem.parse(PROBLEM))
    assert recorded is not None
    assert result["best"]["time_us"] == pytest.approx(float(table.times_us[recorded]))

    assert "no GPU was used" in printed.stderr.replace("\n", " ")
    for shown in ("best", "default", "torch.mm", f"{result['best']['time_us']:.2f}"):
        assert shown in printed.stdout

    parent, trials = trial_runs(tmp_path)
    assert len(trials) == 64
    assert {trial.info.status for trial in trials} == {"FINISHED"}
    assert parent.info.status == "FINISHED"


@pytest.mark.skipif(bool(visible_gpus()), reason="there is a GPU here")
def test_without_a_gpu_a_table_answers_and_the_output_says_so(
    run_command: RunCommand, tmp_path: Path, copy_store: Callable[[Path], str]
) -> None:
    copy_store(tmp_path / ".tilescout")
    printed = run_command(tmp_path, "tune", "gemm_sm90", "--problem", PROBLEM, "--trials", "2")
    assert printed.returncode == 0
    assert "replayed from" in printed.stderr
    assert "(replay)" in printed.stdout


@pytest.mark.slow
def test_a_resumed_suite_that_logs_by_itself_takes_away_the_notes_that_its_studies_are_not_in_mlflow(
    run_command: RunCommand, tmp_path: Path, copy_store: Callable[[Path], str]
) -> None:
    copy_store(tmp_path / ".tilescout")
    (tmp_path / "one.toml").write_text(f'problems = ["{PROBLEM}"]\n')
    tune = ("tune", "gemm_sm90", "--suite", "one.toml", "--device", "replay", "--sampler", "random", "--no-standby")
    assert run_command(tmp_path, *tune, "--trials", "2").returncode == 0
    [journal] = (tmp_path / ".tilescout" / "studies").iterdir()
    mark(journal.parent, journal.stem, "no server answered")

    assert run_command(tmp_path, *tune, "--trials", "3", "--resume").returncode == 0

    assert unlogged(journal.parent) == {}


@pytest.mark.slow
def test_a_search_killed_at_any_moment_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    arguments = ["tune", "gemm_sm90", "--problem", PROBLEM, "--device", "replay", "--sampler", "random"]
    arguments += ["--trials", "150", "--json", "r.json", "--resume"]
    journal = tmp_path / ".tilescout" / "studies" / "gemm_sm90-4096x4096x4096-bf16-h200-replay-random-s0.journal"
    moments, whole = random.Random(0), 700 * 1000  # bytes of a whole journal, about
    finished: list[bytes] = []
    ended: list[int] = []
    for _ in range(3):
        search = subprocess.Popen([COMMAND, *arguments], cwd=tmp_path, stderr=subprocess.DEVNULL)
        enough = (journal.stat().st_size if journal.exists() else 0) + moments.randrange(whole // 6)
        while search.poll() is None and (not journal.exists() or journal.stat().st_size <= enough):
            time.sleep(0.001)
        search.kill()  # it has just ended by itself where this process had no core for seconds
        ended.append(search.wait())
        written = journal.read_bytes()
        assert written.startswith(b"".join(finished))
        finished = written.splitlines(keepends=True)

    assert ended[0] == -signal.SIGKILL
    assert set(ended) <= {0, -signal.SIGKILL}
    run(tmp_path, *arguments)

    assert journal.read_bytes().startswith(b"".join(finished))
    assert json.loads((tmp_path / "r.json").read_text())["trials"] == 150
    _, trials = trial_runs(tmp_path)
    tried = [tuple(sorted(trial.data.params.items())) for trial in trials if trial.info.status == "FINISHED"]
    assert len(tried) == len(set(tried)) == 150


def test_ctrl_c_ends_a_search_with_its_best_so_far(tmp_path: Path, copy_store: Callable[[Path], str]) -> None:
    copy_store(tmp_path / ".tilescout")
    arguments = ["tune", "gemm_sm90", "--problem", PROBLEM, "--device", "replay", "--sampler", "exhaustive"]
    arguments += ["--trials", "1000"]
    search = subprocess.Popen(
        [COMMAND, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    studies = tmp_path / ".tilescout" / "studies"
    while (
        search.poll() is None
        and sum(path.read_bytes().count(b'"datetime_complete"') for path in studies.glob("*.journal")) < 5
    ):
        time.sleep(0.01)
    search.send_signal(signal.SIGINT)
    output, errors = search.communicate(timeout=120)
    assert search.returncode == 130
    assert "│ best" in output
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("tilescout: interrupted; what is finished is kept")
    parent, trials = trial_runs(tmp_path)
    assert parent.info.status == "KILLED"
    kept = int(output[: output.index(" trials, ")].split()[-1])
    assert kept >= 5
    assert len(trials) == kept
