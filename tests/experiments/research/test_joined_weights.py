"""Layers that read the same activations are found, and joined they compute what they computed."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.joined_weights import join, readers_of_one


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 4)
        self.out = nn.Linear(8, 8)
        self.gate, self.up = nn.Linear(8, 6, bias=False), nn.Linear(8, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.out(self.query(x)) * self.key(x).sum(-1, keepdim=True)
        return self.gate(y) * self.up(y)


def test_layers_that_read_the_same_activations_are_joined_and_compute_the_same() -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(3, 8)
    expected = block(x)
    groups = readers_of_one(block, lambda: block(x))
    assert groups == [[block.query, block.key], [block.gate, block.up]]
    join(block, groups)
    torch.testing.assert_close(block(x), expected)
    torch.testing.assert_close(torch.compile(block, backend="eager", fullgraph=True)(x), expected)


def test_a_record_is_printed_again(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"us": 812.5, "ratio": 0.91, "quartiles": [0.9, 0.92]}
    rows = {"24": {"graph": {"ours joined": times}, "differences": {"ours joined": 0.004}}}
    result = {"client": "olmo2", "layers": 2, "joined": [], "rows": rows, "summaries": {"24 ours joined": "all tuned"}}
    Record.of("joined-weights", "a command", result).write(tmp_path / "joined.json")
    study("joined-weights", "--again", str(tmp_path / "joined.json"))
    printed = capsys.readouterr().out
    assert "0.9100 [0.9000, 0.9200]" in printed
    assert "24 ours joined: all tuned" in printed
