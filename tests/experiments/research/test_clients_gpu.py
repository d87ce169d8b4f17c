"""Models of transformers on a GPU: with tuned products they say what they say without."""

from pathlib import Path

import pytest
import torch

from tilescout.experiments.research.clients import make_client
from tilescout.search import autotune

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_model_of_transformers_says_the_same_with_tuned_products(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    made, rows = make_client("qwen3", phase, 1, "cuda"), 8
    with torch.no_grad():
        expected = made.call(made.module, rows)().float()
        with autotune(15.0, tmp_path / "store") as tuned:
            compiled = torch.compile(made.module, dynamic=False)
        found = made.call(compiled, rows)().float()
    assert tuned.tuned
    assert ((found - expected).norm() / expected.norm()).item() < 2**-5
