"""Models of transformers on a GPU: with tuned products they say what they say without."""

from pathlib import Path

import pytest
import torch

from tilescout.experiments.research.clients import Step, make_client
from tilescout.search import autotune

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TIMES = 3  # the second call of a step records a CUDA graph, the third replays it


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the tests of this module fill in turn."""
    return tmp_path_factory.mktemp("clients") / "store"


@pytest.fixture(autouse=True)
def fresh_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache for compiled code, and none of the code that earlier tests compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()


def last(step: Step) -> torch.Tensor:
    for _ in range(TIMES):
        torch.compiler.cudagraph_mark_step_begin()
        found = step()
    return found.float()


def gradients(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.grad.float().flatten() for each in module.parameters() if each.grad is not None])


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(
    ("name", "phase", "mode", "rows"),
    [
        ("qwen3", "decode", None, (8,)),
        ("llama", "decode", "reduce-overhead", (8,)),
        ("mixtral", "decode", None, (8, 12)),
        ("qwen3", "prefill", None, (64,)),
    ],
)
def test_a_model_of_transformers_says_the_same_with_tuned_products(
    name: str, phase: str, mode: str | None, rows: tuple[int, ...], store: Path, fresh_inductor: None
) -> None:
    pytest.importorskip("transformers")
    made = make_client(name, phase, 1, "cuda")
    with torch.no_grad():
        with autotune(15.0, store) as tuned:
            compiled = torch.compile(made.module, mode=mode, dynamic=len(rows) > 1)
        for count in rows:
            expected = last(made.call(made.module, count))
            assert difference(last(made.call(compiled, count)), expected) < 2**-5, count
    assert tuned.tuned
    assert tuned.in_place, "heads that share keys read them in place, over a cache and in a prompt"


def test_a_model_of_transformers_learns_the_same_with_tuned_products(store: Path) -> None:
    pytest.importorskip("transformers")
    made, rows = make_client("llama", "train", 1, "cuda"), 256
    loss = made.call(made.module, rows)()
    expected = gradients(made.module)
    with autotune(15.0, store) as tuned:
        compiled = torch.compile(made.module, dynamic=False)
    assert difference(made.call(compiled, rows)(), loss) < 2**-7
    assert difference(gradients(made.module), expected) < 2**-4
    assert tuned.tuned
