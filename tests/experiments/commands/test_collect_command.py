"""`tilescout collect` and `tilescout tune --suite`, replayed."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean

import pytest
from mlflow import MlflowClient

from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.search.tracking import MlflowTracker, SuiteRun
from tilescout.search.tracking.mlflow_hooks import VIEW_TAG
from tilescout.spaces.errors import StoreError

Run = Callable[..., None]


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "two.toml"
    path.write_text('problems = ["16x4096x4096:bf16", "512x512x512:bf16"]')
    return str(path)


def test_a_table_is_written_with_a_card_that_says_how_and_shown_in_mlflow(
    run: Run, suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], copy_store: Callable[[Path], str]
) -> None:
    out, client = tmp_path / "t.parquet", MlflowClient(copy_store(tmp_path))
    given = ["collect", "gemm_sm90", "--suite", suite, "--device", "replay", "--sample", "70", "--only", "split_k=1"]
    given += ["--store", str(tmp_path)]
    run(*given, "--out", str(out))
    table = Table.read(out)
    assert list(map(str, table.problems)) == ["16x4096x4096:bf16", "512x512x512:bf16"]
    assert "sampled with seed 0 of split_k 1" in table.card.selection
    printed = capsys.readouterr()
    assert "16x4096x4096:bf16" in printed.out
    experiment = client.get_experiment_by_name("tilescout/collect")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert f"#/experiments/{experiment.experiment_id}/runs/{logged.info.run_id}?" in printed.err
    assert logged.data.metrics["rows"] == len(table)
    best = [1 / summary.best_timing.ratio for summary in table.summarise() if summary.best_timing is not None]
    assert logged.data.metrics["mean_best_speedup"] == pytest.approx(geometric_mean(best))
    assert "| 16x4096x4096:bf16" in logged.data.tags["mlflow.note.content"]
    listed = [table.card.baselines[problem].library_best_speedup for problem in table.problems]
    known = [speed for speed in listed if speed is not None]
    assert len(known) == 2
    assert logged.data.metrics["mean_library_best_speedup"] == pytest.approx(geometric_mean(known))
    assert all(f"metrics.`{name}`" in experiment.tags[VIEW_TAG] for name in ("mean_library_best_speedup", "rows"))
    assert all(f"{speed:.3f}" in printed.out for speed in known)
    assert "library_best_speedup" in logged.data.tags["mlflow.note.content"]
    files = {file.path for file in client.list_artifacts(logged.info.run_id)}
    assert files == {"summary.csv", "speedups.png", "t.json"}
    assert logged.inputs is not None
    assert [each.dataset.name for each in logged.inputs.dataset_inputs] == ["t.parquet"]
    run(*given, "--out", str(out), code=2)
    refused = capsys.readouterr().err
    assert "is there already and complete" in refused
    assert len(refused.splitlines()) == 1  # before the plan


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "give one of --exhaustive and --sample N"),
        (("--sample", "9", "--exhaustive"), "give one of --exhaustive and --sample N"),
        (("--sample", "9", "--prune", "1"), "neither full nor a ratio above 1"),
        (("--sample", "9", "--only", "tile=1"), "no knob 'tile'"),
        (("--sample", "9", "--device", "replay", "--cluster", "auto"), "leave --device and --table out"),
        (("--sample", "9", "--signature", "int4"), "int4"),
        (("--sample", "9", "--also", "nowhere.json"), "can't read nowhere.json"),
        (("--exhaustive", "--subspace", "nowhere.toml"), "as a sub-space, one table [[part]] or more: No such file"),
        (("--exhaustive", "--subspace", "grouped_gemm_sm90-subspace"), "there is no knob 'order'"),
    ],
)
def test_what_can_not_be_is_refused_in_a_line(
    run: Run, suite: str, tmp_path: Path, capsys, arguments: tuple[str, ...], reason: str
) -> None:
    device = () if "--device" in arguments else ("--device", "replay")
    run("collect", "gemm_sm90", "--suite", suite, *device, *arguments, "--out", str(tmp_path / "t.parquet"), code=2)
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("tilescout: ")
    assert reason in error
    assert not list(tmp_path.glob("t.*"))


def test_a_result_does_not_take_the_place_of_the_card_of_the_new_table(
    run: Run, suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["collect", "gemm_sm90", "--suite", suite, "--device", "replay", "--sample", "70"]
    run(*given, "--out", str(tmp_path / "t.parquet"), "--json", str(tmp_path / "." / "t.json"), code=2)
    assert "t.json becomes the card of the table" in capsys.readouterr().err
    assert not list(tmp_path.glob("t.*"))


@pytest.mark.slow
def test_a_problem_is_measured_with_what_is_given_for_it_alone(run: Run, suite: str, tmp_path: Path) -> None:
    shipped = Table.read(next(path for path in shipped_tables() if path.stem == "gemm_sm90-h200-bf16"))
    small, out = shipped.problem("512x512x512:bf16"), tmp_path / "t.parquet"
    configurations = [dict(shipped.configuration(int(row))) for row in shipped.rows(small)[:4]]
    given = tmp_path / "given.json"
    given.write_text(json.dumps({str(small): configurations}))
    options = (
        "--sample",
        "1",
        "--only",
        "split_k=1",
        "--only",
        "swizzle=1",
        "--device",
        "replay",
        "--also",
        str(given),
    )
    run("collect", "gemm_sm90", "--suite", suite, *options, "--store", str(tmp_path), "--out", str(out))
    table = Table.read(out)
    assert all(table.row(each, small) is not None for each in configurations)
    assert "4 given for single problems" in table.card.selection


@pytest.mark.parametrize(
    "text",
    ["[1]", '{"a": 1}', '{"16x4096x4096:bf16": 1}', '[{"tile_m": [1]}]', '[{"tile_m": true}]', "[[]]", "["],
)
def test_given_configurations_that_are_none_are_refused_in_a_line(
    run: Run, suite: str, tmp_path: Path, capsys, text: str
) -> None:
    given = tmp_path / "given.json"
    given.write_text(text)
    table = ("--sample", "9", "--device", "replay", "--also", str(given), "--out", str(tmp_path / "t.parquet"))
    run("collect", "gemm_sm90", "--suite", suite, *table, code=2)
    assert f"can't read {given} as configurations" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_suite_is_tuned_together(run: Run, suite: str, tmp_path: Path, capsys) -> None:
    result = tmp_path / "result.json"
    given = ("tune", "gemm_sm90", "--suite", suite, "--device", "replay", "--sampler", "random", "--trials", "20")
    run(*given, "--peers", "triton", "--store", str(tmp_path / "store"), "--json", str(result))
    found = json.loads(result.read_text())
    assert [study["problem"] for study in found] == ["16x4096x4096:bf16", "512x512x512:bf16"]
    assert sum(study["trials"] for study in found) == 20
    printed = capsys.readouterr()
    assert "geometric mean" in printed.out
    assert printed.err.count("no peer is tuned") == 1, "once for all problems"
    run("tune", "gemm_sm90", "--suite", suite, "--problem", "512x512x512:bf16", code=2)
    assert "give one of --problem and --suite" in capsys.readouterr().err

    (damaged,) = (tmp_path / "store" / "studies").glob("*-512x512x512-*.journal")
    damaged.write_text("damaged\n")
    run(*given, "--resume", "--store", str(tmp_path / "store"), "--json", str(result), code=2)
    (left,) = json.loads(result.read_text())
    assert left["problem"] == "16x4096x4096:bf16", "what failed costs nothing that is finished"
    *_, named, error = capsys.readouterr().err.splitlines()
    assert named == "without a result: 512x512x512:bf16"
    assert "is damaged" in error


def test_a_suite_whose_figures_do_not_reach_mlflow_is_written(
    run: Run, suite: str, tmp_path: Path, capsys, copy_store: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise StoreError("MLflow is lost")

    monkeypatch.setattr(SuiteRun, "finish", lost)
    monkeypatch.setattr(MlflowTracker, "finish", lambda *_: None)  # pictures take a second
    copy_store(tmp_path)
    given = ("--device", "replay", "--sampler", "random", "--trials", "2", "--no-standby", "--store", str(tmp_path))
    run("tune", "gemm_sm90", "--suite", suite, *given, "--json", str(tmp_path / "result.json"), code=2)

    assert capsys.readouterr().err.splitlines()[-1] == "tilescout: MLflow is lost"
    assert [study["trials"] for study in json.loads((tmp_path / "result.json").read_text())] == [1, 1]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_suite_waits_for_behind_its_results_is_shown_on_a_terminal(
    run: Run, suite: str, tmp_path: Path, capsys, copy_store, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    shown: list[str] = []

    def finish(*_: object) -> None:
        time.sleep(0.5)  # the line is drawn ten times a second
        shown.append(capsys.readouterr().err)

    monkeypatch.setattr(MlflowTracker, "finish", finish)
    monkeypatch.setattr(SuiteRun, "finish", lambda *_: None)
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    copy_store(tmp_path)
    given = ("--device", "replay", "--sampler", "random", "--trials", "2", "--no-standby", "--store", str(tmp_path))
    run("tune", "gemm_sm90", "--suite", suite, *given)

    assert ("log the trials and pictures of all to MLflow" in "".join(shown)) is terminal
