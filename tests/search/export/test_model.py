"""A whole model: the Llama-style block of the study `inductor-model`, small, on the host with real kernels."""

from collections.abc import Callable

import pytest
import torch

from tilescout.experiments.research.llama_block import BlockSizes, make_block
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.inductor import use

SIZES = BlockSizes(hidden=64, intermediate=96, heads=4, kv_heads=2)
"""With 16 rows: q and o 64 to 64, k and v 64 to 32, gate and up 64 to 96, down 96 to 64."""


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    return make_bundle(SIZES.problems(16, "bf16"))


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
