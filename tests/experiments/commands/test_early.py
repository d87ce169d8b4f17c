"""The early start of a tuning: what measures is asked for before the command is imported, or not at all."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from tilescout.experiments.commands import early
from tilescout.experiments.commands.cli import cli
from tilescout.spaces.suite import Entry, write_suite


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The devices on which a session is asked for, on a machine that seems to have a driver."""
    found: list[str] = []
    monkeypatch.setattr(early, "_DRIVER", tmp_path)
    monkeypatch.setattr("tilescout.search.build.early.begin", found.append)
    monkeypatch.setattr(early, "visible_gpus", list)
    return found


def test_what_measures_is_asked_for_before_the_command_is_imported(begun: list[str], monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("tilescout.experiments.commands.tune")]:
        monkeypatch.delitem(sys.modules, name)
    cli.resolve_command(click.Context(cli), ["tune", "gemm_sm90", "--problem", "16x64x64:bf16"])
    assert begun == ["cuda:0"]


@pytest.mark.parametrize(
    ("arguments", "device"),
    [
        ("", "cuda:0"),
        ("--device cuda", "cuda:0"),
        ("--device=cuda:1", "cuda:1"),
        ("--device cuda:2 --seed 1", "cuda:2"),
    ],
)
def test_it_is_asked_for_on_the_gpu_that_is_named_or_the_first(begun: list[str], arguments: str, device: str):
    early.begin(["gemm_sm90", "--problem", "16x64x64:bf16", *arguments.split()])
    assert begun == [device]


@pytest.mark.parametrize(
    "arguments", ["--device replay", "--device=replay", "--no-standby", "--cluster auto", "--table a.parquet", "--help"]
)
def test_nothing_is_asked_for_where_no_process_that_stands_by_measures(begun: list[str], arguments: str):
    early.begin(["gemm_sm90", "--problem", "16x64x64:bf16", *arguments.split()])
    assert begun == []


def test_nothing_is_asked_for_without_a_driver(begun: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(early, "_DRIVER", tmp_path / "none")
    early.begin(["gemm_sm90"])
    assert begun == []


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


@pytest.mark.slow
@pytest.mark.parametrize("of", [["--problem", "4096x4096x4096:bf16"], ["--suite", "two.toml"]])
def test_a_session_is_held_for_the_next_tuning_once_the_answer_is_printed(
    of: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    printed: list[str] = []
    for name in ("tune", "tune_suite"):
        module = import_module(f"tilescout.experiments.commands.{name}")
        monkeypatch.setattr(module, "hold_for_next", lambda: printed.append(capsys.readouterr().out))
    monkeypatch.chdir(tmp_path)
    problems = [Entry(f"{size}x{size}x{size}:bf16", "a square") for size in (2048, 4096)]
    Path("two.toml").write_text(write_suite("two", "nowhere", problems))
    asked = ["tune", "gemm_sm90", *of, "--device", "replay", "--trials", "4", "--sampler", "random", "--no-standby"]
    cli.main(asked, standalone_mode=False)
    [answer] = printed
    assert "4096x4096x4096:bf16" in answer.replace("\n", "")
    assert "default" in answer
