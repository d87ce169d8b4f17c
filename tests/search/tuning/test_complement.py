"""Where the kernels of another space may be faster, that space is searched with the first, in the same processes."""

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.trial import TrialState

from tilescout.search import api
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines import complements
from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.export.decisions import Choice, best_of, judge
from tilescout.search.measure.measurement import Measurement, Timing
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import Race, RaceOptions, race_fastest
from tilescout.search.samplers import find_sampler
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.guided import SHIPPED
from tilescout.search.samplers.random import RandomSampler
from tilescout.search.studies.answers import fastest
from tilescout.search.studies.places import study_store
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.studies.sharing import SoleTuner
from tilescout.search.studies.trials import MEASUREMENT, finished_trials
from tilescout.search.tracking.suite import suite_metrics
from tilescout.search.tuning import duel, problem_search, study
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import SuiteInterrupted, tune_suite
from tilescout.spaces import templates
from tilescout.spaces.devices import DEVICES, find_device
from tilescout.spaces.errors import BuildError, ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import complement_of, find_template

PROBLEM, H200 = GemmProblem(32, 48, 40), find_device("h200")
OPTIONS = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0), timeout=60)


@pytest.fixture(scope="module")
def engine(plain_gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine of kernels whose complement are those with scratch memory."""
    store = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(templates._BUILT_IN, "scratch_gemm", "plain_gemm:SCRATCH")
        patch.setitem(DEVICES, "host", plain_gemm.HOST)
        patch.setattr(plain_gemm.PlainGemmTemplate, "complement", "scratch_gemm")
        patch.setattr(plain_gemm.ScratchGemmTemplate, "complements", lambda self, problem, device: True)
        with LocalEngine(plain_gemm.TEMPLATE, store, ["cpu"], plain_gemm.HOST, OPTIONS) as engine:
            yield engine


def asked(engine: Engine, problem: GemmProblem, trials: int, folder: Path) -> TuneOptions:
    first = [engine.space(problem).index({"fault": "nothing", "repeats": repeats}) for repeats in (2, 4)]
    return TuneOptions("random", 0, Budget(trials), folder, first=first, race=RaceOptions(look=3, looks=1))


def test_both_are_searched_and_the_faster_one_is_the_answer_and_what_is_exported(
    engine: Engine, tmp_path: Path
) -> None:
    results = tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path))

    assert [result.info.space for result in results] == ["plain_gemm", "scratch_gemm"]
    assert [len(result.trials) for result in results] == [2, 2]
    assert all(result.race is not None and result.wall["turn"] >= 0 for result in results)
    assert all(sum(result.wall.values()) <= result.seconds + 1e-6 for result in results)
    held = study_store(tmp_path).results()
    assert len(held) == 2
    answer = fastest(results)
    times = [result.best.measurement.timing.ratio for result in results]  # type: ignore[union-attr]
    assert results.index(answer) == times.index(min(times))
    outcomes = [judge(record, {each.name: each for each in found(engine)}) for record in held.values() if record]
    (chosen,) = best_of(outcomes)
    # What is not proven to be as fast as the library is not exported where the other one is.
    proven = [outcome.space for outcome in outcomes if outcome.choice is Choice.OURS]
    assert chosen.space == (answer.info.space if answer.info.space in proven or not proven else proven[0])
    assert engine.measure(0, []).result() == []  # the first engine still has its processes


def test_the_race_of_each_space_knows_the_fastest_of_the_other(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[float, float]] = []  # the fastest of its own, and that of the other

    def race(timed: Mapping[int, Timing], *arguments: Any) -> Race:
        heard.append((min(timing.ratio for timing in timed.values()), arguments[-1]))
        return race_fastest(timed, *arguments)

    monkeypatch.setattr(study, "race_fastest", race)
    tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path))

    (first, second) = heard
    assert first == second[::-1]


def found(engine: Engine) -> list[templates.KernelTemplate]:
    return [engine.template, find_template("scratch_gemm")]


def test_the_first_space_is_the_first_of_both_whichever_study_is_set_up_sooner(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, searched = problem_search.ProblemSearch._search, list[str]()

    def search_later(self: problem_search.ProblemSearch, lane: Lane, budget: Budget) -> str | None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._lanes, 60)  # the second one's
        stopped = search(self, lane, budget)
        searched.extend(each.space.name for each in self._lanes)
        return stopped

    monkeypatch.setattr(problem_search.ProblemSearch, "_search", search_later)
    tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path))
    assert searched == ["plain_gemm", "scratch_gemm"]


@pytest.mark.parametrize("spaces", [("plain_gemm", "scratch_gemm"), ("plain_gemm",)])
def test_one_call_tunes_both_spaces_tells_of_each_and_answers_with_the_faster_one(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spaces: Sequence[str]
) -> None:
    scratch = type(find_template("scratch_gemm"))
    monkeypatch.setattr(scratch, "complements", lambda self, problem, device: len(spaces) > 1)
    monkeypatch.setattr(api, "make_engine", lambda *_, **__: nullcontext(engine))  # of this host, without a GPU
    monkeypatch.setattr(api, "get_ready", lambda *_, **__: None)
    told: list[StudyResult] = []
    trials: list[TrialRecord] = []

    answer = api.tune(
        engine.template,
        str(PROBLEM),
        sampler="random",
        budget=2,
        first=lambda template, space: [space.index({"fault": "nothing", "repeats": 2})],
        race=RaceOptions(look=3, looks=1),
        store=tmp_path,
        mlflow=False,
        on_trial=trials.append,
        on_result=told.append,
    )

    assert [result.info.space for result in told] == list(spaces)
    assert answer.info.name == fastest(told).info.name
    assert len(trials) == sum(len(result.trials) for result in told) == 2


class Told(RandomSampler):
    """Notes the model that it is given in each space."""

    heard: ClassVar[dict[str, object]] = {}

    def __init__(self, space: SearchSpace | None = None, seed: int | None = None, model: object = None) -> None:
        super().__init__(space, seed)
        if space is not None:
            self.heard[space.name] = model


@pytest.mark.parametrize("model", ["file", "folder", SHIPPED, None])
def test_a_named_model_is_of_the_first_space_and_a_folder_of_models_of_both(
    engine: Engine, tmp_path: Path, model: str | None
) -> None:
    given = {"file": tmp_path / "plain_gemm-host.npz", "folder": tmp_path}.get(model or "", model)
    options = replace(asked(engine, PROBLEM, 4, tmp_path), sampler=Told, settings={"model": given})

    tune_suite(engine, [PROBLEM], options)

    assert Told.heard == {"plain_gemm": given, "scratch_gemm": SHIPPED if model == "file" else given}


@pytest.mark.slow
def test_a_suite_searches_both_spaces_of_a_problem_and_its_figures_are_of_the_faster_answers(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scratch, small = type(find_template("scratch_gemm")), GemmProblem(8, 48, 40)
    monkeypatch.setattr(scratch, "complements", lambda self, problem, device: problem == PROBLEM)
    options = asked(engine, small, 8, tmp_path)
    told: list[list[StudyResult]] = []

    results = tune_suite(engine, [PROBLEM, small], options, on_results=told.append)

    about = [(result.info.space, result.info.problem) for result in results]
    assert about == [("plain_gemm", PROBLEM), ("scratch_gemm", PROBLEM), ("plain_gemm", small)]
    assert [len(result.trials) for result in results] == [2, 2, 4]
    figures = suite_metrics(results)
    assert (figures["problems"], figures["solved_problems"], figures["trials"]) == (2, 2, 8)
    best = [fastest(found).best for found in (results[:2], results[2:])]
    ratios = [each.measurement.timing.ratio for each in best]  # type: ignore[union-attr]
    assert figures["mean_speedup_over_library"] == pytest.approx((ratios[0] * ratios[1]) ** -0.5)

    monkeypatch.setattr(scratch, "check", refuse)
    with caplog.at_level(logging.WARNING, "tilescout"):
        left = tune_suite(engine, [PROBLEM, small], options, on_results=told.append)
    assert "the second search failed: not today" in caplog.text
    alone = tune_suite(engine, [PROBLEM, small], options, on_results=told.append, complement=False)
    assert [len(found) for found in (*told, left, alone)] == [3, 2, 2, 2, 2]


@pytest.mark.parametrize("when", ["before a look", "at the end of a turn"])
def test_a_second_space_whose_study_another_tuner_spoils_ends_alone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    tuners, spoilt = list[SoleTuner](), list[SoleTuner]()

    def spoil(now: str) -> None:
        for tuner in tuners:
            if now == when and not spoilt and finished_trials(tuner._study, tuner._space):
                trial = tuner._study.ask()
                trial.set_user_attr(MEASUREMENT, {"status": "no such"})
                tuner._study.tell(trial, state=TrialState.FAIL)
                spoilt.append(tuner)

    def look(tuner: SoleTuner) -> tuple[list[TrialRecord], int]:
        if tuner._space.name == "scratch_gemm":
            tuners[:] = [tuner]
            spoil("before a look")
            finished_trials(tuner._study, tuner._space)
        return [], 0

    monkeypatch.setattr(SoleTuner, "look", look)
    with caplog.at_level(logging.WARNING, "tilescout"):
        [found] = tune_suite(
            engine,
            [PROBLEM],
            asked(engine, PROBLEM, 4, tmp_path),
            slice=2,
            on_trial=lambda problem, trial: spoil("at the end of a turn"),
        )
    assert spoilt
    assert found.info.space == "plain_gemm"
    assert len(found.trials) == 3
    assert "the second search failed: trial 1 of the study is damaged" in caplog.text


def test_a_second_space_that_fails_late_ends_alone(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait = Evaluator.wait

    def fail(evaluator: Evaluator) -> list[tuple[int, Measurement]]:
        if evaluator.template.name == "scratch_gemm":
            raise BuildError("no compiler is left")
        return wait(evaluator)

    monkeypatch.setattr(Evaluator, "wait", fail)
    with caplog.at_level(logging.WARNING, "tilescout"):
        [found] = tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path), slice=2)
    assert found.info.space == "plain_gemm"
    assert len(found.trials) == 4
    assert "the second search failed: no compiler is left" in caplog.text


@pytest.mark.parametrize("where", [(Evaluator, "wait"), (SpaceSampler, "get_ready")])
def test_a_first_space_that_fails_ends_both_searches_with_its_error_alone(
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: tuple[type[Evaluator | SpaceSampler], str],
) -> None:
    owner, name = where
    call = getattr(owner, name)

    def fail(self: Evaluator | SpaceSampler) -> object:
        if self.space.name == "plain_gemm":
            raise BuildError("no compiler is left")
        return call(self)

    monkeypatch.setattr(owner, name, fail)
    with caplog.at_level(logging.WARNING, "tilescout"), pytest.raises(BuildError, match="no compiler is left"):
        tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path))
    assert caplog.text == ""


def test_ctrl_c_in_mid_search_hands_out_what_both_spaces_have(engine: Engine, tmp_path: Path) -> None:
    shown = itertools.count(1)

    def interrupt(problem: Problem, trial: TrialRecord) -> None:
        if next(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(SuiteInterrupted) as stopped:
        tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 40, tmp_path), on_trial=interrupt)
    assert [result.info.space for result in stopped.value.results] == ["plain_gemm", "scratch_gemm"]
    assert 3 <= sum(len(result.trials) for result in stopped.value.results) < 40


Rounds = Callable[[Evaluator, Sequence[int]], Sequence[float]]


def rigged(monkeypatch: pytest.MonkeyPatch, ratios: Rounds) -> None:
    """Have the kernels of a race run, and tell these times over the library's instead of their own."""
    race = Evaluator.race

    def told(evaluator: Evaluator, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        told = np.asarray(ratios(evaluator, indices))
        return np.broadcast_to(told, race(evaluator, indices, rounds, pairs, seed).shape)

    monkeypatch.setattr(Evaluator, "race", told)


@pytest.mark.parametrize("candidates", [6, 1])
def test_answers_of_two_spaces_are_told_apart_by_rounds_in_which_both_ran(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, candidates: int
) -> None:
    def ratios(evaluator: Evaluator, indices: Sequence[int]) -> list[float]:
        if min(indices) < 0:  # what is not of the space is the answer of the other one
            return [1.25 if index < 0 else 1.5 for index in indices]
        return [1.25 if evaluator.template.name == "plain_gemm" else 1.5] * len(indices)

    rigged(monkeypatch, ratios)
    options = replace(asked(engine, PROBLEM, 4, tmp_path), race=RaceOptions(candidates, look=3, looks=1, within=1e3))
    with caplog.at_level(logging.INFO, "tilescout"):
        plain, scratch = tune_suite(engine, [PROBLEM], options)

    assert fastest([plain, scratch]) is scratch
    assert "of both answers, that of scratch_gemm is faster by 20.0 %" in caplog.text
    for result, ratio in (plain, 1.5), (scratch, 1.25):
        assert result.race is not None
        assert result.race.ratios[result.race.answer].value == pytest.approx(ratio)
        assert result.race.ran[result.race.answer] == result.race.rounds == 6
    named = {each.name: each for each in found(engine)}
    (chosen,) = best_of([judge(record, named) for record in study_store(tmp_path).results().values() if record])
    assert chosen.space == "scratch_gemm"


def test_neither_answer_wins_their_race_before_the_fewest_heats(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ratios(evaluator: Evaluator, indices: Sequence[int]) -> list[float]:
        own = 1.25 if evaluator.template.name == "plain_gemm" else 1.5
        return [1.5 if index < 0 else own for index in indices]

    rigged(monkeypatch, ratios)
    races: list[Race] = []

    def race(*arguments: Any, **options: Any) -> Race:
        races.append(race_fastest(*arguments, **options))
        return races[-1]

    monkeypatch.setattr(duel, "race_fastest", race)
    options = RaceOptions(candidates=1, look=3, looks=9, fewest=5, within=1e3)
    plain, scratch = tune_suite(engine, [PROBLEM], replace(asked(engine, PROBLEM, 4, tmp_path), race=options))

    [met] = races
    assert met.rounds == 3 * 5  # the first one is far ahead, and would have won at once if it were the safer one
    assert fastest([plain, scratch]) is plain


@pytest.mark.parametrize("apart", [True, False])
def test_answers_that_are_far_apart_or_can_not_be_measured_again_keep_their_times(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, apart: bool
) -> None:
    def ratios(evaluator: Evaluator, indices: Sequence[int]) -> list[float]:
        if min(indices) < 0:
            assert not apart
            raise CannotMeasureError("the GPU has gone")
        return [1.25 if apart and evaluator.template.name == "plain_gemm" else 1.5] * len(indices)

    rigged(monkeypatch, ratios)
    with caplog.at_level(logging.WARNING, "tilescout"):
        results = tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path))
    assert [result.race.rounds for result in results if result.race is not None] == [3, 3]
    assert ("the answers of both spaces did not race: the GPU has gone" in caplog.text) is not apart


def test_ctrl_c_in_the_race_of_both_answers_loses_no_race_before(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ratios(evaluator: Evaluator, indices: Sequence[int]) -> list[float]:
        if min(indices) < 0:
            raise KeyboardInterrupt
        return [1.25] * len(indices)

    rigged(monkeypatch, ratios)
    with pytest.raises(SuiteInterrupted) as stopped:
        tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path))
    assert [result.race.rounds for result in stopped.value.results if result.race is not None] == [3, 3]


