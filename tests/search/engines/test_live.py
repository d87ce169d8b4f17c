"""Live evaluation from end to end: real compilers, a real store, a real measuring process, on the host."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.search.engines.patient_engine import PatientEngine
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import FEWEST, LiveOptions
from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import VERSION, Objective, ProtocolOptions
from tilescout.search.measure.worker import Job
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import DeviceError, ProblemError, SpaceError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import KernelTemplate

PROBLEM = GemmProblem(64, 64, 64)
OPTIONS = LiveOptions(
    CompileOptions(processes=2, timeout=120), ProtocolOptions(Objective.CHAIN, heating_us=1000.0), timeout=60
)

Open = Callable[..., AbstractContextManager[Evaluator]]


@contextmanager
def opened(
    template: KernelTemplate, problem: GemmProblem, *arguments: Any, kind: type[LocalEngine] = PatientEngine
) -> Iterator[Evaluator]:
    """An evaluator of an engine of its own; the arguments are those of the engine."""
    with kind(template, *arguments) as engine, Evaluator(engine, problem) as evaluator:
        yield evaluator


@pytest.fixture
def open_live(plain_gemm: ModuleType, tmp_path: Path) -> Open:
    """A function: an evaluator of the plain GEMM on the host, to be closed by its user."""

    def open_live(
        store: Path = tmp_path / "store",
        device: Device | None = plain_gemm.HOST,
        kind: type[LocalEngine] = PatientEngine,
    ) -> AbstractContextManager[Evaluator]:
        return opened(plain_gemm.TEMPLATE, PROBLEM, store, ["cpu"], device, OPTIONS, kind=kind)

    return open_live


def index(evaluator: Evaluator, fault: str = "nothing", repeats: int = 1) -> int:
    return evaluator.space.index({"fault": fault, "repeats": repeats})


def test_every_configuration_comes_back_with_what_became_of_it(
    open_live: Open, children: Callable[[], set[int]]
) -> None:
    expected = {
        "nothing": Status.OK,
        "corner": Status.WRONG,
        "exception": Status.LAUNCH_ERROR,
        "endless": Status.TIMEOUT,
        "compiler_refuses": Status.COMPILE_ERROR,
        "compiler_aborts": Status.COMPILE_ERROR,
        "compiler_hangs": Status.COMPILE_TIMEOUT,
    }
    before = children()
    with open_live() as evaluator:
        faults = {index(evaluator, fault): fault for fault in expected}
        last = index(evaluator, repeats=2)
        outcomes = dict(evaluate(evaluator, [*faults, last]))

    assert {faults[tried]: outcome.status for tried, outcome in outcomes.items() if tried != last} == expected
    assert outcomes[last].ok  # after all that
    for tried, outcome in outcomes.items():
        assert bool(outcome.error) == (not outcome.ok)
        assert outcome.compile_seconds > 0
        assert (outcome.gpu_seconds > 0) == (not outcome.status.startswith("compile"))
        assert outcome.timing is None or outcome.timing.library_us == evaluator.library_us(), faults[tried]
    assert children() == before


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def live(plain_gemm: ModuleType, store: Path) -> Iterator[Evaluator]:
    with opened(plain_gemm.TEMPLATE, PROBLEM, store, ["cpu"], plain_gemm.HOST, OPTIONS) as evaluator:
        yield evaluator


def test_it_says_where_its_measurements_come_from(live: Evaluator, plain_gemm: ModuleType) -> None:
    assert live.device == plain_gemm.HOST
    assert live.space.problem == PROBLEM
    assert live.provenance.kind == "live"
    assert live.provenance.description == "measured on CPU, in chains"
    assert live.provenance.versions["protocol"] == VERSION
    assert {"torch", "nvidia-cutlass-dsl"} <= set(live.provenance.versions)
    assert live.library_us() > 0


@pytest.mark.slow
def test_as_many_as_the_capacity_are_in_flight_and_each_comes_back_once(
    live: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live.capacity == FEWEST > OPTIONS.compile.processes + 2
    submit, wait = live.submit, live.wait
    in_flight: set[int] = set()
    most = 0

    def watched_submit(tried: int, incumbent: float | None = None) -> None:
        nonlocal most
        in_flight.add(tried)
        most = max(most, len(in_flight))
        submit(tried, incumbent)

    def watched_wait() -> list[tuple[int, Measurement]]:
        done = wait()
        for tried, _ in done:
            in_flight.remove(tried)
        return done

    monkeypatch.setattr(live, "submit", watched_submit)
    monkeypatch.setattr(live, "wait", watched_wait)
    faults = ("nothing", "corner", "compiler_refuses", "unwritten", "not_a_number", "unstable")
    wanted = [index(live, fault, repeats) for fault in faults for repeats in (1, 2, 4)]

    tried = [tried for tried, _ in evaluate(live, wanted)]

    assert sorted(tried) == sorted(wanted)
    assert most == live.capacity
    assert not in_flight


def test_what_is_given_up_never_comes_back_and_the_evaluator_goes_on(live: Evaluator) -> None:
    for repeats in (1, 2):
        live.submit(index(live, "compiler_hangs", repeats))
    live.give_up()

    [(tried, measured)] = evaluate(live, [index(live)])  # no compiler that is left would be free for it
    assert tried == index(live)
    assert measured.ok


def test_what_the_store_holds_is_not_compiled_again(
    live: Evaluator, store: Path, children: Callable[[], set[int]]
) -> None:
    def made() -> dict[Path, int]:
        return {path: path.stat().st_ino for path in store.rglob("artifact.json")}

    [(_, first)] = evaluate(live, [index(live)])
    before, kernels = children(), made()
    with opened(live.template, PROBLEM, store, ["cpu"], live.device, OPTIONS) as again:
        [(_, second)] = evaluate(again, [index(again)])
        # The process that compilers are forked from, but no compiler. What measures was forked from one that stands by,
        # or on a busy host is a process of its own.
        assert 1 <= len(children() - before) <= 2

    assert kernels
    assert made() == kernels
    assert first.ok
    assert second.ok
    assert second.compile_seconds == first.compile_seconds  # what it cost when it was made


def test_what_is_stored_serves_all_that_differs_from_it_in_its_launch_alone(
    plain_gemm: ModuleType, tmp_path: Path
) -> None:
    with opened(plain_gemm.LAUNCHED, PROBLEM, tmp_path / "store", ["cpu"], plain_gemm.HOST, OPTIONS) as evaluator:
        alike = [index(evaluator, "corner", repeats) for repeats in (1, 2, 4)]
        others = [index(evaluator, "nothing", repeats) for repeats in (1, 2, 4)]
        assert [len({*evaluator.kernels[some].tolist()}) for some in (alike, others, alike + others)] == [1, 1, 2]
        assert evaluator.stock().tolist() == sorted(others)
        assert not len(evaluator.stored())
        evaluator.engine.compile(evaluator.space[alike[1]], PROBLEM.signature).result()
        assert evaluator.stored().tolist() == sorted(alike)


@pytest.mark.slow
def test_a_search_that_meets_failures_ends_with_the_best_of_the_rest(live: Evaluator, tmp_path: Path) -> None:
    faults = ("nothing", "corner", "exception", "compiler_refuses")
    live.space = live.space.subset([index(live, fault, repeats) for fault in faults for repeats in (1, 4)])

    options = TuneOptions("random", seed=0, budget=Budget(trials=7), studies=tmp_path)
    result = run_study(live, options)

    assert len(result.trials) == len({trial.index for trial in result.trials}) == 7
    assert result.default is not None
    assert result.default.number == 0
    assert result.best is not None
    assert dict(result.best.configuration) == {"fault": "nothing", "repeats": 1}
    for trial in result.trials:
        assert trial.measurement.failed == (trial.configuration["fault"] != "nothing"), trial.measurement.error
    assert result.default.measurement.ok
    assert result.race is not None
    assert result.race.answer == result.default.index
    assert result.gpu_seconds > sum(trial.measurement.gpu_seconds for trial in result.trials)


@pytest.mark.slow
def test_the_best_known_prunes_what_is_slower_but_not_what_is_to_be_measured_in_full(open_live: Open) -> None:
    with open_live() as evaluator:
        default, slow = index(evaluator), index(evaluator, repeats=4)

        def outcome(tried: int, incumbent: float | None) -> Measurement:
            evaluator.submit(tried, incumbent)
            [(returned, measurement)] = evaluator.wait()
            assert returned == tried
            return measurement

        first = outcome(default, None)
        assert first.timing is not None
        pruned = outcome(slow, 1e-6)  # far below anything that a kernel reaches: noise of the machine decides nothing
        assert pruned.status is Status.PRUNED
        assert pruned.pilot_us is not None
        assert pruned.resources == first.resources
        assert pruned.compile_seconds > 0
        assert outcome(slow, None).status is Status.OK
        assert outcome(default, None).status is Status.OK
        ratios = evaluator.race([default, slow], rounds=3, pairs=3, seed=0)
        assert ratios.shape == (3, 2)
        default_ratio, slow_ratio = np.median(ratios, axis=0)  # a busy machine may disturb a round
        assert slow_ratio > default_ratio


@pytest.fixture
def no_child_is_left(children: Callable[[], set[int]]) -> Iterator[None]:
    before = children()
    yield
    assert children() == before


@pytest.mark.slow
@pytest.mark.usefixtures("no_child_is_left")
@pytest.mark.parametrize("fault", ["endless", "compiler_hangs"])
def test_closing_ends_what_hangs_at_once(
    open_live: Open, children: Callable[[], set[int]], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    measure, begun = MeasuringProcess.measure, list[Job]()

    def watched(process: MeasuringProcess, job: Job) -> Measurement:
        begun.append(job)
        return measure(process, job)

    monkeypatch.setattr(MeasuringProcess, "measure", watched)
    with open_live(kind=LocalEngine) as evaluator:
        evaluator.submit(index(evaluator))
        assert [outcome.ok for _, outcome in evaluator.wait()] == [True]  # compilers and measuring process are up
        before = children()
        for repeats in (1, 2, 4):
            evaluator.submit(index(evaluator, fault, repeats))
        deadline = time.monotonic() + 120
        while len(begun) < 2 if fault == "endless" else len(children() - before) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)  # one is being tried, others wait behind it
        started = time.monotonic()

    assert time.monotonic() - started < 30  # it has a minute, a compiler two


@pytest.mark.usefixtures("no_child_is_left")
@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"device": None}, DeviceError, "unknown device 'CPU', known are h100"),
        ({"store": Path(__file__) / "under a file"}, StoreError, "can't make the artifact store"),
    ],
)
def test_what_can_not_work_is_refused_at_once_and_nothing_is_left_running(
    open_live: Open, changes: dict[str, object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason), open_live(**changes):
        pass


@pytest.mark.usefixtures("no_child_is_left")
def test_a_problem_or_device_that_is_not_the_templates_is_refused(plain_gemm: ModuleType, tmp_path: Path) -> None:
    template, odd, other = plain_gemm.TEMPLATE, GemmProblem(8, 8, 8, dtype="fp16"), find_device("b200")
    with (
        pytest.raises(ProblemError, match="computes in bf16"),
        opened(template, odd, tmp_path, ["cpu"], plain_gemm.HOST),
    ):
        pass
    with (
        pytest.raises(SpaceError, match="builds for host, sm_90a, not for sm_100a"),
        opened(template, PROBLEM, tmp_path, ["cpu"], other),
    ):
        pass


@pytest.mark.usefixtures("no_child_is_left")
def test_a_store_that_is_lost_stops_the_search_with_its_reason(open_live: Open, tmp_path: Path) -> None:
    with open_live() as evaluator:
        (tmp_path / "store").rmdir()
        (tmp_path / "store").write_text("in the way")
        evaluator.submit(index(evaluator))

        with pytest.raises(StoreError, match="the artifact store"):
            evaluator.wait()
    evaluator.close()  # again: harmless
