"""Steps of several files of one model are shown and drawn together."""

import subprocess
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run
from tilescout.experiments.research.studies import one_line
from tilescout.experiments.research.studies.one_line import Asked, begun, ended, room_for_products


def result(rows: int, ratio: float, client: str = "qwen3") -> dict[str, Any]:
    one = {"us": 100.0 * rows, "quartiles": [ratio, ratio]}
    ways = {"graph": {"default": {**one, "ratio": 1.0}, "ours": {**one, "ratio": ratio}}}
    steps = {str(rows): ways, "summaries": {str(rows): f"told of {rows}"}}
    return {"client": client, "phase": "decode", "layers": 4, "dynamic": False, "first": {}, "steps": steps}


def test_steps_of_other_files_of_the_same_model_are_printed_and_drawn_with_it(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {}
    for name, held in {"one": result(1, 0.95), "two": result(16, 0.91), "other": result(8, 0.5, "llama")}.items():
        files[name] = tmp_path / f"{name}.json"
        Record.of("one-line", "a command", held).write(files[name])
    plot = tmp_path / "steps.png"
    study("one-line", "--again", str(files["one"]), "--and", str(files["two"]), "--plot", str(plot))
    printed = capsys.readouterr().out
    assert "0.9500" in printed
    assert "0.9100" in printed
    assert "told of 16" in printed
    assert plot.read_bytes().startswith(b"\x89PNG")
    study("one-line", "--again", str(files["one"]), "--and", str(files["other"]), code=2)
    assert "the same model" in capsys.readouterr().err


def test_the_contender_that_the_others_are_measured_against_comes_first(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study("one-line", "--contender", "ours", "--contender", "default", "--out", str(tmp_path / "out.json"), code=2)
    assert "default comes first" in " ".join(capsys.readouterr().err.split())


def test_products_can_bring_what_they_take_above_the_roofline() -> None:
    summary = (
        "tilescout: 2 of 3 matrix products run tuned kernels; expected gain 3.0 µs a call; 2 sizes tuned in 1.0 s\n"
        "  2 × 16x4096x4096:bf16: ours, proven faster than torch.mm: 0.8 to 0.9 of its time (13.81 µs); tuned now\n"
        "  1 × 16x1024x4096:bf16: library, not proven to gain 1% (8.34 µs); known"
    )
    share, least = room_for_products(summary, 100.0)
    assert share == pytest.approx(0.3596)
    floor = (2 * (16 * 4096 + 4096 * 4096 + 16 * 4096) + 16 * 4096 + 1024 * 4096 + 16 * 1024) * 2 / 4.8e6
    assert least == pytest.approx(1 - (35.96 - floor) / 100, abs=0.002)


def test_a_process_that_fails_is_told_of(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with begun("one-line", ["--contender", "ours"], tmp_path, out) as process:
        assert ended(process, out, 100.0) == {"error": "ended with exit code 2"}


def test_a_process_that_stands_by_goes_on_when_told_and_ends_with_who_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked("qwen3", "decode", 1, (1,), ("default",), 0.0, None, stands_by=True)
    monkeypatch.setattr(one_line, "make_client", lambda *of: of)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("sys.stdin", StringIO("\n"))
    asked.make()
    with pytest.raises(click.ClickException, match="has ended"):
        asked.make()


def test_what_was_measured_before_an_interruption_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def begins(step: str, asked: Asked, folder: Path, cache: str, out: Path) -> "subprocess.Popen[bytes]":
        Record.of("one-line", "a command", {"1": step}).write(out)
        return subprocess.Popen(["true"])

    def interrupts(process: object, out: Path, limit: float) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(one_line, "_process", begins)
    monkeypatch.setattr(one_line, "ended", interrupts)
    run = Run("one-line", tmp_path / "out.json")
    with pytest.raises(KeyboardInterrupt):
        one_line._measure(run, Asked("qwen3", "decode", 1, (1,), ("default",), 0.0, None), ("steps",), 1.0)
    assert Record.read(tmp_path / "out.json").result["steps"] == {"1": "steps"}
