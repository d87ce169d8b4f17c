"""A tuner that was silent for long was taken for dead, and goes on: what it had in flight is another's by then."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from tests.search.tuning.pruned_table import PROBLEM, SPACE, TEMPLATE, ShuffledEvaluator
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.random import RandomSampler
from tilescout.search.studies.database import Database
from tilescout.search.studies.journal_folder import open_study
from tilescout.search.studies.ledger import CLAIM
from tilescout.search.studies.optuna_hooks import set_system_attribute
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.trials import recover
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.errors import StoreError
from tilescout.spaces.space import Indices


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.db"


def take_over(url: str, lost: Callable[[FrozenTrial], bool] = lambda trial: True) -> None:
    """Settle what is in flight, as the heir of a tuner does."""
    database = Database(url)
    [name] = database.names()
    recover(optuna.load_study(study_name=name, storage=database.storage), SPACE, lost)


def at_trial(count: int, call: Callable[[], None]) -> Callable[[TrialRecord], None]:
    """A function that is called with trials, and calls something at so many of them."""
    seen = []

    def on_trial(trial: TrialRecord) -> None:
        seen.append(trial)
        if len(seen) == count:
            call()

    return on_trial


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe", "guided", "exhaustive"])
@pytest.mark.parametrize("count", [3, 6])
def test_it_tries_again_what_was_queued_for_others_and_nothing_twice(
    table: Table, url: str, sampler: str, count: int
) -> None:
    options = TuneOptions(sampler, 0, Budget(trials=20, whole=True), url)
    with ShuffledEvaluator(table, 0) as evaluator:
        result = run_study(evaluator, options, on_trial=at_trial(count, lambda: take_over(url)))

    assert len(result.trials) == len({trial.index for trial in result.trials}) == 20
    database = Database(url)
    trials = optuna.load_study(study_name=result.info.name, storage=database.storage).get_trials(deepcopy=False)
    assert not [trial for trial in trials if trial.state is TrialState.RUNNING]


class Overtaken(RandomSampler):
    """Random; the heir settles its fifth trial before that has a configuration."""

    proposals = 0
    url = ""

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        Overtaken.proposals += 1
        if Overtaken.proposals == 5:
            take_over(self.url, lambda other: other.number == trial.number)
        return super().propose(study, trial, free)


@pytest.mark.slow
def test_a_trial_that_is_settled_before_it_has_a_configuration_is_asked_for_anew(
    table: Table, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Overtaken, "url", url)
    monkeypatch.setattr(Overtaken, "proposals", 0)
    with ShuffledEvaluator(table, 0) as evaluator:
        result = run_study(evaluator, TuneOptions(Overtaken, 0, Budget(trials=10), url))

    assert len(result.trials) == 10
    assert Overtaken.proposals > 5


class Content(RandomSampler):
    """Random, and content with ten trials."""

    def done(self, study: optuna.Study) -> str | None:
        finished = sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))
        return "enough" if finished >= 10 else None


@pytest.mark.slow
def test_a_search_that_ends_gives_up_what_others_have_settled(table: Table, url: str) -> None:
    options = TuneOptions(Content, 0, Budget(trials=30), url)
    with ShuffledEvaluator(table, 0) as evaluator:
        result = run_study(evaluator, options, on_trial=at_trial(10, lambda: take_over(url)))

    assert result.stopped == "enough"


@pytest.mark.parametrize("ahead", [False, True])
def test_a_search_whose_study_was_replaced_meanwhile_ends_and_leaves_the_next_one_as_it_is(
    table: Table, url: str, ahead: bool
) -> None:
    database, begun = Database(url), list[optuna.Trial]()

    def replace_study() -> None:
        [name] = database.names()
        optuna.delete_study(study_name=name, storage=database.storage)
        study = database.open(name, False, optuna.samplers.RandomSampler(seed=1))
        begun.extend(study.ask() for _ in range(12))

    options = TuneOptions("random", 0, Budget(trials=10), url)
    evaluator = ShuffledEvaluator(table, 0) if ahead else Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM)
    with evaluator, pytest.raises(StoreError, match="was deleted while it was searched: start a new one"):
        run_study(evaluator, options, on_trial=at_trial(3, replace_study))

    [name] = database.names()
    study = database.load(name)
    assert [(trial.state, trial.params, trial.user_attrs) for trial in study.trials] == [
        (TrialState.RUNNING, {}, {})
    ] * 12
    assert study.user_attrs == {}


def resumed_with(table: Table, folder: Path, damage: Callable[[optuna.Study], None]) -> int:
    """The trials of a study of five that goes on to eight once it was damaged."""
    options = TuneOptions("random", 0, Budget(trials=5), folder)
    with Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM) as evaluator:
        name = run_study(evaluator, options).info.name
        with open_study(folder / f"{name}.journal", make_sampler("random", SPACE, 0)) as study:
            damage(study)
        return len(run_study(evaluator, replace(options, resume=True, budget=Budget(trials=8))).trials)


@pytest.mark.parametrize("claim", [[1], [1e300] * len(SPACE.knobs), [2**70] * len(SPACE.knobs), "text", 0.5, {"a": 1}])
def test_a_claim_that_is_none_is_nobodys(table: Table, tmp_path: Path, claim: object) -> None:
    def claimed(study: optuna.Study) -> None:
        trial = study.ask()
        set_system_attribute(study, study.get_trials(deepcopy=False)[trial.number], CLAIM, claim)

    assert resumed_with(table, tmp_path, claimed) == 8


@pytest.mark.filterwarnings("ignore:Fixed parameter")  # of optuna
@pytest.mark.parametrize("value", [-1, "text", None])
def test_a_queued_trial_of_no_configuration_is_told_of(table: Table, tmp_path: Path, value: object) -> None:
    queued = {knob.name: value for knob in SPACE.knobs}
    with pytest.raises(StoreError, match="damaged"):
        resumed_with(table, tmp_path, lambda study: study.enqueue_trial(queued))


def test_a_study_whose_description_is_none_is_told_of(table: Table, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is damaged .*: start a new one instead of going on"):
        resumed_with(table, tmp_path, lambda study: study.set_user_attr("about", 1))
