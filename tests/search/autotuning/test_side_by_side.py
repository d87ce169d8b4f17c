"""Products that read the same activations become one call, and the model says and learns the same."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code

from tilescout.search.autotuning.inductor import TuningPass
from tilescout.search.autotuning.tuner import Tuner
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.inductor import in_force

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
