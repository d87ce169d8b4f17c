"""The MLflow UI's server: how it is started."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tilescout.search.tracking.server import _check_is_mlflow, serve
from tilescout.spaces.errors import StoreError

TILESCOUT = Path(sys.executable).with_name("tilescout")


def below(process: int) -> Iterator[int]:
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, listing.read_text().split()):
            yield child
            yield from below(child)


@pytest.mark.slow
def test_a_password_that_was_typed_leaves_the_list_of_processes(postgres: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    typed = postgres.format("mlflow").replace("tester@", "tester:hunter2@")  # which lets everybody in
    command = [str(TILESCOUT), "ui", "--mlflow", typed, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as serving:
        try:
            deadline = time.monotonic() + 60
            lines = list[str]()
            while not any("mlflow\0server" in line for line in lines):
                assert serving.poll() is None
                assert time.monotonic() < deadline
                with suppress(OSError):  # a process has just ended
                    lines = [Path(f"/proc/{each}/cmdline").read_text() for each in (serving.pid, *below(serving.pid))]
        finally:
            os.killpg(serving.pid, signal.SIGTERM)
            serving.communicate()
    assert not any("hunter2" in line for line in lines)
    assert lines[0].split("\0")[4] == typed.replace("hunter2", "*******")


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_looking_whether_a_store_is_mlflows_changes_no_file_and_makes_none(
    mode: str, tmp_path: Path, copy_store: Callable[[Path], str]
) -> None:
    (tmp_path / "store").mkdir()
    copy_store(tmp_path / "store")
    store, other = tmp_path / "store" / "mlflow.db", tmp_path / "store" / "other.db"
    for path in (store, other):  # MLflow itself sets WAL where it takes a store over from files
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode={mode}")
            connection.execute("CREATE TABLE IF NOT EXISTS diary (day TEXT)")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in store.parent.iterdir()}
    _check_is_mlflow(store)
    with pytest.raises(StoreError, match="is no MLflow store: its tables are diary"):
        serve(f"sqlite:///{other}", None, "127.0.0.1", 0)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in store.parent.iterdir()} == before
