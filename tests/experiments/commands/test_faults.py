"""A disk that is full or read-only: one line, exit code 2, and nothing lost that was finished."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path

import click
import pytest

from tilescout.experiments.commands import ui
from tilescout.experiments.commands.cli import run_command
from tilescout.experiments.commands.outputs import console_beside
from tilescout.search import Budget, tune

STUDIES = Path(__file__).resolve().parents[2] / "search" / "studies" / "recorded"
STUDY = STUDIES / "gemm_sm90-4096x4096x4096-bf16-h200-replay-random-s0.journal"
COMMAND = str(Path(sys.executable).with_name("tilescout"))
PROBLEM = "4096x4096x4096:bf16"
TUNE = f"{COMMAND} tune gemm_sm90 --problem {PROBLEM} --device replay --sampler random"


def may_mount() -> bool:
    """Whether this process can make a mount that only its children see."""
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    )


needs_mounts = pytest.mark.skipif(not may_mount(), reason="may not mount a file system here, not even for itself")


def in_private_mounts(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in `folder` with mounts of its own, which end with it."""
    (folder / "disk").mkdir()
    command = ["unshare", "-m", "bash", "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@needs_mounts
def test_a_store_on_a_read_only_mount_is_told_at_once(tmp_path: Path) -> None:
    script = f"""
    mount -t tmpfs -o mode=755 none disk && mkdir disk/artifacts && mount -o remount,ro disk || exit 99
    {TUNE} --store disk; echo $?
    {COMMAND} compile gemm_sm90 --problem 4096x4096x4096:bf16 --store disk; echo $?
    """
    done = in_private_mounts(tmp_path, script)
    assert done.stdout.split() == ["2", "2"], done
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "can't write to the folder" in lines[0]
    assert "can't write the artifact store disk/artifacts: choose another with --store" in lines[1]


def test_what_only_reads_a_store_neither_needs_to_write_nor_changes_it(
    tmp_path: Path, run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, served = tmp_path / "store", list[str]()
    (store / "studies").mkdir(parents=True)
    shutil.copy(STUDY, store / "studies")
    (store / "mlflow.db").touch()
    before = sorted(store.rglob("*"))
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).is_relative_to(store) or not mode & os.W_OK)
    monkeypatch.setattr(ui, "serve", lambda uri, *_: served.append(uri))

    run("export", "--store", str(store), "--out", str(tmp_path / "bundle"))
    run("ui", "--store", str(store))

    assert (tmp_path / "bundle" / "bundle.json").is_file()
    assert served == [f"sqlite:///{store}/mlflow.db"]
    assert sorted(store.rglob("*")) == before


@pytest.mark.slow
@needs_mounts
def test_a_search_whose_disk_is_full_ends_with_one_line_and_goes_on_when_there_is_room(
    tmp_path: Path, copy_store: Callable[[Path], str]
) -> None:
    script = f"""
    mount -t tmpfs -o size=48k,mode=755 none disk || exit 99
    {TUNE} --trials 60 --storage disk 2> full; echo $?
    mkdir room && cp disk/*.journal room
    """
    copy_store(tmp_path / ".tilescout")
    done = in_private_mounts(tmp_path, script)
    assert done.stdout.split() == ["2"], (done, (tmp_path / "full").read_text())
    last = (tmp_path / "full").read_text().splitlines()[-1]
    assert "No space left on device; what is finished is in it, make room and go on with tune --resume" in last
    assert "Traceback" not in (tmp_path / "full").read_text()
    (journal,) = (tmp_path / "room").glob("*.journal")
    before = journal.read_bytes()
    assert before.endswith(b"\n")  # no record was cut
    finished = before.count(b'"datetime_complete"')
    assert 0 < finished < 60
    search = partial(tune, "gemm_sm90", PROBLEM, device="replay", sampler="random", budget=Budget(trials=60))
    resumed = search(storage=journal.parent, store=tmp_path, resume=True, mlflow=False)
    assert len(resumed.trials) == 60
    assert journal.read_bytes().startswith(before)


def test_too_little_memory_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command
    def ask_for_much() -> None:
        bytearray(1 << 62)

    monkeypatch.setattr(sys, "argv", ["tilescout"])
    with pytest.raises(SystemExit) as ended:
        run_command(ask_for_much)
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().endswith("ask for less at a time, or use a machine that has more")


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(errno.ENOSPC, 2, "tilescout: can't write the output: No space left on device\n"), (errno.EPIPE, 1, "")],
)
def test_what_can_not_be_printed_fails_behind_all_that_a_command_delivers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, code: int, told: str
) -> None:
    class Unwritable(StringIO):
        def flush(self) -> None:
            raise OSError(number, os.strerror(number))

    delivered = []

    @click.command
    def deliver() -> None:
        console_beside(None).say("a table")
        delivered.append("the JSON, and the figures in MLflow")

    monkeypatch.setattr(sys, "argv", ["tilescout"])
    monkeypatch.setattr(sys, "stdout", Unwritable())
    with pytest.raises(SystemExit) as ended:
        run_command(deliver)
    assert ended.value.code == code
    assert capsys.readouterr().err == told
    assert delivered
