"""``tilescout tune`` as a session of a process that stands by: what it does and prints is the same."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilescout.experiments.commands.standing import wake_for_next
from tilescout.search.build.standby import can_stand_by, running
from tilescout.spaces.processes import safe_environment

pytestmark = pytest.mark.skipif(not can_stand_by(), reason="needs Linux")

TUNE = ("tune", "gemm_sm90", "--problem", "512x512x512:bf16", "--device", "replay", "--json", "result.json")
Call = Callable[..., "tuple[subprocess.CompletedProcess[str], bool]"]

CALLER = """
import atexit, pathlib, sys
from tilescout.experiments.__main__ import main

atexit.register(lambda: pathlib.Path("did_it").write_text("numpy" if "numpy" in sys.modules else ""))
main()
"""

IMPORTS = """
import sys
from tilescout.experiments.commands import cli, standing

standing.get_ready()
before = set(sys.modules)
try:
    cli.main()
except SystemExit as end:
    assert not end.code
late = [name for name in sys.modules if name.startswith("tilescout.") and name not in before]
sys.exit(f"imported late: {late}" if late else 0)
"""


def is_ready() -> bool:
    """Whether a process stands by to tune."""
    return any(each.what == "tune" for each in running())


@pytest.fixture
def call(tmp_path: Path, own_standing: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """A function: run the command line, and tell whether a process that stands by did the work."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "caller.py"
    script.write_text(CALLER)

    def call(*arguments: str) -> "tuple[subprocess.CompletedProcess[str], bool]":
        command = [sys.executable, "-P", str(script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=safe_environment(), check=False)
        return done, not Path("did_it").read_text()

    return call


def found(folder: Path) -> dict[str, Any]:
    """The findings of a search, without its name, when that was, and what it took."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return {name: result[name] for name in ("problem", "trials", "best", "default", "stopped", "gpu_seconds")}


@pytest.mark.slow
def test_a_tuning_that_stands_by_finds_and_says_what_another_does(call: Call, tmp_path: Path) -> None:
    alone, stood_by = call(*TUNE)
    assert (alone.returncode, stood_by) == (0, False)
    alone_found = found(tmp_path)
    alone_refused, _ = call("tune", "gemm_sm90", "--nonsense")
    deadline = time.monotonic() + 120
    while not is_ready() and time.monotonic() < deadline:
        time.sleep(0.1)

    standing, stood_by = call(*TUNE)
    assert (standing.returncode, stood_by) == (0, True)
    assert found(tmp_path) == alone_found
    assert standing.stdout.splitlines()[:8] == alone.stdout.splitlines()[:8]  # behind it are names and seconds

    refused, stood_by = call("tune", "gemm_sm90", "--nonsense")
    assert stood_by
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", alone_refused.stderr)


@pytest.mark.parametrize("typed", ["tune gemm_sm90 --no-standby", "doctor", ""])
def test_nothing_stands_by_where_no_tuning_may_have_it(own_standing: Path, typed: str) -> None:
    wake_for_next(["tilescout", *typed.split()])
    assert not list(own_standing.parent.rglob("*.socket"))


@pytest.mark.slow
def test_a_process_that_is_ready_to_tune_has_imported_all_of_ours(tmp_path: Path) -> None:
    tune = ("tune", "gemm_sm90", "--problem", "4096x4096x4096:bf16", "--device", "replay")
    done = subprocess.run([sys.executable, "-P", "-c", IMPORTS, *tune], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
