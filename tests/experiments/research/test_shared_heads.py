"""Attention over shared heads is measured as transformers writes it, and a record is printed again."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.shared_heads import Attention, attend

TIMES = {"default": {"us": 400.0, "ratio": 1.0, "quartiles": [1.0, 1.0]}}


def test_what_is_measured_is_attention_over_the_tokens_that_are_there() -> None:
    sizes, seen = Attention.parse("3x2x4x24x16"), 7
    assert str(sizes) == "3x2x4x24x16"
    query = torch.randn(3, 1, 8, 16).transpose(1, 2)
    keys, values = (torch.randn(3, 2, 24, 16) for _ in range(2))
    expected = scaled_dot_product_attention(query, keys[:, :, :seen], values[:, :, :seen], enable_gqa=True)
    torch.testing.assert_close(attend(query, keys, values, torch.tensor([seen])), expected.transpose(1, 2))


def test_a_record_is_printed_again_with_sizes_that_no_kernel_ran_on(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = {"us": 100.0, "ratio": 0.25, "quartiles": [0.24, 0.26]}
    one = {"times": {**TIMES, "ours": ours}, "errors": {"default": 0.002, "ours": 0.0021}, "kernels": {}}
    result = {"sizes": {"32x4x7x1024x128": one, "1x1x2x8x7": {"failed": "no kernel for it"}}}
    Record.of("shared-heads", "a command", result).write(tmp_path / "heads.json")
    study("shared-heads", "--again", str(tmp_path / "heads.json"))
    printed = capsys.readouterr().out
    assert "0.2500 [0.2400, 0.2600]" in printed
    assert "no kernel for it" in printed


def test_sizes_that_are_none_are_refused(study: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    study("shared-heads", "--sizes", "32x4x7", code=2)
    assert "BATCHxHEADSxSHARINGxTOKENSxSIZE" in capsys.readouterr().err