def test_an_answer_waits_for_no_second_space_whose_race_fails(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ratios(evaluator: Evaluator, indices: Sequence[int]) -> list[float]:
        if evaluator.template.name == "scratch_gemm":
            raise BuildError("no compiler is left")
        return [1.25] * len(indices)

    rigged(monkeypatch, ratios)
    with caplog.at_level(logging.WARNING, "tilescout"):
        [only] = tune_suite(engine, [PROBLEM], asked(engine, PROBLEM, 4, tmp_path))
    assert only.info.space == "plain_gemm"
    assert only.race is not None
    assert only.race.rounds == 3
    assert "the second search failed: no compiler is left" in caplog.text


class Brief(find_sampler("random")):  # type: ignore[misc]
    """Has enough after a trial."""

    def done(self, study: optuna.Study) -> str | None:
        return "enough" if self.outcomes(study)[1].size else None


@pytest.mark.slow
@pytest.mark.parametrize("spare", [1, 10_000])
def test_both_spaces_are_set_up_side_by_side_where_cores_are_idle_and_the_first_is_compiled_first(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int
) -> None:
    monkeypatch.setattr(complements, "SPARE", spare)
    happened: list[str] = []
    second_ready = threading.Event()
    begin, get_ready = study._compile_first, Brief.get_ready

    def compile_first(evaluator: Evaluator, sampler: SpaceSampler, options: TuneOptions) -> None:
        if spare == 1 and not happened:
            assert second_ready.wait(120)  # it does not wait for the first one
        happened.append(evaluator.template.name)
        begin(evaluator, sampler, options)

    def note_ready(sampler: Brief) -> None:
        if sampler.space.name == "scratch_gemm":
            second_ready.set()
        get_ready(sampler)

    monkeypatch.setattr(study, "_compile_first", compile_first)
    monkeypatch.setattr(Brief, "get_ready", note_ready)
    options = TuneOptions(Brief, 0, Budget(8), tmp_path, race=RaceOptions(look=3, looks=1))
    results = tune_suite(engine, [PROBLEM], options)
    assert [result.info.space for result in results] == ["plain_gemm", "scratch_gemm"]
    assert happened == ["plain_gemm", "scratch_gemm"]


@pytest.mark.slow
def test_of_a_suite_two_spaces_are_prepared_at_a_time_where_cores_are_idle(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complements, "SPARE", 1)
    get_ready, both, counting = Brief.get_ready, threading.Barrier(2), threading.Lock()
    preparing, most = set[str](), list[int]()

    def note(sampler: Brief) -> None:
        what = f"{sampler.space.name} {sampler.space.problem}"
        with counting:
            preparing.add(what)
            most.append(len(preparing))
        with suppress(threading.BrokenBarrierError):
            both.wait(1)  # for another one
        get_ready(sampler)
        with counting:
            preparing.remove(what)

    monkeypatch.setattr(Brief, "get_ready", note)
    problems = [PROBLEM, replace(PROBLEM, m=48), replace(PROBLEM, m=64)]
    options = TuneOptions(Brief, 0, Budget(12), tmp_path, race=RaceOptions(look=3, looks=1))
    results = tune_suite(engine, problems, options)
    assert [result.info.problem for result in results] == [each for each in problems for _ in range(2)]
    assert max(most) == 2


def test_nothing_is_compiled_ahead_where_the_next_turn_is_there_at_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[int] = []
    monkeypatch.setattr(problem_search.ProblemSearch, "_compile_ahead", lambda self: ahead.append(self.number))
    options = asked(engine, PROBLEM, 4, tmp_path)
    [result] = tune_suite(engine, [PROBLEM], options, slice=1, complement=False)
    assert len(result.trials) == 4
    assert ahead == []


def refuse(*_: object) -> None:
    raise ProblemError("not today")


@pytest.mark.parametrize("problem", ["1x128x64", "7x8192x8192:e4m3", "282x320x24896", "256x4096x14336"])
def test_the_gemm_has_a_complement_on_products_of_all_rows(problem: str) -> None:
    template = find_template("gemm_sm90")
    other = complement_of(template, template.parse(problem), H200)
    assert other is not None
    assert other.name == "gemm_streamk_sm90"
