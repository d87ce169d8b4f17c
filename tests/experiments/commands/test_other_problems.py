"""The command line on kernels that compute no matrix product: a suite of softmax problems, replayed."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search.tables.invented_card import card_of
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.tables.card import Baseline
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.problems import Problem
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.templates import find_template

Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]

SOFTMAX, H200 = find_template("softmax_sm90"), DEVICES["h200"]
PROBLEMS = (RowwiseProblem(8192, 4096), RowwiseProblem(64, 50256, "fp32"))
COPY_US = 40.0


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of some softmax kernels, the defaults among them, with invented times."""
    rng = np.random.default_rng(0)
    rows: list[Row] = []
    baselines: dict[Problem, Baseline] = {}
    for problem in PROBLEMS:
        space, default = SOFTMAX.space(problem, H200), SOFTMAX.default(problem, H200)
        baselines[problem] = Baseline(default, COPY_US)
        chosen = [space.index(default), *space.sample(60, rng).tolist()]
        for index in dict.fromkeys(chosen):
            ratio = float(1 + rng.gamma(2.0))
            timing = Timing(ratio, ratio * 0.99, ratio * 1.01, ratio, ratio, COPY_US, 7)
            cost: dict[str, Any] = {
                "compile_seconds": 0.5,
                "gpu_seconds": 0.02,
                "verify_seconds": 0.01,
                "pilot_seconds": 0.001,
            }
            rows.append(
                (space[index], problem, Measurement(Status.OK, timing=timing, pilot_us=ratio * COPY_US, **cost))
            )
    card = card_of(SOFTMAX, H200, baselines, "torch.Tensor.copy_")
    return write_table(tmp_path_factory.mktemp("table") / "softmax.parquet", card, rows).path


