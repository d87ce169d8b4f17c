"""Findings of ``tilescout doctor``: a missing compiler, extra or database, an old library or driver, a wrong table."""

import compileall
import importlib.metadata
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tilescout.experiments.commands import doctor
from tilescout.experiments.commands.doctor import Finding, examine
from tilescout.search.api import tune
from tilescout.search.build.standby import Standby, can_stand_by, open_session, running
from tilescout.search.studies.folders import studies
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import card_path
from tilescout.search.tracking.standing.unlogged import mark


def findings(store: Path, **options: object) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(store, **options)}  # type: ignore[arg-type]


def test_where_all_is_there_nothing_is_missing(tmp_path: Path) -> None:
    found = findings(tmp_path)
    assert [finding for finding in found.values() if finding.state == "missing"] == []
    assert {found[what].state for what in ("optuna", "C compiler", "kernel_tuner (extra kernel-tuner)")} == {"ok"}


@pytest.mark.slow
@pytest.mark.parametrize("why", ["PYTHONDONTWRITEBYTECODE", "a folder that is not ours"])
def test_packages_that_every_process_compiles_anew_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    package = tmp_path / "packages" / "never_compiled"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(doctor, "_IMPORTED", ("never_compiled", "not_installed"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert "bytecode" not in findings(tmp_path)  # it will be kept

    may = os.access
    monkeypatch.setattr(sys, "dont_write_bytecode", why == "PYTHONDONTWRITEBYTECODE")
    if not sys.dont_write_bytecode:
        monkeypatch.setattr(os, "access", lambda path, mode: path != package and may(path, mode))  # root may all
    found = findings(tmp_path)["bytecode"]
    assert found.state == "note"
    assert "each process compiles never_compiled anew" in found.detail
    assert f"-m compileall -q {package.parent}" in found.detail

    assert compileall.compile_dir(package.parent, quiet=1)
    assert "bytecode" not in findings(tmp_path)


def store_finding(store: Path) -> Finding:
    return next(finding for finding in examine(store) if finding.what == "store")


def test_a_store_that_could_be_made_is_ok_and_is_not_made(tmp_path: Path) -> None:
    found = store_finding(tmp_path / "new" / "store")
    assert (found.state, found.detail) == ("ok", f"{tmp_path}/new/store/artifacts, which the first kernel makes")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["store", "store/artifacts"])
def test_a_store_that_could_not_be_written_or_made_is_missing(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / place).mkdir(parents=True)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / place and may(path, mode))  # root may all
    found = store_finding(tmp_path / "store")
    assert (found.state, "choose another with `store`" in found.detail) == ("missing", True)


def ready() -> Callable[[Connection, Mapping[str, Any]], None]:
    """Get ready to stand by for sessions that end at once."""
    return lambda connection, request: None


@pytest.mark.skipif(not can_stand_by(), reason="needs Linux")
def test_what_stands_by_is_listed_with_its_memory_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[__name__.count(".")]))  # where this module is found
    with TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket has 107 bytes at most
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        assert not [what for what in findings(tmp_path) if what.startswith("standing by")]
        open_session(Standby(f"{__name__}:ready"), {}).wait()
        (standing,) = running()
        try:
            (found,) = (each for what, each in findings(tmp_path).items() if what.startswith("standing by"))
        finally:
            os.kill(standing.pid, signal.SIGKILL)

    assert found.state == "ok"
    assert f"process {standing.pid} has" in found.detail
    assert "ends 5 minutes after its last use" in found.detail


def test_a_missing_compiler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = findings(tmp_path)["C compiler"]
    assert found.state == "missing"
    assert "no C compiler (cc, gcc or clang) on the PATH" in found.detail


def test_an_old_library_and_a_missing_extra_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true_version = importlib.metadata.version

    def version(name: str) -> str:
        if name == "kernel_tuner":
            raise importlib.metadata.PackageNotFoundError(name)
        return "4.1.0" if name == "optuna" else true_version(name)

    monkeypatch.setattr(doctor, "version", version)
    found = findings(tmp_path)
    assert found["optuna"].state == "missing"
    assert "4.1.0 is installed, <6,>=5 is needed; pip install 'optuna<6,>=5'" in found["optuna"].detail
    assert found["kernel_tuner (extra kernel-tuner)"].state == "note"
    assert "pip install 'tilescout[kernel-tuner]'" in found["kernel_tuner (extra kernel-tuner)"].detail


