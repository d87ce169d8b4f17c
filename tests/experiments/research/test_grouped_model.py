"""The times of blocks are printed again; one that can't be captured says why."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.grouped_model import find_client
from tilescout.spaces.errors import ProblemError


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


def test_a_client_that_there_is_not_is_told_those_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ProblemError, match=r"can't import transformers, .*: pip install transformers$"):
        find_client("olmoe")
    for module, text in {
        "qwen3_moe": "class Qwen3MoeSparseMoeBlock(nn.Module):\n    pass\n",
        "two": "class TwoMoE(nn.Module):\n    pass\n\n\nclass OtherMoE(nn.Module):\n    pass\n",
        "dense": "class DenseMLP(nn.Module):\n    pass\n",
        "olmoe": "import torch\n\n\nclass OlmoeSparseMoeBlock(nn.Module):\n    pass\n",
    }.items():
        (tmp_path / "models" / module).mkdir(parents=True)
        (tmp_path / "models" / module / f"modeling_{module}.py").write_text(text)
    package = ModuleType("transformers")
    package.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "transformers", package)
    with pytest.raises(ProblemError, match=r"can't import the client 'olmo-e' .*; there are: olmoe, qwen3_moe$"):
        find_client("olmo-e")
