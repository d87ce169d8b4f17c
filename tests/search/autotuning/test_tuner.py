"""Products are decided by contests, once; later processes read the same answer."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilescout.search.autotuning.contest import ContestOptions, Entry
from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.autotuning.tuner import Tuner, TunerOptions
from tilescout.search.engines.engine import Engine, Task, settled_future
from tilescout.search.engines.local import LocalEngine
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.export.graph_rewrite import Sighting
from tilescout.search.measure.race import RaceOptions
from tilescout.spaces import templates
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

MakeTuner = Callable[..., Tuner]


def seen(*texts: str) -> list[Sighting]:
    return [Sighting((GemmProblem.parse(text),), dynamic=False) for text in texts]


def test_a_kernel_of_no_use_is_decided_against(make_tuner: MakeTuner, decide_for: Callable[..., Bundle]) -> None:
    decide_for((), ("64x64x64",))
    tuner = make_tuner()
    bundle = tuner.decide(seen("64x64x64"))
    assert bundle is not None
    assert bundle.by_problem[GemmProblem(64, 64, 64)].choice is Choice.LIBRARY
    assert "library, not proven as fast" in str(tuner.summary)
    assert tuner.summary.gain_us == 0


def test_what_there_is_no_time_for_stays_the_librarys_and_is_told(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], store: EvidenceStore
) -> None:
    decide_for(("64x64x64",))
    tuner = make_tuner()
    tuner.summary.seconds = 60.0
    key = tuner.key()
    bundle = tuner.decide(seen("64x64x64", "32x64x64"))
    assert bundle is not None
    assert set(bundle.by_problem) == {GemmProblem(64, 64, 64)}
    assert "the budget of 60 s was spent" in str(tuner.summary)
    assert store.state().unfinished == 1
    assert tuner.key() != key, "the next process must not find the code of a graph that was left unfinished"


def test_who_only_looks_up_leaves_no_graph_unfinished_and_finds_what_is_decided_later(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], store: EvidenceStore
) -> None:
    tuner = make_tuner(seconds=0.0)
    key = tuner.key()
    tuner.decide(seen("64x64x64"))
    assert tuner.key() == key
    assert key != make_tuner(seconds=60.0).key()
    assert store.state().unfinished == 0
    decide_for(("64x64x64",))
    assert tuner.key() != key


def test_who_only_looks_up_waits_for_no_process_that_decides(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle], store: EvidenceStore
) -> None:
    known, tuner = decide_for(("64x64x64",)), make_tuner(seconds=0.0)
    tuner.options = replace(tuner.options, patience=0.01)
    with store.lock(1.0):
        bundle = tuner.decide(seen("64x64x64", "32x64x64"))
    assert bundle is not None
    assert bundle.digest == known.digest
    assert str(tuner.summary).endswith("32x64x64:bf16: library's, the budget of 0 s was spent")


def test_a_graph_that_others_kept_from_being_decided_is_left_unfinished_too(
    make_tuner: MakeTuner, store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, late = make_tuner(), make_tuner()
    tuner.options = replace(tuner.options, patience=0.01)
    key = tuner.key()
    with store.lock(1.0):  # another process decides for longer than this one waits
        assert tuner.decide(seen("64x64x64")) is None
    assert "another process has held" in str(tuner.summary)
    after = tuner.key()
    assert after != key
    # Another rank had no time, and had said so before this one asked for a key.
    monkeypatch.setattr("tilescout.search.autotuning.tuner.agree", lambda request, answer, seconds, otherwise: "")
    assert late.decide(seen("64x64x64")) is None
    assert late.key() != after


def test_an_engine_that_cannot_be_had_is_told_and_asked_for_once(make_tuner: MakeTuner) -> None:
    from tilescout.spaces.errors import DeviceError

    tuner, asked = make_tuner(), []

    def open_engine() -> None:
        asked.append(1)
        raise DeviceError("out of memory")

    tuner._open = open_engine  # type: ignore[assignment]
    assert tuner.decide(seen("64x64x64")) is None
    assert tuner.decide(seen("32x64x64")) is None
    assert len(asked) == 1
    assert "out of memory" in str(tuner.summary)


def test_the_summary_says_what_is_gained(make_tuner: MakeTuner, decide_for: Callable[..., Bundle]) -> None:
    decide_for(("64x64x64",), ("32x64x64",))
    tuner = make_tuner()
    tuner.decide(seen("64x64x64", "64x64x64", "32x64x64"))
    assert tuner.summary.gain_us == pytest.approx(2 * 10.0 * 0.1)
    lines = str(tuner.summary).splitlines()
    assert lines[0].startswith("tilescout: 2 of 3 matrix products run tuned kernels; expected gain 2.0 µs a call")
    assert lines[1].startswith("  2 × 64x64x64:bf16: ours, proven as fast as torch.mm (10.00 µs); known")


def test_a_product_whose_longest_form_is_the_librarys_is_looked_up_without_its_epilogue(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle]
) -> None:
    decide_for(("64x64x64",), ("64x64x64:bf16:bias",))
    tuner = make_tuner()
    tuner.template.check = lambda problem: None  # type: ignore[method-assign]
    try:
        forms = tuple(map(GemmProblem.parse, ("64x64x64:bf16:bias", "64x64x64:bf16")))
        tuner.decide([Sighting(forms, dynamic=False)])
    finally:
        del tuner.template.check
    assert tuner.summary.met == {GemmProblem(64, 64, 64): 1}


def test_an_unknown_size_is_tuned_at_powers_of_two_besides_the_nearest_first(
    make_tuner: MakeTuner, decide_for: Callable[..., Bundle]
) -> None:
    bundle, tuner = decide_for(("40x64x64",), ("64x64x64",)), make_tuner()
    product, tuned = GemmProblem(40, 64, 64), {GemmProblem(40, 64, 64)}
    around = tuner._around([Sighting((product,), dynamic=True)], bundle, tuned)
    assert [problem.m for problem in around[:4]] == [32, 16, 128, 8], "64 is known"
    assert {problem.n for problem in around} == {64}
    assert not tuner._around([Sighting((product,), dynamic=False)], bundle, tuned)
    assert not tuner._around([Sighting((product,), dynamic=True)], bundle, set()), "it was known before"


def test_sizes_around_are_not_tuned_once_the_budget_is_spent(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, product, asked = make_tuner(), GemmProblem(40, 64, 64), list[Sequence[GemmProblem]]()

    def spend(wanted: Sequence[GemmProblem], seconds: float) -> None:
        asked.append(wanted)
        tuner._own.update(wanted)
        tuner.summary.seconds = 60.1

    monkeypatch.setattr(tuner, "_tuned", spend)
    monkeypatch.setattr(tuner, "_wanted", lambda sightings, bundle: [] if asked else [product])
    tuner.decide([Sighting((product,), dynamic=True)])
    assert asked == [[product]]


@pytest.mark.parametrize("kept", [60.0, 0.0])
def test_what_was_decided_is_kept_when_a_contest_is_interrupted_and_before_where_it_lasts(
    kept: float, make_tuner: MakeTuner, store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, named = make_tuner(), list[str]()
    engine: Any = SimpleNamespace(template=tuner.template, device=tuner.device, measures_anew=False, close=lambda: None)
    monkeypatch.setattr(tuner, "_open", lambda: engine)
    monkeypatch.setattr(tuner, "_enter", lambda engine, problem, *_: Entry(problem, []))
    monkeypatch.setattr("tilescout.search.autotuning.tuner._KEPT", kept)

    def contest(engine: Engine, entry: Entry, deadline: float) -> Outcome:
        if store.state().bundle or entry.problem.m != 64:
            named.append(store.state().bundle)
            raise KeyboardInterrupt
        name, source = tuner.template.name, tuner.template.source_hash
        versions = {"nvidia-cutlass-dsl": "4.8.1"}
        evidence = Evidence("autotune", "no candidate works", measured_by="a test", versions=versions, library_us=10.0)
        return Outcome(entry.problem, name, source, "host", Choice.LIBRARY, evidence, None)

    monkeypatch.setattr(tuner, "_contest", contest)
    with pytest.raises(KeyboardInterrupt):
        tuner.decide(seen("64x64x64", "32x64x64"))
    assert bool(named[0]) == (kept == 0.0)
    bundle = store.bundle(store.state().bundle)
    assert bundle is not None
    assert set(bundle.by_problem) == {GemmProblem(64, 64, 64)}
    assert tuner._timer is not None, "the engine is ended though nothing is asked any more"


def test_an_engine_is_closed_once_nothing_was_asked_for_a_while_since_the_last_answer(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, closed = make_tuner(), Event()
    engine: Any = SimpleNamespace(close=closed.set)
    tuner._open = lambda: engine

    def answer(sightings: Sequence[Sighting], known: str) -> str:
        assert tuner._started() is engine
        assert tuner._timer is None  # however long it takes
        return ""

    monkeypatch.setattr(tuner, "_answer", answer)
    tuner.decide(seen("64x64x64"))
    assert tuner._timer is not None
    assert tuner._timer.is_alive()
    tuner._close_if_idle()  # as of a timer that was stopped too late
    assert not closed.is_set()
    tuner.options = replace(tuner.options, idle=math.inf)
    tuner.decide(seen("64x64x64"))
    tuner._timer.join(0.01)
    assert tuner._timer.is_alive(), "who waits without end fails at once"
    tuner.options = replace(tuner.options, idle=0.01)
    tuner.decide(seen("64x64x64"))
    assert closed.wait(60)


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
@pytest.mark.parametrize(
    "with_seconds",
    [TunerOptions, lambda seconds: TunerOptions(patience=seconds), lambda seconds: TunerOptions(idle=seconds)],
)
def test_a_budget_that_is_none_is_refused(with_seconds: Callable[[float], TunerOptions], seconds: float) -> None:
    with pytest.raises(ExportError, match="allowed are numbers from 0 on"):
        with_seconds(seconds)


def test_a_product_is_measured_before_it_is_known_what_is_tried_of_the_next(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = GemmProblem(64, 64, 64), GemmProblem(32, 64, 64)
    tuner, measured, contests = make_tuner(), Event(), list[GemmProblem]()

    def shortlist(template: object, problem: GemmProblem, device: object, count: int) -> list[Configuration]:
        assert problem == first or measured.wait(60)
        return []

    def contest(engine: object, entry: Entry, deadline: float) -> None:
        contests.append(entry.problem)
        measured.set()

    engine: Any = SimpleNamespace(template=tuner.template, device=tuner.device, measures_anew=False)
    monkeypatch.setattr("tilescout.search.autotuning.tuner.shortlist", shortlist)
    monkeypatch.setattr(tuner, "_contest", contest)
    monkeypatch.setattr(tuner, "_engine", engine)
    assert list(tuner._contests([first, second], 60.0)) == []
    assert contests == [first, second]


def test_contests_that_are_ended_early_are_charged_and_nothing_more_is_compiled_for_them(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner, compiling, ahead = make_tuner(), list[Future[Any]](), Event()
    wanted = [GemmProblem(m, 64, 64) for m in range(8, 72, 8)]

    def compile(configuration: str, signature: str) -> Future[Any]:
        compiling.append(Future())
        if len(compiling) == 4:
            ahead.set()
        return compiling[-1]

    def contest(engine: object, entry: Entry, deadline: float) -> GemmProblem:
        assert ahead.wait(60), "those of the next products are not compiled meanwhile"
        return entry.problem

    engine: Any = SimpleNamespace(template=tuner.template, device=tuner.device, measures_anew=False, compile=compile)
    monkeypatch.setattr("tilescout.search.autotuning.tuner.shortlist", lambda *_: ["one"])
    monkeypatch.setattr(tuner, "_contest", contest)
    monkeypatch.setattr(tuner, "_engine", engine)
    outcomes: Any = tuner._contests(wanted, 60.0)
    assert next(outcomes) == wanted[0]
    outcomes.close()
    assert len(compiling) == 4
    assert all(each.cancelled() for each in compiling)
    assert 60.0 > tuner._left == 60.0 - tuner.summary.seconds


def test_of_few_candidates_the_default_is_one_though_others_are_of_the_complement(
    make_tuner: MakeTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shortlist(template: str, problem: GemmProblem, device: object, count: int) -> list[str]:
        return [f"{template}'s {at}" for at in range(count)]

    monkeypatch.setattr("tilescout.search.autotuning.tuner.shortlist", shortlist)
    tuner, problem = make_tuner(), GemmProblem(64, 64, 64)
    tuner.options = replace(tuner.options, contest=ContestOptions(candidates=2, others=4))
    engine: Any = SimpleNamespace(template="one", compile=lambda configuration, signature: Future())
    beside: Any = SimpleNamespace(template="another", compile=engine.compile)
    tuner.template = engine.template
    entry = tuner._enter(engine, problem, None, beside, 2)
    assert [str(each.configuration) for each in entry.candidates] == ["one's 0", "another's 0"]


@pytest.mark.slow
def test_a_kernel_of_the_complement_may_be_chosen(
    make_tuner: MakeTuner, plain_gemm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(engine: Engine, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int) -> Future[Any]:
        ratios = [0.95 if task.template is None else 0.9 for task in tasks]
        return settled_future(np.random.default_rng(seed).normal(ratios, 1e-4, (rounds, len(tasks))))

    def measure(engine: LocalEngine, gpu: int, tasks: Sequence[Task]) -> Future[Any]:
        return in_batches(engine, gpu, [replace(task, incumbent=None) for task in tasks])  # no slow one is given up

    in_batches = LocalEngine.measure
    monkeypatch.setattr(LocalEngine, "race", race)
    monkeypatch.setattr(LocalEngine, "measure", measure)
    monkeypatch.setitem(templates._BUILT_IN, "scratch_gemm", "plain_gemm:SCRATCH")
    monkeypatch.setattr(plain_gemm.PlainGemmTemplate, "complement", "scratch_gemm")
    monkeypatch.setattr(plain_gemm.ScratchGemmTemplate, "complements", lambda self, problem, device: problem.m == 64)
    tuner = make_tuner(live=True)
    tuner.options = replace(tuner.options, contest=ContestOptions(guesses=0, race=RaceOptions(within=1e6, looks=2)))

    bundle = tuner.decide(seen("64x64x64", "32x64x64"))

    assert bundle is not None
    decisions = {problem.m: decision for problem, decision in bundle.by_problem.items()}
    assert {m: decision.choice for m, decision in decisions.items()} == {64: Choice.OURS, 32: Choice.OURS}
    kernels = {m: bundle.kernels[decision.kernel] for m, decision in decisions.items()}
    assert {m: kernel.key["space"] for m, kernel in kernels.items()} == {64: "scratch_gemm", 32: "plain_gemm"}
    assert kernels[64].scratch_bytes == 4 * 64 * 64
