"""Steps of several files of one model are shown and drawn together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilescout.experiments.research.records import Record


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
