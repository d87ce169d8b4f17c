"""The times of blocks are printed again; one that can't be captured says why."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.experiments.research.records import Record


def test_the_times_of_blocks_are_printed_again(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = {"us": 80.0, "ratio": 0.8125, "quartiles": [0.8, 0.82]}
    beside = {**ours, "ratio": 0.875}
    called = {"default": {"us": 100.0, "ratio": 1.0, "quartiles": [1.0, 1.0]}, "ours": ours, "beside": beside}
    one = {"replaced": {"a": 1, "b": 1}, "difference": 0.002, "called": called, "no graph": "not permitted"}
    path = tmp_path / "blocks.json"
    Record.of("grouped-model", "a command", {"blocks": {"mixtral": {"64": one}}}).write(path)
    study("grouped-model", "--again", str(path))
    printed = capsys.readouterr().out
    for wanted in ("mixtral", "64", "0.8125 [0.8000, 0.8200]", "0.8750", "not permitted"):
        assert wanted in printed
    study("grouped-model", code=2)
    assert "name a bundle" in capsys.readouterr().err
