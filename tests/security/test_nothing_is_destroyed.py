"""Readers change nothing, and writers replace nothing that somebody else made."""

import gzip
import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tilescout.search.tables.table import Table, card_path

if TYPE_CHECKING:
    from conftest import Scene  # type: ignore[import-not-found]

PROBLEM = "1024x1024x1024:bf16"
Snapshot = dict[str, tuple[int, bytes]]


def snapshot(folder: Path, *but: str) -> Snapshot:
    """When each file of a folder was written, and its bytes; what is not a regular file has none."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
        if path.name not in but and not path.is_dir()
    }


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"my notes, and no line ends",
        b"my notes\nand what was cut o",
        b'{"mine": 1}',
        b'{"mine": 1}\n{"mine": ',
        b'{"op_code": 0, "worker_id": "w", "study_name": "another", "directions": [1]}\n{"op_co',
        b"\x00" * 5000,
    ],
    ids=["empty", "a line", "a torn line", "json", "torn json", "another study", "zeros"],
)
def test_a_journal_that_is_none(forked_scene: "Scene", content: bytes) -> None:
    studies = forked_scene.folder / "store" / "studies"
    studies.mkdir(parents=True)
    for path in (forked_scene.folder / "notes.journal", studies / "notes.journal"):
        path.write_bytes(content)
    before = snapshot(forked_scene.folder)

    forked_scene.survives("report", "notes.journal", codes=(2,))
    forked_scene.survives("report", "notes", "--store", "store", codes=(2,))
    forked_scene.survives("export", "--study", "notes.journal", "--out", "bundle", codes=(2,))
    forked_scene.survives("export", "--store", "store", "--out", "bundle", codes=(2,))

    assert snapshot(forked_scene.folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 40], ids=str)
def test_a_journal_whose_last_record_is_cut_off(forked_scene: "Scene", searched: Path, cut: int) -> None:
    shutil.copytree(searched / "store" / "studies", forked_scene.folder / "store" / "studies")
    (path,) = (forked_scene.folder / "store" / "studies").glob("*.journal")
    lines = path.read_bytes().splitlines(keepends=True)
    result = max(number for number, line in enumerate(lines) if b'"result"' in line)
    path.write_bytes(b"".join(lines[: result + 1])[:-cut])
    before = snapshot(forked_scene.folder)

    forked_scene.survives("report", path, "--out", "page.html", codes=(0,))
    forked_scene.survives("report", path.stem, "--store", "store", "--out", "page.html", codes=(0,))
    forked_scene.survives("export", "--study", path, "--out", "bundle")
    forked_scene.survives("export", "--store", "store", "--out", "bundle")

    assert snapshot(forked_scene.folder, "page.html") == before


def test_a_pipe_and_a_folder_in_place_of_a_journal(forked_scene: "Scene") -> None:
    studies = forked_scene.folder / "store" / "studies"
    studies.mkdir(parents=True)
    os.mkfifo(studies / "pipe.journal")
    (studies / "folder.journal").mkdir()
    before = snapshot(forked_scene.folder)

    for name in ("pipe", "folder"):
        forked_scene.survives("report", studies / f"{name}.journal", codes=(2,))
        forked_scene.survives("report", name, "--store", "store", codes=(2,))
    forked_scene.survives("export", "--store", "store", "--out", "bundle", codes=(2,))

    assert snapshot(forked_scene.folder) == before
    assert (studies / "folder.journal").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database(forked_scene: "Scene", searched: Path, mode: str) -> None:
    shutil.copyfile(searched / "studies.db", forked_scene.folder / "studies.db")
    with sqlite3.connect(forked_scene.folder / "studies.db") as ours:
        (name,) = ours.execute("SELECT study_name FROM studies").fetchone()
        ours.execute(f"PRAGMA journal_mode={mode}")
    ours.close()
    with sqlite3.connect(forked_scene.folder / "mine.db") as mine:
        mine.execute(f"PRAGMA journal_mode={mode}")
        mine.execute("CREATE TABLE diary (day TEXT)")
    mine.close()
    before = snapshot(forked_scene.folder)

    forked_scene.survives(
        "report", name, "--storage", f"sqlite:///{forked_scene.folder}/studies.db", "--out", "page.html", codes=(0,)
    )
    forked_scene.survives("report", name, "--storage", f"sqlite:///{forked_scene.folder}/mine.db", codes=(2,))
    forked_scene.survives(
        "export", "--storage", f"sqlite:///{forked_scene.folder}/mine.db", "--out", "bundle", codes=(2,)
    )

    assert snapshot(forked_scene.folder, "page.html") == before


TEXT, OBJECT, LIST = b"my diary\n", b'{"mine": 1}\n', b"[1, 2]\n"
LOOKUP = ("export", "--format", "inductor-lookup-table")
MODEL = "import torch\n\ndef make():\n    return torch.nn.Linear(64, 64), (torch.empty(8, 64),)\n"


OUTPUTS = [
        ("page.html", ("report", "study.journal", "--out", "page.html")),
        ("study.html", ("report", "study.journal")),
        ("lookup.json", (*LOOKUP, "--study", "result.json", "--out", "lookup.json")),
        ("bundle", ("export", "--study", "result.json", "--out", "bundle")),
        ("suite.toml", ("suites", "from-model", "model:make", "--out", "suite.toml")),
        ("cache.json", ("tables", "export-kernel-tuner", "small.parquet", "cache.json")),
        ("new.json", ("tables", "import", "kernel.json.gz", "new.parquet", "--problem", "8x8")),
        ("new.parquet", ("tables", "import", "kernel.json.gz", "new.parquet", "--problem", "8x8")),
        ("gemm_sm90-h200.npz", ("train", "gemm_sm90", "--table", "small.parquet", "--out", ".")),
        ("analytic-h200.json", ("train", "gemm_sm90", "--table", "small.parquet", "--out", ".")),
        ("runs.jsonl", ("compare", "--table", "small.parquet", "--samplers", "random", "--out", ".")),
        ("runs.jsonl", ("compare", "--table", "small.parquet", "--samplers", "random", "--out", ".", "--anew")),
        ("scores.csv", ("compare", "--table", "small.parquet", "--samplers", "random", "--out", ".", "--anew")),
        ("scores.png", ("compare", "--table", "small.parquet", "--samplers", "random", "--out", ".", "--anew")),
        ("own.json", ("predict", "gemm_sm90", "--problem", PROBLEM, "--json", "own.json")),
        ("own.json", ("compare", "--table", "small.parquet", "--samplers", "random", "--json", "own.json")),
        ("own.json", ("tune", "gemm_sm90", "--problem", PROBLEM, "--json", "own.json")),
        ("new.journal", ("collect", "gemm_sm90", "--suite", "suite-in.toml", "--sample", "1", "--device", "replay",
                         "--table", "small.parquet", "--out", "new.parquet")),
]  # fmt: skip
"""Files that commands would write over, and the commands."""


@pytest.mark.parametrize(
    ("output", "content", "arguments"),
    [
        (output, content, arguments)
        for output, arguments in OUTPUTS
        for content in ((TEXT, OBJECT, LIST) if output.endswith((".json", ".jsonl", ".journal")) else (TEXT,))
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else str(value),
)
def test_an_output_that_somebody_else_made(
    forked_scene: "Scene", searched: Path, small_table: Table, output: str, content: bytes, arguments: tuple[str, ...]
) -> None:
    (journal,) = (searched / "store" / "studies").glob("*.journal")
    shutil.copyfile(journal, forked_scene.folder / "study.journal")
    shutil.copyfile(searched / "result.json", forked_scene.folder / "result.json")
    shutil.copyfile(small_table.path, forked_scene.folder / "small.parquet")
    shutil.copyfile(card_path(small_table.path), forked_scene.folder / "small.json")
    (forked_scene.folder / "model.py").write_text(MODEL)
    (forked_scene.folder / "suite-in.toml").write_text(f'problems = ["{PROBLEM}"]\n')
    (forked_scene.folder / "kernel.json.gz").write_bytes(gzip.compress(json.dumps(CACHE).encode()))
    (forked_scene.folder / output).write_bytes(content)
    before = snapshot(forked_scene.folder)

    forked_scene.survives(*arguments, codes=(2,))

    after = snapshot(forked_scene.folder)
    assert {name: after.get(name) for name in before} == before


CACHE = {
    "device_name": "NVIDIA A100",
    "kernel_name": "stencil",
    "problem_size": [8],
    "tune_params_keys": ["block"],
    "tune_params": {"block": [1, 2]},
    "objective": "time",
    "cache": {"1": {"block": 1, "time": 1.0}, "2": {"block": 2, "time": 2.0}},
}


def test_an_input_that_the_card_would_replace(forked_scene: "Scene") -> None:
    (forked_scene.folder / "foo.json").write_text(json.dumps(CACHE))
    before = snapshot(forked_scene.folder)

    forked_scene.survives("tables", "import", "foo.json", "foo.parquet", codes=(2,))
    assert snapshot(forked_scene.folder) == before

    for _ in range(2):  # what it wrote itself it writes again
        forked_scene.survives("tables", "import", "foo.json", "bar.parquet", codes=(0,))
    forked_scene.survives("tables", "export-kernel-tuner", "bar.parquet", "bar.json", codes=(2,))
    assert snapshot(forked_scene.folder, "bar.parquet", "bar.json") == before

    whole = snapshot(forked_scene.folder)
    (forked_scene.folder / "same.parquet").symlink_to("bar.parquet")
    for out in ("bar.parquet", "same.parquet"):
        refused = forked_scene.survives("tables", "add-binaries", "bar.parquet", out, codes=(2,))
        assert "is what is read" in refused.stderr
    collect = ("collect", "gemm_sm90", "--suite", "squares", "--sample", "1", "--also", "bar.parquet")
    assert "is what is read" in forked_scene.survives(*collect, "--out", "bar.parquet", codes=(2,)).stderr
    assert snapshot(forked_scene.folder, "same.parquet") == whole


def test_a_result_that_is_read_and_would_be_written(forked_scene: "Scene", searched: Path) -> None:
    shutil.copyfile(searched / "result.json", forked_scene.folder / "result.json")
    before = snapshot(forked_scene.folder)
    refused = forked_scene.survives("studies", "show", "result.json", "--json", "result.json", codes=(2,))
    assert "is named twice" in refused.stderr
    assert snapshot(forked_scene.folder) == before


def test_a_result_that_is_read_and_would_be_written_by_another_spelling(forked_scene: "Scene", searched: Path) -> None:
    shutil.copyfile(searched / "result.json", forked_scene.folder / "result.json")
    (forked_scene.folder / "inner").mkdir()
    (forked_scene.folder / "symbolic.json").symlink_to("result.json")
    (forked_scene.folder / "hard.json").hardlink_to(forked_scene.folder / "result.json")
    before = snapshot(forked_scene.folder)
    for spelling in ("inner/../result.json", "symbolic.json", "hard.json"):
        lookup = (*LOOKUP, "--study", "result.json", "--out", "lookup.json", "--json", spelling)
        assert "is named twice" in forked_scene.survives(*lookup, codes=(2,)).stderr
        assert snapshot(forked_scene.folder) == before


@pytest.mark.slow
def test_a_finished_comparison(forked_scene: "Scene", small_table: Table) -> None:
    compare = ["compare", "--table", small_table.path, "--samplers", "random", "--trials", "3", "--out", "out"]
    compare += ["--store", "store", "--processes", "1"]
    forked_scene.survives(*compare, "--seeds", "1", codes=(0,))
    before = snapshot(forked_scene.folder / "out")

    refused = forked_scene.survives(*compare, "--seeds", "2", codes=(2,))

    assert "--resume" in refused.stderr
    assert "--anew" in refused.stderr
    assert snapshot(forked_scene.folder / "out") == before
    (forked_scene.folder / "out" / "notes").write_text("mine")
    forked_scene.survives(*compare, "--seeds", "2", "--anew", codes=(0,))
    assert len((forked_scene.folder / "out" / "runs.jsonl").read_text().splitlines()) == 2
    assert (forked_scene.folder / "out" / "notes").read_text() == "mine"


@pytest.mark.slow
def test_what_a_command_wrote_it_writes_again(forked_scene: "Scene", searched: Path) -> None:
    (journal,) = (searched / "store" / "studies").glob("*.journal")
    lookup = (*LOOKUP, "--study", searched / "result.json", "--out", "lookup.json")
    predict = ("predict", "gemm_sm90", "--problem", PROBLEM, "--json", "ranking.json")
    forked_scene.plant("model", source=MODEL)
    for command in (("report", journal, "--out", "page.html"), lookup, predict):
        for _ in range(2):
            forked_scene.survives(*command, codes=(0,))
