"""The forms of a block's products are those that it has; what was found is printed again."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.experts_forms import recorded
from tilescout.experiments.research.studies.grouped_model import Client


class Block(nn.Module):
    """Experts as transformers has them, and a second product of gate and up with no SwiGLU behind it."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.empty(4, 64, config.hidden_size))
        self.down = nn.Parameter(torch.empty(4, config.hidden_size, 32))

    def forward(self, x: Tensor) -> Tensor:
        rows = x[0]
        ends = torch.cumsum(rows.new_zeros(4, dtype=torch.int32) + rows.sum().int(), 0, dtype=torch.int32)

        def product(a: Tensor, b: Tensor) -> Tensor:
            return nn.functional.grouped_mm(a, b.transpose(-2, -1), offs=ends)

        gate, up = product(rows, self.gate_up).chunk(2, dim=-1)
        down = product(nn.functional.silu(gate) * up, self.down) * rows[:, :1]
        return down + product(rows, self.gate_up).sum(-1, keepdim=True)


def test_a_blocks_forms_are_recorded() -> None:
    assert recorded(Client(Block, SimpleNamespace(hidden_size=48))) == ["swiglu", "scaled"]


def test_the_forms_are_printed_again(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, found = tmp_path / "forms.json", {"recorded": ["swiglu"], "replaced": ["plain", "scaled"]}
    Record.of("experts-forms", "a command", {"clients": {"olmoe": found}}).write(path)
    study("experts-forms", "--again", str(path))
    assert "olmoe: recorded swiglu; replaced plain, scaled" in capsys.readouterr().out
