"""The one line on a GPU: real kernels, real races, models that are right."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tilescout.search import autotune
from tilescout.search.autotuning import ContestOptions, Summary
from tilescout.search.engines import local
from tilescout.search.export.decisions import Choice

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_inductor")]

WIDTH = 2048

RANK = """
import json, sys, torch
import torch.distributed as dist
from tilescout.search import autotune

job, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank % torch.cuda.device_count())  # where a host has two, the ranks share none
dist.init_process_group("gloo", init_method=f"file://{job}", rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Linear(2048, 4096, bias=False, dtype=torch.bfloat16, device="cuda")
x = torch.randn(48, 2048, dtype=torch.bfloat16, device="cuda")
with autotune(60.0, store) as tuned, torch.no_grad():
    found, expected = torch.compile(model, dynamic=False)(x).float(), model(x).float()
print(json.dumps({
    "tuned": len(tuned.tuned),
    "runs": {str(problem): [each.choice, each.kernel] for problem, each in tuned.decisions.items()},
    "error": ((found - expected).norm() / expected.norm()).item(),
}))
dist.barrier()
"""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False, dtype=torch.bfloat16, device="cuda")
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False, dtype=torch.bfloat16, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.silu(self.up(x)))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that the tests of this module fill in turn."""
    return tmp_path_factory.mktemp("autotune") / "store"


def rows(m: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(m)
    return torch.randn(m, WIDTH, generator=generator, device="cuda", dtype=torch.bfloat16)


def check(result: torch.Tensor, reference: torch.Tensor) -> None:
    assert ((result.float() - reference.float()).norm() / reference.float().norm()).item() < 2**-6


def compiled(
    model: nn.Module, store: Path, seconds: float, mode: str | None = None
) -> tuple[Callable[..., torch.Tensor], Summary]:
    torch._dynamo.reset()
    with autotune(seconds, store) as tuned:
        return torch.compile(model, mode=mode, dynamic=False), tuned


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_model_is_tuned_once_and_is_right(store: Path, mode: str | None) -> None:
    model, m = Block(), 48  # of which each mode has evidence of its own
    run, tuned = compiled(model, store, 60.0, mode)
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            check(run(rows(m)), model(rows(m)))
    assert len(tuned.tuned) >= 2  # a product whose fused form is left to the library is decided without it too
    assert not tuned.undecided
    for decision in tuned.decisions.values():
        proven = decision.evidence.high is not None and decision.evidence.high <= 1 - ContestOptions.margin
        assert proven is (decision.choice is not Choice.LIBRARY)
    ours = any(decision.choice is Choice.OURS for decision in tuned.decisions.values())
    assert tuned.launched_early == (ours and mode is not None)

    run, again = compiled(model, store, 0.0, mode)
    with torch.no_grad():
        check(run(rows(m)), model(rows(m)))
    assert not again.tuned
    assert not again.undecided


@pytest.mark.slow
def test_a_step_of_training_has_its_gradients(store: Path) -> None:
    model, reference = Block(), Block()
    run, tuned = compiled(model, store, 60.0)
    for trained in (run, reference):
        trained(rows(256)).float().pow(2).mean().backward()
    for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None
        assert expected.grad is not None
        check(mine.grad, expected.grad)
    assert len(tuned.decisions) >= 4, "the products of the gradients are decided too"


@pytest.mark.slow
def test_two_ranks_of_a_job_run_the_same_kernels_and_one_has_tuned_them(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", RANK, str(tmp_path / "job")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / str(rank))},
        )
        for rank in range(2)
    ]
    first, second = (json.loads(rank.communicate(timeout=200)[0].splitlines()[-1]) for rank in ranks)
    assert first["runs"] == second["runs"] != {}
    assert sorted((first["tuned"], second["tuned"])) == [0, 1]
    assert max(first["error"], second["error"]) < 2**-6


def test_a_measuring_process_that_cannot_start_leaves_the_model_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilescout.spaces.errors import DeviceError

    def refuse(*arguments: object, **options: object) -> None:
        raise DeviceError("no memory is left")

    monkeypatch.setattr(local, "LocalEngine", refuse)
    model = Block()
    run, tuned = compiled(model, tmp_path, 20.0)
    with torch.no_grad():
        check(run(rows(48)), model(rows(48)))
    assert "no memory is left" in str(tuned)