@pytest.mark.slow
def test_samplers_that_packages_register_are_listed_and_those_that_are_refused(
    tmp_path: Path, install: Callable[..., None]
) -> None:
    source = """
from tilescout.search.samplers.random import RandomSampler

class Other(RandomSampler):
    "Another random search."
    name = "other"
"""
    install("other-samplers", "other", source, "Other", "tilescout.samplers")
    install("broken-samplers", "broken", "import a_module_that_nobody_has", "Broken", "tilescout.samplers")
    install("greedy-samplers", "tpe", source, "Other", "tilescout.samplers")
    found = findings(tmp_path)
    assert found["sampler other"] == Finding("sampler other", "ok", "Another random search, of other-samplers 1.0")
    assert found["sampler broken"].state == "note"
    assert "ModuleNotFoundError" in found["sampler broken"].detail
    assert "the name is tilescout's own" in found["sampler tpe"].detail


@pytest.mark.parametrize(
    ("driver", "built", "state"),
    [((12, 4), "13.0", "missing"), ((13, 1), "13.0", "ok"), ((13, 0), "12.9", "ok"), ((13, 0), None, "ok")],
)
def test_a_driver_that_is_too_old_for_torch_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int], built: str | None, state: str
) -> None:
    monkeypatch.setattr(doctor, "driver_version", lambda: driver)
    monkeypatch.setattr("torch.version.cuda", built)
    assert findings(tmp_path)["driver"].state == state


@pytest.mark.parametrize(
    ("change", "state", "answer"),
    [
        (lambda card: card.replace('"source_hash": "', '"source_hash": "0'), "note", "another version of gemm_sm90"),
        (
            lambda card: card.replace('"raster": [', '"raster": ["z",'),
            "note",
            "its knobs are not those of today's gemm_sm90",
        ),
        (lambda card: card.replace('"tile_m"', '"tile_z"'), "missing", "column tile_z is missing"),
        (lambda card: card[:-200], "missing", "malformed card"),
    ],
)
def test_a_wrong_table_is_found(tmp_path: Path, change: Callable[[str], str], state: str, answer: str) -> None:
    original = shipped_tables()[0]
    copy = tmp_path / "other.parquet"
    shutil.copy(original, copy)
    card_path(copy).write_text(change(card_path(original).read_text()))
    [found] = [f for f in examine(tmp_path, tables=[copy]) if f.what == "table" and "other.parquet" in f.detail]
    assert (found.state, answer in found.detail) == (state, True), found


def test_how_to_deliver_what_mlflow_lacks_is_told_of_old_studies_too(tmp_path: Path) -> None:
    place = studies(tmp_path)
    search = partial(tune, "gemm_sm90", "350x7360x832:bf16", sampler="random", store=tmp_path, mlflow=False)
    old, new = (search(budget=2).info.name for _ in range(2))
    for name in (old, new):
        mark(place, name, "no disk")

    found = findings(tmp_path)

    assert found[f"study {new}"].detail.endswith("no disk; its `tilescout tune` command with --resume delivers it")
    way = f"no disk; in Python `tune` with resume='{old}' delivers it, for --resume goes on with {new}, the newest"
    assert way in found[f"study {old}"].detail
    assert search(budget=3, resume=old).info.name == old


def test_a_database_that_does_not_answer_is_found(tmp_path: Path) -> None:
    found = findings(tmp_path, storage="postgresql://somebody:secret@127.0.0.1:1/studies")["storage"]
    assert found.state == "missing"
    assert "secret" not in found.detail


def test_a_remedy_names_the_option_of_the_command_line(
    run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = [Finding("store", "missing", "can't write the artifact store: choose another with `store`")]
    monkeypatch.setattr(doctor, "examine", lambda *asked: lacking)
    run("doctor", "--store", str(tmp_path), code=1)
    assert "choose another with --store" in capsys.readouterr().out
