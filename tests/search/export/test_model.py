"""A whole model: the block that `experiments.inductor_model` measures, small, on the host with real kernels."""

from collections.abc import Callable

import pytest
import torch

from tilescout.experiments.research.llama_block import BlockSizes, make_block
from tilescout.experiments.research.studies.inductor_model import Way, _counts, compile_way
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.graph_rewrite import Report
from tilescout.search.export.inductor import use

SIZES = BlockSizes(hidden=64, intermediate=96, heads=4, kv_heads=2)
"""With 16 rows: q and o 64 to 64, k and v 64 to 32, gate and up 64 to 96, down 96 to 64."""


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    return make_bundle(SIZES.problems(16, "bf16"))


def test_the_sizes_are_those_of_the_layers() -> None:
    assert BlockSizes().problems(64, "bf16") == [
        "64x1024x4096:bf16",
        "64x4096x4096:bf16",
        "64x4096x14336:bf16",
        "64x14336x4096:bf16",
    ]


def test_every_linear_layer_of_the_block_is_replaced_and_the_result_stays(bundle: Bundle) -> None:
    torch._dynamo.reset()
    block = make_block(SIZES, torch.bfloat16, "cpu")
    exact = make_block(SIZES, torch.float32, "cpu")
    exact.load_state_dict({name: value.float() for name, value in block.state_dict().items()})
    x = torch.randn(1, 16, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, eager = exact(x.float()), block(x)
        with use(bundle.path) as tuned:
            ours = torch.compile(block, dynamic=False)(x)
    assert tuned.report.replaced == {
        "16x64x64:bf16": 2,
        "16x32x64:bf16": 2,
        "16x96x64:bf16": 2,
        "16x64x96:bf16": 1,
    }
    error, eager_error = ((result.float() - expected).norm() / expected.norm() for result in (ours, eager))
    assert error < 1.5 * eager_error


def test_a_way_that_is_not_there_says_why(bundle: Bundle) -> None:
    block = make_block(SIZES, torch.bfloat16, "cpu")
    way, run = compile_way("max-autotune, NVGEMM", block, torch.ones(1, 16, 64, dtype=torch.bfloat16), bundle.path)
    assert run is None
    assert isinstance(way, Way)
    assert way.missing


def test_products_are_counted_by_what_became_of_them() -> None:
    report = Report()
    report.replaced.update(["16x64x64:bf16", "16x64x64:bf16"])
    report.unknown.update(["bmm"])
    counted = (2, 3, {"replaced": {"16x64x64:bf16": 2}, "left": {}, "unknown": {"bmm": 1}})
    assert _counts(report) == counted
