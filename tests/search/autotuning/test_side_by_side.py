"""Products that read the same activations become one call, and the model says and learns the same."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from tilescout.search.autotuning.inductor import TuningPass
from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.autotuning.tuner import Tuner
from tilescout.search.export.bundle import Bundle, read_bundle
from tilescout.search.export.inductor import in_force, pass_in_force, use

pytestmark = pytest.mark.usefixtures("fresh_inductor")


class Attention(nn.Module):
    """Three projections of the same activations, of which one goes on before the next begins, and one behind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64, bias=False, dtype=torch.bfloat16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.relu(self.q(x)), self.k(x), self.v(x)
        result: torch.Tensor = self.o(q * k + v)
        return result


def close(found: torch.Tensor | None, expected: torch.Tensor | None) -> None:
    assert found is not None
    assert expected is not None
    torch.testing.assert_close(found.float(), expected.float(), rtol=3e-2, atol=3e-2)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "joined"), [((4, 12, 64), 3), ((5, 13, 64), 0)], ids=str)
def test_products_of_few_rows_that_share_an_input_are_one_call(
    shape: tuple[int, ...],
    joined: int,
    make_tuner: Callable[..., Tuner],
    decide_for: Callable[..., Bundle],
    calls: Callable[[Bundle], int],
) -> None:
    bundle, tuner, plain, reference = decide_for(("48x64x64", "65x64x64")), make_tuner(0.0), Attention(), Attention()
    x, before = torch.randn(shape, dtype=torch.bfloat16), calls(bundle)
    with in_force(TuningPass(tuner)):
        compiled = torch.compile(plain, dynamic=False)
    with torch.no_grad():
        found, written = run_and_get_code(compiled, x)
        close(found, reference(x))
    assert calls(bundle) - before == 4
    lines = [line for line in written[0].splitlines() if "bind_together(" in line]
    assert [line.count(bundle.digest) for line in lines] == [joined] * bool(joined)
    for model in (compiled, reference) if joined else ():
        model(x).float().square().mean().backward()
    for mine, expected in zip(plain.parameters(), reference.parameters(), strict=True) if joined else ():
        close(mine.grad, expected.grad)


@pytest.mark.parametrize("own", [(), ("32x32x64",)], ids=["of a bundle alone", "of both"])
def test_products_of_a_bundle_that_comes_first_are_joined_too(
    own: tuple[str, ...],
    make_tuner: Callable[..., Tuner],
    decide_for: Callable[..., Bundle],
    store: EvidenceStore,
    tmp_path: Path,
) -> None:
    exported = Path(shutil.copytree(decide_for(("32x64x64",)).path, tmp_path / "exported"))
    shutil.rmtree(store.folder)
    tuner = make_tuner(0.0)
    digests = [read_bundle(exported, {store.template.name: store.template}).digest] * 2
    digests += [decide_for(own).digest] * len(own)
    torch.manual_seed(0)
    layers = [nn.Linear(64, n, bias=False, dtype=torch.bfloat16) for n in (64, 64, 32)]

    def both(x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in layers]

    with use(exported, ["plain_gemm:TEMPLATE"]), in_force(TuningPass(tuner, pass_in_force())), torch.no_grad():
        x = torch.randn(32, 64, dtype=torch.bfloat16)
        found, written = run_and_get_code(torch.compile(both), x)
        for result, expected in zip(found, both(x), strict=True):
            close(result, expected)
    (line,) = (line for line in written[0].splitlines() if "bind_together(" in line)
    assert re.findall(r"([0-9a-f]{64})/", line) == digests
    assert not tuner.summary.failed