@pytest.fixture(scope="module")
def searched(
    table: Path, tmp_path_factory: pytest.TempPathFactory, run_command: Command, copy_store: Callable[[Path], str]
) -> tuple[Path, Done]:
    """A folder with a suite and a store of its finished studies, and what the command that made them said."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "store").mkdir()
    copy_store(folder / "store")
    texts = ", ".join(f'"{problem}"' for problem in PROBLEMS)
    (folder / "rows.toml").write_text(f'title = "Rows"\nsource = "a test"\nproblems = [{texts}]\n')
    replay = ("--device", "replay", "--table", table, "--sampler", "random", "--trials", "24")
    done = run_command(
        folder, "tune", "softmax_sm90", "--suite", "rows.toml", *replay, "--store", "store", "--json", "result.json"
    )
    return folder, done


def studies_of(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "store" / "studies").glob("softmax_sm90-*.journal"))


@pytest.mark.slow
def test_a_suite_of_them_is_tuned_together(searched: tuple[Path, Done]) -> None:
    folder, done = searched

    assert done.returncode == 0, done.stderr
    assert "geometric mean" in done.stdout
    found = json.loads((folder / "result.json").read_text())
    assert [study["problem"] for study in found] == [str(problem) for problem in PROBLEMS]
    assert sum(study["trials"] for study in found) == 24
    assert all(study["library"]["name"] == "torch.Tensor.copy_" for study in found)
    assert len(studies_of(folder)) == 2


def test_a_signature_takes_the_place_of_the_suites(
    searched: tuple[Path, Done], table: Path, tmp_path: Path, run_command: Command
) -> None:
    folder, _ = searched
    given = (
        "--signature",
        "fp32",
        "--device",
        "replay",
        "--table",
        table,
        "--exhaustive",
        "--out",
        tmp_path / "t.parquet",
    )

    done = run_command(folder, "collect", "softmax_sm90", "--suite", "rows.toml", *given)

    assert done.returncode == 2
    assert "8192x4096:fp32" in done.stderr  # which the table does not hold


@pytest.mark.slow
def test_a_suite_of_them_is_collected(
    searched: tuple[Path, Done], table: Path, tmp_path: Path, run_command: Command
) -> None:
    folder, _ = searched
    out = tmp_path / "part.parquet"
    given = ("--device", "replay", "--table", table, "--exhaustive", "--only", "cache=normal", "--out", out)

    done = run_command(folder, "collect", "softmax_sm90", "--suite", "rows.toml", *given)

    assert done.returncode == 0, done.stderr
    found, recorded = Table.read(out), Table.read(table)
    assert found.problems == recorded.problems == list(PROBLEMS)
    assert 2 <= len(found) < len(recorded)
    for row in range(len(found)):
        problem = next(problem for problem in PROBLEMS if row in found.rows(problem))
        where = recorded.row(found.configuration(row), problem)
        assert where is not None
        assert found.measurement(row) == recorded.measurement(where)


def test_a_suite_of_other_problems_is_refused_in_a_line(
    searched: tuple[Path, Done], table: Path, run_command: Command
) -> None:
    folder, _ = searched

    done = run_command(folder, "tune", "softmax_sm90", "--suite", "squares", "--device", "replay", "--table", table)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "suite squares: malformed problem" in done.stderr
    assert "expected ROWSxCOLUMNS" in done.stderr


def test_what_the_table_lacks_is_named_and_left_out_where_that_is_asked_for(
    table: Path, tmp_path: Path, run_command: Command, copy_store: Callable[[Path], str]
) -> None:
    copy_store(tmp_path / ".tilescout")
    texts = ", ".join(f'"{text}"' for text in ("16x64", PROBLEMS[1], *(f"{rows}x64" for rows in range(32, 96, 16))))
    (tmp_path / "rows.toml").write_text(f'title = "Rows"\nsource = "a test"\nproblems = [{texts}]\n')
    command = ("tune", "softmax_sm90", "--suite", "rows.toml", "--table", table, "--sampler", "random", "--trials", "3")

    refused = run_command(tmp_path, *command)
    done = run_command(tmp_path, *command, "--skip-unrecorded", "--json", "result.json")

    lacks = "softmax.parquet holds 1 of the 6 problems of rows.toml; it lacks 16x64:bf16, 32x64:bf16, 48x64:bf16, "
    lacks += "64x64:bf16 and 1 more"
    assert refused.returncode == 2
    assert refused.stderr == f"tilescout: {lacks}: leave these out with --skip-unrecorded, or measure on a GPU\n"
    assert done.returncode == 0, done.stderr
    assert f"left out: {lacks}" in done.stderr.replace("\n", " ")
    (study,) = json.loads((tmp_path / "result.json").read_text())
    assert (study["problem"], study["trials"]) == (str(PROBLEMS[1]), 3)


@pytest.mark.slow
def test_a_model_of_them_is_evaluated_where_all_are_of_one_family(
    table: Path, tmp_path: Path, run_command: Command
) -> None:
    few = ("--trees", "2", "--steps", "2", "--processes", "1", "--json", "evaluation.json")

    done = run_command(tmp_path, "evaluate-model", "softmax_sm90", "--table", table, *few, "--plots", "plots")

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert {key for key in found if key.endswith("_left_out")} == {"problem_left_out"}
    assert [one["family"] for one in found["problem_left_out"]["learned"]["problems"]] == ["other", "other"]


def test_what_can_not_be_exported_is_named_and_the_rest_exported(
    searched: tuple[Path, Done], tmp_path: Path, run_command: Command
) -> None:
    folder, _ = searched
    softmax = studies_of(folder)
    alone = run_command(folder, "export", "--store", "store", "--out", tmp_path / "bundle")
    assert alone.returncode == 2
    (line,) = alone.stderr.splitlines()
    assert "nothing can be exported" in line
    assert all(name in line for name in softmax)
    assert "softmax_sm90 computes no matrix product" in line
    assert not (tmp_path / "bundle").exists()

    tuned = run_command(
        folder, "tune", "gemm_sm90", "--problem", "512x512x512:bf16", "--device", "replay", "--sampler", "random",
        "--trials", "4", "--store", "store",
    )  # fmt: skip
    assert tuned.returncode == 0, tuned.stderr
    done = run_command(folder, "export", "--store", "store", "--out", tmp_path / "bundle")

    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "can't be exported" in line]
    assert all(name in line for name in softmax)
    assert "softmax_sm90 computes no matrix product" in line
    record = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    assert [decision["problem"] for decision in record["decisions"]] == ["512x512x512:bf16"]

    named = run_command(folder, "export", "--store", "store", "--study", softmax[0], "--out", tmp_path / "other")
    assert named.returncode == 2
    assert softmax[0] in named.stderr
    assert softmax[1] not in named.stderr
