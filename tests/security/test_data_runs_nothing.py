"""Names in files and databases are never imported from the working directory: an attack for every format."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tilescout.costmodel.persistence import shipped_model
from tilescout.search.build.making import find_linker
from tilescout.search.export.bundle import INDEX, KERNELS, Kernel, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.search.tables.table import Table, card_path
from tilescout.spaces.gemm import GemmProblem

if TYPE_CHECKING:
    from conftest import ForkedScene, Scene  # type: ignore[import-not-found]

Record = dict[str, Any]
Rename = Callable[[str], str]

EVIL = "evil:Template"
PROBLEM = "1024x1024x1024:bf16"
SEARCH = ("--problem", PROBLEM, "--device", "replay", "--sampler", "random", "--trials", "3", "--store", "store")


@pytest.fixture
def evil_table(scene: "Scene", small_table: Table, renamed: Rename) -> Path:
    """A table whose card names the evil space."""
    path = scene.folder / "table.parquet"
    shutil.copyfile(small_table.path, path)
    card_path(path).write_text(renamed(card_path(small_table.path).read_text()))
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ("tables", "."),
        ("tune", "gemm_sm90", *SEARCH, "--table", "table.parquet"),
        ("compare", "--table", "table.parquet", "--samplers", "guided,guided-cold", "--trials", "3", "--seeds", "1"),
        ("tables", "export-kernel-tuner", "table.parquet", "cache.json"),
        ("train", "gemm_sm90", "--table", "table.parquet", "--out", "model.npz"),
    ],
    ids=" ".join,
)
def test_a_table(forked_scene: "ForkedScene", evil_table: Path, arguments: tuple[str, ...]) -> None:
    forked_scene.survives(*arguments)


@pytest.fixture
def evil_journal(scene: "Scene", searched: Path, renamed: Rename) -> Path:
    """A study in the store of the folder whose journal names the evil space."""
    shutil.copytree(searched / "store" / "studies", scene.folder / "store" / "studies")
    (path,) = (scene.folder / "store" / "studies").glob("*.journal")
    path.write_text(renamed(path.read_text()))
    return path


def test_a_journal(forked_scene: "ForkedScene", evil_journal: Path) -> None:
    model = shipped_model("gemm_sm90", "h200")

    forked_scene.survives("report", evil_journal, codes=(0,))
    forked_scene.survives("report", evil_journal.stem, "--store", "store", codes=(0,))
    forked_scene.survives("report", evil_journal, "--model", model)
    forked_scene.survives("export", "--study", evil_journal, "--out", "bundle")
    forked_scene.survives("export", "--store", "store", "--out", "bundle")
    forked_scene.survives("doctor", "--store", "store", codes=(0, 1, 2))


def test_a_journal_with_a_result_that_was_proven(
    forked_scene: "ForkedScene", evil_journal: Path, proven: Record, renamed: Rename
) -> None:
    lines = evil_journal.read_text().splitlines()
    (last,) = (at for at, line in enumerate(lines) if '"result":' in line)
    record = json.loads(lines[last])
    record["user_attr"]["result"] = json.loads(renamed(json.dumps(proven)))
    lines[last] = json.dumps(record)
    evil_journal.write_text("\n".join(lines) + "\n")

    done = forked_scene.survives("export", "--study", evil_journal, "--out", "bundle", codes=(2,))

    assert EVIL in done.stderr
    assert "name it if it is your own" in done.stderr


def test_resuming_it(
    forked_scene: "ForkedScene", evil_journal: Path, small_table: Table, copy_store: Callable[[Path], str]
) -> None:
    copy_store(forked_scene.folder / "store")
    forked_scene.survives("tune", "gemm_sm90", *SEARCH, "--table", small_table.path, "--resume")


@pytest.mark.slow
def test_a_row_of_a_database(forked_scene: "ForkedScene", searched: Path, renamed: Rename) -> None:
    path = forked_scene.folder / "studies.db"
    shutil.copyfile(searched / "studies.db", path)
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT study_user_attribute_id, value_json FROM study_user_attributes").fetchall()
        changed = [(renamed(text), key) for key, text in rows if "gemm_sm90" in text]
        assert changed
        database.executemany(
            "UPDATE study_user_attributes SET value_json = ? WHERE study_user_attribute_id = ?", changed
        )
        (name,) = database.execute("SELECT study_name FROM studies").fetchone()
    database.close()
    storage = f"sqlite:///{path}"

    forked_scene.survives("report", name, "--storage", storage, codes=(0,))
    forked_scene.survives("export", "--storage", storage, "--out", "bundle")
    forked_scene.survives("export", "--study", name, "--storage", storage, "--out", "bundle")


def test_a_result_file(forked_scene: "ForkedScene", proven: Record, renamed: Rename) -> None:
    (forked_scene.folder / "result.json").write_text(renamed(json.dumps(proven)))

    done = forked_scene.survives("export", "--study", "result.json", "--out", "bundle", codes=(2,))

    assert EVIL in done.stderr
    assert not (forked_scene.folder / "bundle").exists()


LOAD = "import sys; from tilescout.search.export.inductor import load; load(sys.argv[1], sys.argv[2:])"


@pytest.fixture
def evil_bundle(scene: "Scene") -> Callable[..., Path]:
    """A function: a whole bundle with a kernel for the host, whose workload is of the folder's module."""

    def make(workload: str = "evil:Workload", space: str = EVIL) -> Path:
        spec = find_spec("tvm_ffi")
        assert spec is not None
        assert spec.origin is not None
        source, library = scene.folder / "kernel.c", scene.folder / "kernel.so"
        source.write_text("int __tvm_ffi_run(void *a, const void *b, int c, void *d) { return 0; }\n")
        subprocess.run([find_linker(), "-shared", "-fPIC", "-o", library, source], check=True)
        digest, sha256 = "0" * 64, hashlib.sha256(library.read_bytes()).hexdigest()
        kernel = Kernel(f"{KERNELS}/{digest}.so", sha256, "run", "tilescout.spaces.gemm:Gemm", 1, {"space": space})
        evidence = Evidence("a-study", "proven", 0.97, 0.96, 0.98, 12, "a test", {})
        decisions = [Decision(GemmProblem.parse(PROBLEM), Choice.OURS, evidence, digest)]
        path = scene.folder / "bundle"
        write_bundle(path, "host", "h200", {}, decisions, {digest: (kernel, library)})
        record = json.loads((path / INDEX).read_text())
        del record["digest"]
        record["kernels"][digest]["workload"] = workload
        record["digest"] = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
        (path / INDEX).write_text(json.dumps(record))
        return path

    return make


