"""Which graphs TorchInductor writes with programmatic dependent launch, and between what candidates are timed then."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.graph import GraphLowering

from tilescout.search.autotuning import inductor
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


def test_the_name_of_code_that_launches_early_changes_with_what_its_own_tuner_knows(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, early = make_tuner(), make_tuner()
    monkeypatch.setattr(tuner, "key", lambda: "plain")
    monkeypatch.setattr(early, "key", lambda: "early")
    tuning = TuningPass(tuner, early=early)
    assert tuning.key().startswith("plain")
    with CONFIG.find().patch({CUDA_GRAPHS: True}):
        assert tuning.key().startswith("early")


def test_graphs_whose_kernels_begin_early_are_decided_by_a_tuner_of_their_own(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Tuner] = []
    tuner, early = make_tuner(), make_tuner()
    for each in (tuner, early):
        monkeypatch.setattr(each, "decide", lambda _, each=each: asked.append(each))
    tuning = TuningPass(tuner, early=early)
    assert tuning.behind(None).early is early
    for recorded in (False, True):
        torch._dynamo.reset()
        with in_force(tuning):
            compiled = torch.compile(
                nn.Linear(64, 64, bias=False, dtype=torch.bfloat16), options={CUDA_GRAPHS: recorded}
            )
        compiled(torch.zeros(64, 64, dtype=torch.bfloat16))
    assert asked == [tuner, early]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[LiveOptions]:
    """The options of what would measure on the H200 that this process seems to have."""
    found: list[LiveOptions] = []

    def open_engine(*_: object, options: LiveOptions) -> None:
        found.append(options)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr("tilescout.search.engines.local.LocalEngine", open_engine)
    return found


@pytest.mark.parametrize("wanted", [None, False, True])
def test_candidates_are_timed_between_kernels_as_they_will_run_and_are_evidence_of_that_alone(
    tmp_path: Path, opened: list[LiveOptions], wanted: bool | None
) -> None:
    tuning = inductor.tuning_pass(tmp_path, TunerOptions(dependent_launch=wanted))
    for tuner in (tuning.tuner, tuning.early):
        tuner._open()
    assert [each.protocol.overlapped for each in opened] == {None: [False, True], False: [False] * 2, True: [True] * 2}[
        wanted
    ]
    assert (tuning.early.store.folder != tuning.tuner.store.folder) is (wanted is None)


def test_both_tuners_of_a_pass_share_a_budget_and_an_account(tmp_path: Path, opened: list[LiveOptions]) -> None:
    tuning = inductor.tuning_pass(tmp_path, TunerOptions(seconds=20.0))
    with tuning.early._charged():
        time.sleep(0.01)
    assert tuning.tuner._left == tuning.early._left < 20.0
    assert tuning.tuner.summary is tuning.early.summary
    assert tuning.tuner.summary.cached is not None
    assert tuning.tuner.summary.cached.bundles == (tuning.tuner.store.bundles, tuning.early.store.bundles)
    assert not opened
