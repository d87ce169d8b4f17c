"""Which graphs TorchInductor writes with programmatic dependent launch, and between what candidates are timed then."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.graph import GraphLowering

from tilescout.search.autotuning import inductor
from tilescout.search.autotuning.inductor import TuningPass
from tilescout.search.autotuning.tuner import Tuner, TunerOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.graph_rewrite import Sighting
from tilescout.search.export.inductor import in_force
from tilescout.search.export.torch_hooks import CONFIG, CUDA_GRAPHS, DEPENDENT_LAUNCH
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem

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
    tuning = TuningPass(tuner, early=lambda: early)
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
    tuning = TuningPass(tuner, early=lambda: early)
    assert tuning.behind(None).early() is early
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
    for tuner in (tuning.tuner, tuning.early()):
        tuner._open()
    assert [each.protocol.overlapped for each in opened] == {None: [False, True], False: [False] * 2, True: [True] * 2}[
        wanted
    ]
    assert (tuning.early().store.folder != tuning.tuner.store.folder) is (wanted is None)


def test_the_second_tuner_is_made_once_it_is_needed(tmp_path: Path, opened: list[LiveOptions]) -> None:
    tuning = inductor.tuning_pass(tmp_path, TunerOptions())
    tuning.key()
    assert [each.name for each in tmp_path.iterdir()] == [tuning.tuner.store.folder.name]  # it may be read-only
    with CONFIG.find().patch({CUDA_GRAPHS: True}):
        tuning.key()
    assert len(list(tmp_path.iterdir())) == 2
    assert tuning.early() is tuning.behind(None).early()
    assert not opened


def test_both_tuners_of_a_pass_share_a_budget_and_an_account(tmp_path: Path, opened: list[LiveOptions]) -> None:
    tuning = inductor.tuning_pass(tmp_path, TunerOptions(seconds=20.0))
    tuner, early = tuning.tuner, tuning.early()
    with early._charged():
        time.sleep(0.01)
    assert tuner._left == early._left < 20.0
    assert tuner.summary is early.summary
    assert tuner.summary.cached is not None
    assert tuner.summary.cached.bundles == (tuner.store.bundles, early.store.bundles)
    assert not opened


def test_of_both_tuners_one_has_an_engine_and_one_decides_at_a_time(
    tmp_path: Path, opened: list[LiveOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = inductor.tuning_pass(tmp_path, TunerOptions())
    both, closed = (tuning.tuner, tuning.early()), list[Tuner]()
    for each in both:
        engine: Any = SimpleNamespace(close=partial(closed.append, each))
        monkeypatch.setattr(each, "_open", lambda engine=engine: engine)
    tuner, early = both
    for each, other in ((tuner, early), (early, tuner), (tuner, early)):
        each._started()
        assert (each._engine is not None, other._engine) == (True, None)
    assert closed == [tuner, early]
    with tuner.store.lock(1.0), pytest.raises(StoreError, match="has held"), early.store.lock(0.1):
        raise AssertionError("two processes must not measure at once")


def test_products_are_left_to_the_library_where_no_second_store_can_be_made(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle]
) -> None:
    decide_for(("64x64x64",))
    tuner = make_tuner()

    def refuse() -> Tuner:
        raise StoreError("can't make the evidence store: Read-only file system")

    tuning = TuningPass(tuner, early=refuse)
    for recorded, told in ((False, "1 of 1"), (True, "0 of 2")):
        torch._dynamo.reset()
        with in_force(tuning):
            compiled = torch.compile(
                nn.Linear(64, 64, bias=False, dtype=torch.bfloat16), options={CUDA_GRAPHS: recorded}
            )
        compiled(torch.zeros(64, 64, dtype=torch.bfloat16))
        assert f"{told} matrix products run tuned kernels" in str(tuner.summary)
    assert "Read-only file system" in str(tuner.summary)
    assert not tuner.summary.failed


def test_what_another_tuner_decided_is_decided_anew_and_so_are_its_other_sizes(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, product = make_tuner(), GemmProblem(40, 64, 64)
    options = (tuner.template, tuner.device, tuner.store, tuner.store.folder, tuner._open, tuner.options)
    early, asked = Tuner(*options, beside=tuner), list[int]()

    def decide(wanted: Sequence[GemmProblem], seconds: float, of: Tuner) -> None:
        asked.append(len(wanted))
        of._own.update(wanted)
        of.summary.tuned.update(wanted)

    for each in (tuner, early):
        monkeypatch.setattr(each, "_tuned", partial(decide, of=each))
        monkeypatch.setattr(each, "_wanted", lambda sightings, bundle, each=each: [] if each._own else [product])
        each.decide([Sighting((product,), dynamic=True)])
    assert asked == [1, 14, 1, 14]


@pytest.mark.parametrize("stands_by", [True, False])
def test_processes_stand_by_for_the_next_that_tunes_unless_they_may_not(
    tmp_path: Path, opened: list[LiveOptions], stands_by: bool
) -> None:
    inductor.make_tuner(tmp_path, TunerOptions(standby=stands_by))._open()
    assert [each.compile.standby for each in opened] == [stands_by]
