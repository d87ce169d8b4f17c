"""The study of a compiled model: its block, and what it says of each way to compile."""

from pathlib import Path

import torch

from tilescout.experiments.research.llama_block import BlockSizes, make_block
from tilescout.experiments.research.studies.inductor_model import Way, _counts, compile_way
from tilescout.search.export.graph_nodes import Report

SIZES = BlockSizes(hidden=64, intermediate=96, heads=4, kv_heads=2)


def test_the_sizes_are_those_of_the_layers() -> None:
    assert BlockSizes().problems(64, "bf16") == [
        "64x1024x4096:bf16",
        "64x4096x4096:bf16",
        "64x4096x14336:bf16",
        "64x14336x4096:bf16",
    ]


def test_a_way_that_is_not_there_says_why(tmp_path: Path) -> None:
    block = make_block(SIZES, torch.bfloat16, "cpu")
    way, run = compile_way("max-autotune, NVGEMM", block, torch.ones(1, 16, 64, dtype=torch.bfloat16), tmp_path)
    assert run is None
    assert isinstance(way, Way)
    assert way.missing


def test_products_are_counted_by_what_became_of_them() -> None:
    report = Report()
    report.replaced.update(["16x64x64:bf16", "16x64x64:bf16"])
    report.unknown.update(["bmm"])
    counted = (2, 3, {"replaced": {"16x64x64:bf16": 2}, "left": {}, "unknown": {"bmm": 1}})
    assert _counts(report) == counted
