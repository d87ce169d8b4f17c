"""The search loop with an evaluator that prunes, as a live one does, and a race at the end."""

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.trial import TrialState

from tests.search.tuning.pruned_table import DEFAULT, LIBRARY_US, PROBLEM, TEMPLATE, ShuffledEvaluator
from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure import race
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import ProtocolOptions, is_pruned
from tilescout.search.measure.race import Race, run_race
from tilescout.search.samplers import SAMPLERS, gp, make_sampler, tpe
from tilescout.search.samplers.random import RandomSampler
from tilescout.search.studies.journal_folder import JournalFolder, open_study
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.studies.trials import finished_trials
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.loop import run
from tilescout.search.tuning.study import SearchInterrupted, TuneOptions, run_study
from tilescout.search.tuning.trackers import NoTracker
from tilescout.spaces.errors import StoreError


class PruningEvaluator(Evaluator):
    """Answers from a table, prunes by the protocol's rule, and races with a little noise."""

    measures_anew = True

    def __init__(self, table: Table) -> None:
        engine = ReplayEngine(table, TEMPLATE)
        super().__init__(engine, PROBLEM)
        self.recording = engine.recording(PROBLEM)
        self.asked: list[tuple[int, float | None]] = []
        self.raced: list[list[int]] = []
        self.noise = 0.001
        self.default = self.space.index(DEFAULT)

    def submit(self, index: int, incumbent: float | None = None) -> None:
        self.asked.append((index, incumbent))
        super().submit(index)

    def wait(self) -> list[tuple[int, Measurement]]:
        [(index, measurement)] = super().wait()
        incumbent = self.asked[-1][1]
        if measurement.timing is not None and is_pruned([measurement.timing.ratio], incumbent, ProtocolOptions()):
            measurement = replace(measurement, status=Status.PRUNED, timing=None, gpu_seconds=0.001)
        return [(index, measurement)]

    def ratio(self, index: int) -> float:
        return self.recording.measurement(index).time_us / LIBRARY_US

    def race(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        self.raced.append(list(indices))
        noise = np.exp(self.noise * np.random.default_rng(seed).standard_normal((rounds, len(indices))))
        return np.asarray(np.array([self.ratio(index) for index in indices]) * noise)


Search = Callable[..., tuple[StudyResult, PruningEvaluator]]
Searched = Callable[[str], tuple[StudyResult, PruningEvaluator, Path]]


def search_in(
    folder: Path, table: Table, sampler: str, trials: int = 40, seed: int = 0, resume: bool = False
) -> tuple[StudyResult, PruningEvaluator]:
    """A search with the evaluator that prunes, whose study is kept in a folder."""
    with PruningEvaluator(table) as evaluator:
        options = TuneOptions(sampler, seed, Budget(trials=trials, whole=True), folder, resume)
        return run_study(evaluator, options), evaluator


@pytest.fixture
def search(table: Table, tmp_path: Path) -> Search:
    """A function: `search_in` the test's folder."""

    def search(sampler: str, **options: Any) -> tuple[StudyResult, PruningEvaluator]:
        return search_in(tmp_path / "studies", table, sampler, **options)

    return search


@pytest.fixture(scope="module")
def searched(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A function: a search by a sampler, made once, which several tests look at, and the folder of its study."""

    @functools.cache
    def searched(sampler: str) -> tuple[StudyResult, PruningEvaluator, Path]:
        folder = tmp_path_factory.mktemp("studies")
        return (*search_in(folder, table, sampler), folder)

    return searched


@pytest.mark.slow
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_pruned_trials_are_trials_and_no_failures(searched: Searched, sampler: str) -> None:
    result, _, folder = searched(sampler)
    ends = [trial.measurement.status for trial in result.trials]

    assert len({trial.index for trial in result.trials}) == len(result.trials) == 40
    assert ends.count(Status.PRUNED) >= 5
    described = result.to_dict()
    assert described["pruned_trials"] == ends.count(Status.PRUNED)
    assert described["failed_trials"] == ends.count(Status.WRONG)
    study = JournalFolder(folder).load(result.info.name)
    states = {Status.OK: TrialState.COMPLETE, Status.PRUNED: TrialState.PRUNED, Status.WRONG: TrialState.FAIL}
    assert [trial.state for trial in study.trials] == [states[end] for end in ends]
    for frozen, trial in zip(study.trials, result.trials, strict=True):
        assert frozen.value == (None if trial.measurement.failed else pytest.approx(trial.measurement.pilot_us))


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_the_default_is_measured_in_full_and_every_other_against_the_best_so_far(
    searched: Searched, sampler: str
) -> None:
    result, evaluator, _ = searched(sampler)
    best = np.inf
    for trial, (index, incumbent) in zip(result.trials, evaluator.asked, strict=True):
        assert trial.index == index
        if index == evaluator.default:
            assert incumbent is None
        else:
            assert incumbent == best
        if trial.measurement.timing is not None:
            best = min(best, trial.measurement.timing.ratio)

    assert result.default is not None
    assert result.default.number == 0
    assert result.default.measurement.ok


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_the_same_seed_gives_the_same_trials_pruned_or_not(searched: Searched, search: Search, sampler: str) -> None:
    first, second = searched(sampler)[0], search(sampler)[0]

    assert [trial.index for trial in first.trials] == [trial.index for trial in second.trials]
    assert [trial.measurement for trial in first.trials] == [trial.measurement for trial in second.trials]
    assert first.race is not None
    assert second.race is not None
    assert first.race.ratios == second.race.ratios


def test_what_is_wanted_in_full_is_never_given_an_incumbent(table: Table, tmp_path: Path) -> None:
    with PruningEvaluator(table) as evaluator:
        sampler, wanted = make_sampler("exhaustive", evaluator.space, 0), range(0, len(evaluator.space), 2)
        with open_study(tmp_path / "study.journal", sampler) as study:
            run(study, evaluator, Budget(), LIBRARY_US, lambda trial: None, in_full=wanted)
            ends = {trial.index: trial.measurement.status for trial in finished_trials(study, evaluator.space)}

    assert len(ends) == len(evaluator.space)
    for index, incumbent in evaluator.asked[1:]:
        assert (incumbent is None) == (index in wanted)
    assert Status.PRUNED in ends.values()
    assert all(ends[index] is not Status.PRUNED for index in wanted)


def test_a_resumed_search_goes_on_with_the_best_so_far(search: Search) -> None:
    first, _ = search("random", trials=15)
    best = min(trial.measurement.timing.ratio for trial in first.trials if trial.measurement.timing is not None)

    whole, evaluator = search("random", trials=30, resume=True)

    assert list(whole.trials[:15]) == list(first.trials)
    assert len(evaluator.asked) == 15
    assert evaluator.asked[0][1] == best
    assert all(incumbent is not None and incumbent <= best for _, incumbent in evaluator.asked)


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "module"), [("tpe", tpe), ("gp", gp)])
def test_models_start_after_so_many_timed_or_pruned_trials_and_learn_from_both(
    search: Search, monkeypatch: pytest.MonkeyPatch, sampler: str, module: object
) -> None:
    model = tpe._TPEAmong if module is tpe else gp._GPAmong
    fitted_at: list[int] = []
    method = "sample_relative" if module is tpe else "_sample_relative_impl"
    original = getattr(model, method)

    def spy(self: object, study: optuna.Study, *rest: object) -> object:
        fitted_at.append(sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False)))
        return original(self, study, *rest)

    monkeypatch.setattr(model, method, spy)
    result, _ = search(sampler)

    counted = np.cumsum([not trial.measurement.failed for trial in result.trials])
    startup = make_sampler(sampler).option["startup"]
    first = int(np.flatnonzero(counted >= startup)[0]) + 1
    assert fitted_at[0] == first
    assert any(trial.measurement.status is Status.PRUNED for trial in result.trials[:first])
    ratios = [(trial.measurement.pilot_us or np.inf) / LIBRARY_US for trial in result.trials]
    assert np.isfinite(ratios[first:]).sum() > 10


def test_the_answer_is_that_of_the_race_with_its_interval(search: Search) -> None:
    result, evaluator = search("exhaustive", trials=121)
    times = [evaluator.ratio(index) for index in range(len(evaluator.space))]

    assert result.race is not None
    assert result.best is not None
    assert evaluator.default in evaluator.raced[0]
    assert result.best.index == result.race.answer
    assert times[result.best.index] <= 1.002 * min(times)
    timing = result.best.measurement.timing
    assert timing is not None
    raced = result.race.ratios[result.best.index]
    assert (timing.ratio, timing.ratio_low, timing.ratio_high) == (raced.value, raced.low, raced.high)
    described = result.to_dict()
    assert described["race"]["answer"] == result.best.number
    assert described["race"]["verdict"].startswith("proven at least as fast as the default")
    assert described["best"]["interval_us"] == [raced.low * LIBRARY_US, raced.high * LIBRARY_US]
    assert result.gpu_seconds > sum(trial.measurement.gpu_seconds for trial in result.trials)


def test_a_race_is_read_back_as_it_was_found(search: Search, tmp_path: Path) -> None:
    result, _ = search("random")
    (journal,) = (tmp_path / "studies").glob("*.journal")
    numbers = {trial.index: trial.number for trial in result.trials}
    race = read_study(str(journal), tmp_path).race

    assert race is not None
    assert result.race is not None
    assert race.ran == {numbers[index]: rounds for index, rounds in result.race.ran.items()}
    assert race.ran[numbers[result.race.winner]] == race.rounds
    assert race.ratios == {numbers[index]: ratio for index, ratio in result.race.ratios.items()}
    assert (race.answer, race.gpu_seconds) == (numbers[result.race.answer], result.race.gpu_seconds)


def test_what_a_race_makes_of_its_rounds_is_not_the_gpus_time(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Race:
        time.sleep(2)
        return run_race(*arguments)

    monkeypatch.setattr(race, "run_race", slow)
    result, _ = search("random")

    assert result.race is not None
    assert 0 < result.race.gpu_seconds < 2
    assert result.account["race"] == result.race.gpu_seconds


def test_only_what_is_close_to_the_best_races_and_the_default_always(search: Search) -> None:
    result, evaluator = search("exhaustive", trials=121)
    options = TuneOptions("exhaustive", 0, Budget(), Path()).race
    best = min(trial.measurement.timing.ratio for trial in result.trials if trial.measurement.timing is not None)

    started = evaluator.raced[0]
    assert len(started) <= options.candidates + 1
    assert all(evaluator.ratio(index) <= best * (1 + options.within) * 1.001 for index in started[:-1])
    assert started[-1] == evaluator.default
    assert all(evaluator.default in indices for indices in evaluator.raced)


def test_where_nothing_can_be_measured_anew_the_best_measured_is_the_answer(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PruningEvaluator, "measures_anew", False)
    result, evaluator = search("random")

    assert not evaluator.raced
    assert result.race is None
    assert not result.not_raced
    assert result.best is not None
    assert result.best.measurement.time_us == min(trial.measurement.time_us for trial in result.trials)


def test_a_race_that_breaks_off_proves_nothing_and_the_default_is_the_answer(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NDArray[np.float64]:
        raise CannotMeasureError("the race ended early: the measuring process died")

    monkeypatch.setattr(PruningEvaluator, "race", refuse)
    result, evaluator = search("random")

    assert result.race is None
    assert result.not_raced == "the race ended early: the measuring process died"
    assert result.best is not None
    assert result.best.index == evaluator.default
    assert result.to_dict()["not_raced"] == result.not_raced


def test_ctrl_c_in_the_race_keeps_what_the_search_found(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NDArray[np.float64]:
        raise KeyboardInterrupt

    monkeypatch.setattr(PruningEvaluator, "race", interrupted)
    with pytest.raises(SearchInterrupted) as ended:
        search("random")

    result = ended.value.result
    assert result.race is None
    assert result.best is not None
    assert result.best.measurement.time_us == min(trial.measurement.time_us for trial in result.trials)


@pytest.mark.parametrize("sampler", ["guided", "tpe", "lfbo"])
def test_what_is_tried_does_not_depend_on_which_compiler_is_faster(table: Table, tmp_path: Path, sampler: str) -> None:
    tried = []
    for seed in (0, 1):
        with ShuffledEvaluator(table, seed) as evaluator:
            options = TuneOptions(sampler, 0, Budget(trials=20, whole=True), tmp_path / str(seed))
            tried.append([trial.index for trial in run_study(evaluator, options).trials])

    assert tried[0] == tried[1]


class Content(RandomSampler):
    """Random, content with ten trials, and sure that no more than three in flight are worth it."""

    lookahead = 8

    def done(self, study: optuna.Study) -> str | None:
        finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
        return "enough" if finished >= 10 else None

    def sated(self, study: optuna.Study) -> bool:
        return sum(trial.state is TrialState.RUNNING for trial in study.get_trials(deepcopy=False)) >= 3


def test_what_is_in_flight_when_the_sampler_ends_the_search_is_given_up_and_can_be_tried_later(
    table: Table, tmp_path: Path
) -> None:
    with ShuffledEvaluator(table, 0) as evaluator:
        options = TuneOptions(Content, 0, Budget(trials=30), tmp_path)
        result = run_study(evaluator, options)
    study = JournalFolder(tmp_path).load(result.info.name)

    assert result.stopped == "enough"
    assert len(result.trials) == 10
    assert evaluator.given_up == len(study.trials) - 10 == 2  # three in flight, of which one was told

    with ShuffledEvaluator(table, 0) as evaluator:
        every = len(evaluator.space)
        whole = run_study(evaluator, replace(options, budget=Budget(trials=every, whole=True), resume=True))
    assert len(whole.trials) == len({trial.index for trial in whole.trials}) == every


def test_an_outcome_that_waits_for_its_turn_is_not_lost_with_the_process(table: Table, tmp_path: Path) -> None:
    class Killed(ShuffledEvaluator):
        def wait(self) -> list[tuple[int, Measurement]]:
            if self.waits == 3:
                raise KeyboardInterrupt
            if not self.held:
                self.held = Evaluator.wait(self)  # the last is handed out first
            self.waits += 1
            return [self.held.pop()]

    options = TuneOptions("tpe", 0, Budget(trials=12), tmp_path)
    with Killed(table, 0) as evaluator, pytest.raises(SearchInterrupted):
        run_study(evaluator, options)
    with ShuffledEvaluator(table, 0) as again:
        result = run_study(again, replace(options, resume=True))

    assert len(result.trials) == 12
    assert again.submitted == 12 - 3


def test_a_search_goes_on_with_a_run_that_was_made_while_it_was_cut_short(table: Table, tmp_path: Path) -> None:
    continued: list[str | None] = []

    class MadeAtTheEnd(NoTracker):
        def __exit__(self, *exception: object) -> None:
            self.run_id = "a run"

    def make(info: object, run_id: str | None) -> NoTracker:
        continued.append(run_id)
        return MadeAtTheEnd()

    class Killed(ShuffledEvaluator):
        def wait(self) -> list[tuple[int, Measurement]]:
            raise KeyboardInterrupt

    options = TuneOptions("random", 0, Budget(trials=2), tmp_path)
    with Killed(table, 0) as evaluator, pytest.raises(SearchInterrupted):
        run_study(evaluator, options, make)
    with ShuffledEvaluator(table, 0) as again:
        run_study(again, replace(options, resume=True), make)

    assert continued == [None, "a run"]


class Gone(NoTracker):
    """Fails once the trials are done, when it is to take over those of tuners that are gone."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.adopted = error, 0

    def adopt(self, trials: Iterable[TrialRecord]) -> None:
        self.adopted += 1
        if self.adopted == 2:
            raise self.error


def test_a_tracker_that_fails_behind_the_trials_costs_no_result(table: Table, tmp_path: Path) -> None:
    tracker, options = Gone(StoreError("the server is gone")), TuneOptions("random", 0, Budget(trials=4), tmp_path)
    with ShuffledEvaluator(table, 0) as evaluator:
        result = run_study(evaluator, options, lambda info, run_id: tracker)

    assert (len(result.trials), result.not_tracked) == (4, "the server is gone")


def test_ctrl_c_right_behind_the_result_hands_it_out_whole(table: Table, tmp_path: Path) -> None:
    tracker, options = Gone(KeyboardInterrupt()), TuneOptions("random", 0, Budget(trials=4), tmp_path)
    told = list[StudyResult]()
    with ShuffledEvaluator(table, 0) as evaluator, pytest.raises(SearchInterrupted) as ended:
        run_study(evaluator, options, lambda info, run_id: tracker, on_result=told.append)

    assert ended.value.complete
    assert [ended.value.result] == told


def test_what_is_known_of_the_librarys_best_is_kept_where_a_search_is_interrupted(table: Table, tmp_path: Path) -> None:
    def interrupt(trial: TrialRecord) -> None:
        raise KeyboardInterrupt

    options = TuneOptions("random", 0, Budget(trials=4), tmp_path)
    with ShuffledEvaluator(table, 0) as evaluator:
        whole = run_study(evaluator, options)
        with pytest.raises(SearchInterrupted) as ended:
            run_study(evaluator, options, on_trial=interrupt)

    assert whole.no_library_best
    assert ended.value.result.no_library_best == whole.no_library_best


def test_the_answer_is_known_before_the_tracker_has_it(table: Table, tmp_path: Path) -> None:
    heard: list[tuple[str, StudyResult]] = []

    class Slow(NoTracker):
        def finish(self, result: StudyResult) -> None:
            heard.append(("tracker", result))

    with ShuffledEvaluator(table, 0) as evaluator:
        options = TuneOptions("random", 0, Budget(trials=4), tmp_path)
        result = run_study(
            evaluator, options, lambda info, run_id: Slow(), on_result=lambda found: heard.append(("answer", found))
        )

    assert [who for who, _ in heard] == ["answer", "tracker"]
    assert all(found == result for _, found in heard)
