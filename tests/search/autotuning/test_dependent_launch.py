"""Which graphs TorchInductor writes with programmatic dependent launch, and between what candidates are timed then."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.graph import GraphLowering

from tilescout.search.autotuning import inductor
from tilescout.search.autotuning.contest import ContestOptions
from tilescout.search.autotuning.inductor import TuningPass
from tilescout.search.autotuning.tuner import Tuner, TunerOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.inductor import in_force
from tilescout.search.export.torch_hooks import CONFIG, CUDA_GRAPHS, DEPENDENT_LAUNCH

MakeTuner = Callable[..., Tuner]

pytestmark = pytest.mark.usefixtures("fresh_inductor")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether dependent launch was on while the code of each graph was written."""
    found, codegen = [], GraphLowering.codegen

    def seen(graph: GraphLowering) -> object:
        found.append(getattr(CONFIG.find(), DEPENDENT_LAUNCH))
        return codegen(graph)

    monkeypatch.setattr(GraphLowering, "codegen", seen)
    return found


def run(tuner: Tuner, m: int, **options: bool) -> None:
    """Compile a product of so many rows, and run it."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    linear, x = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16), torch.randn(m, 64, dtype=torch.bfloat16)
    with in_force(TuningPass(tuner)):
        compiled = torch.compile(linear, dynamic=False, options={**options})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), linear(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("wanted", "options", "early"),
    [
        (None, {}, False),
        (None, {CUDA_GRAPHS: True}, True),
        (True, {}, True),
        (False, {CUDA_GRAPHS: True}, False),
        (False, {DEPENDENT_LAUNCH: True}, True),  # what the user sets stays
    ],
)
def test_kernels_beside_ours_begin_early_where_that_is_wanted_or_cuda_graphs_are_recorded(
    wanted: bool | None,
    options: dict[str, bool],
    early: bool,
    make_tuner: MakeTuner,
    decide_for: Callable[..., Bundle],
    written: list[bool],
) -> None:
    decide_for(("64x64x64",))
    tuner = make_tuner(dependent_launch=wanted)
    run(tuner, 64, **options)
    assert written == [early]
    ours = early and wanted is not False
    assert tuner.summary.launched_early == ours
    assert ("1 graph whose kernels begin before the last one ends" in str(tuner.summary)) is ours
    assert not getattr(CONFIG.find(), DEPENDENT_LAUNCH)  # for what others compile


def test_a_graph_that_runs_no_kernel_of_ours_is_written_as_without_us(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], written: list[bool]
) -> None:
    decide_for(("64x64x64",), ("32x64x64",))
    tuner = make_tuner(dependent_launch=True)
    for m in (64, 32):
        run(tuner, m)
    assert written == [True, False]
    assert tuner.summary.launched_early == 1


def test_code_that_launches_early_is_other_code_in_inductors_cache(make_tuner: MakeTuner) -> None:
    keys = {TuningPass(make_tuner(dependent_launch=wanted)).key() for wanted in (None, False, True)}
    assert len(keys) == 3


@pytest.mark.parametrize("overlapped", [False, True])
def test_what_was_timed_between_overlapped_kernels_is_evidence_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlapped: bool
) -> None:
    opened: list[LiveOptions] = []

    def open_engine(*_: object, options: LiveOptions) -> None:
        opened.append(options)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("tilescout.search.engines.local.LocalEngine", open_engine)
    plain = inductor.make_tuner(tmp_path, TunerOptions())
    tuner = inductor.make_tuner(tmp_path, TunerOptions(contest=ContestOptions(overlapped=overlapped)))
    assert (tuner.store.folder != plain.store.folder) is overlapped
    tuner._open()
    assert [each.protocol.overlapped for each in opened] == [overlapped]
