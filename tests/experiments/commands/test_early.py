"""The early start of a tuning: a process that measures is woken before the command is imported, or not at all."""

import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from tilescout.experiments.commands import early
from tilescout.experiments.commands.cli import cli
from tilescout.search.build.standby import MEASURING, Standby


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Standby]:
    """The processes that are woken, on a machine that seems to have a driver."""
    found: list[Standby] = []
    monkeypatch.setattr(early, "_DRIVER", tmp_path)
    monkeypatch.setattr(early, "wake", found.append)
    monkeypatch.setattr(early, "visible_gpus", list)
    return found


def wait() -> None:
    """Wait for what began."""
    for thread in threading.enumerate():
        if thread.name == "early":
            thread.join()


def test_what_measures_is_woken_before_the_command_is_imported(woken: list[Standby], monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("tilescout.experiments.commands.tune")]:
        monkeypatch.delitem(sys.modules, name)
    cli.resolve_command(click.Context(cli), ["tune", "gemm_sm90", "--problem", "16x64x64:bf16"])
    wait()
    assert woken == [MEASURING]


@pytest.mark.parametrize(
    "arguments", ["--device replay", "--device=replay", "--no-standby", "--cluster auto", "--table a.parquet", "--help"]
)
def test_nothing_is_woken_where_no_process_that_stands_by_measures(woken: list[Standby], arguments: str):
    early.begin(["gemm_sm90", "--problem", "16x64x64:bf16", *arguments.split()])
    wait()
    assert woken == []


def test_nothing_is_woken_without_a_driver(woken: list[Standby], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(early, "_DRIVER", tmp_path / "none")
    early.begin(["gemm_sm90"])
    wait()
    assert woken == []


def test_what_is_imported_later_asks_for_the_process_that_was_woken_early(tmp_path: Path):
    code = """
from tilescout.search.build.standby import MEASURING, _state
early = _state(MEASURING)
import tilescout.search.tuning.suite
from tilescout.costmodel.threads import algebra
algebra()
assert _state(MEASURING) == early
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, cwd=tmp_path)