@pytest.mark.parametrize("space", [EVIL, "gemm_sm90", "", ["evil"], 1], ids=str)
def test_the_workload_of_a_bundle(forked_scene: "ForkedScene", evil_bundle: Callable[..., Path], space: object) -> None:
    path = evil_bundle(space=space)

    # The folder is where this program looks for modules: a program of somebody's own, started there.
    done = forked_scene.run(sys.executable, "-c", LOAD, path)

    assert not forked_scene.canary.exists()
    assert "BundleError" in done.stderr
    assert "evil:Workload" in done.stderr


@pytest.mark.slow
def test_the_workload_of_a_bundle_may_be_that_of_a_space_that_the_caller_names(
    forked_scene: "ForkedScene", evil_bundle: Callable[..., Path]
) -> None:
    path = evil_bundle(workload="own:Workload", space="own")
    forked_scene.plant(
        "own",
        source="from evil import Template as Base, Workload\n"
        "class Own(Base):\n    name, workload = 'own', 'own:Workload'\n",
    )

    done = forked_scene.run(sys.executable, "-c", LOAD, path, "own:Own")

    assert done.returncode == 0, done.stderr
    assert forked_scene.canary.read_text().split() == ["own", "evil"]


def test_the_card_of_a_model(forked_scene: "ForkedScene", searched: Path, renamed: Rename) -> None:
    model = shipped_model("gemm_sm90", "h200")
    assert model is not None
    with np.load(model) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["card"] = np.array(renamed(str(arrays["card"])))
    np.savez(forked_scene.folder / "model.npz", **arrays)
    (journal,) = (searched / "store" / "studies").glob("*.journal")

    forked_scene.survives("predict", "gemm_sm90", "--problem", PROBLEM, "--model", "model.npz")
    forked_scene.survives("report", journal, "--model", "model.npz", "--out", "page.html", codes=(2,))


@pytest.mark.parametrize(
    "text",
    [
        f'space = "{EVIL}"\nproblems = ["{PROBLEM}"]\n',
        f'problems = ["{EVIL}"]\n',
        f'problems = [{{ problem = "{PROBLEM}", label = "{EVIL}", space = "{EVIL}" }}]\n',
        f'title = "{EVIL}"\nsource = "{EVIL}"\nproblems = ["{PROBLEM}"]\n',
    ],
)
def test_a_suite(forked_scene: "ForkedScene", text: str) -> None:
    (forked_scene.folder / "suite.toml").write_text(text)

    forked_scene.survives("suites", "suite.toml")
    forked_scene.survives(
        "collect", "gemm_sm90", "--suite", "suite.toml", "--sample", "1", "--device", "x", "--out", "t.parquet"
    )


@pytest.mark.slow
def test_a_cache_of_kernel_tuner(forked_scene: "ForkedScene", copy_store: Callable[[Path], str]) -> None:
    copy_store(forked_scene.folder / ".tilescout")
    run = "__import__('evil')"
    entries = {
        f"{value},{run}": {"block": value, "text": run, "time": 1.0 + value, "times": [1.0 + value]}
        for value in range(8)
    }
    cache = {
        "device_name": "NVIDIA A100",
        "kernel_name": EVIL,
        "problem_size": run,
        "tune_params_keys": ["block", "text"],
        "tune_params": {"block": list(range(8)), "text": [run]},
        "objective": "time",
        "cache": entries,
    }
    (forked_scene.folder / "cache.json").write_text(json.dumps(cache))

    forked_scene.survives("tables", "import", "cache.json", "table.parquet", codes=(2,))
    forked_scene.survives("tables", "import", "cache.json", "table.parquet", "--problem", "evil", codes=(0,))
    forked_scene.survives("tables", "table.parquet", codes=(0,))
    forked_scene.survives(
        "compare", "--table", "table.parquet", "--samplers", "kernel_tuner.hybrid_vndx", "--trials", "4",
        "--seeds", "1", "--processes", "1",
    )  # fmt: skip


@pytest.mark.slow
def test_what_the_person_names_is_loaded(
    forked_scene: "ForkedScene", evil_table: Path, evil_journal: Path, proven: Record
) -> None:
    unnamed = forked_scene.tilescout("tables", "table.parquet")
    named = forked_scene.tilescout("tables", "table.parquet", "--space", EVIL)
    reported = forked_scene.tilescout("report", evil_journal, "--space", EVIL)

    assert unnamed.returncode == named.returncode == reported.returncode == 0
    assert "does not know the space" in unnamed.stdout
    assert "does not know the space" not in named.stdout
    assert forked_scene.canary.read_text().split() == ["evil", "evil"]
