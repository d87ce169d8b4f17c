"""A search goes by the order of its asks and tells, not by a clock: that may be set back, or be another tuner's."""

import datetime
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import optuna
import pytest

from tests.search.tuning.pruned_table import LIBRARY_US, ShuffledEvaluator
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.search.samplers.joint import Joint
from tilescout.search.samplers.random import RandomSampler
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.sharing import SoleTuner
from tilescout.search.studies.trials import PLACE, SEEN, Count, mark, place_of, record_outcome, trial_record
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.loop import run, run_together
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.space import SearchSpace

NEVER = 1000  # trials


class Clock(datetime.datetime):
    """A clock that is some hours slow."""

    hours = 0

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "Clock":
        return super().now(tz) - datetime.timedelta(hours=cls.hours)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have studies in journals and in memory read `Clock`."""
    monkeypatch.setattr(Clock, "hours", 0)
    for storage in ("journal._storage", "_in_memory"):
        monkeypatch.setattr(f"optuna.storages.{storage}.datetime", Clock)


class SetBack:
    """Sets the clock back by an hour behind so many trials."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, trial: TrialRecord) -> None:
        self.left -= 1
        Clock.hours += self.left == 0


def searched(table: Table, folder: Path, after: int, runs: Sequence[int], sampler: str) -> tuple[list[int], str]:
    """The trials of a search whose clock is set back, and why it ended; each run has it to so many trials."""
    Clock.hours, set_back = 0, SetBack(after)
    for number, trials in enumerate(runs):
        options = TuneOptions(sampler, 0, Budget(trials=trials), folder, resume=number > 0)
        with ShuffledEvaluator(table, 0) as evaluator:
            result = run_study(evaluator, options, on_trial=set_back)
    return [trial.index for trial in result.trials], result.stopped


@pytest.mark.parametrize("runs", [(60,), (10, 60)], ids=["at once", "resumed"])
@pytest.mark.parametrize("sampler", ["guided", "guided-cold"])
def test_a_search_tries_the_same_and_ends_the_same(
    table: Table, tmp_path: Path, sampler: str, runs: Sequence[int]
) -> None:
    steady = searched(table, tmp_path / "steady", NEVER, runs, sampler)
    for after in (3, 9, 20):
        assert searched(table, tmp_path / str(after), after, runs, sampler) == steady


def searched_together(
    table: Table, after: int, runs: Sequence[int]
) -> tuple[str | None, list[tuple[int, int]], list[Sequence[Joint]]]:
    """Why the searches of two spaces ended, whose clock is set back, what they tried, and what each heard of both.

    Each run has them to so many trials.
    """
    Clock.hours, set_back = 0, SetBack(after)
    told, heard, joints = list[tuple[int, int]](), list[Sequence[Joint]](), [Joint(), Joint()]
    studies, stopped = [optuna.create_study(study_name=name) for name in ("first", "second")], None

    def tell(at: int, trial: TrialRecord) -> None:
        told.append((at, trial.index))
        set_back(trial)

    def see(found: Sequence[Joint]) -> None:
        joints[:] = found
        heard.append(found)

    for trials in runs:
        lanes = list[Lane]()
        for at, study in enumerate(studies):
            evaluator = ShuffledEvaluator(table, at)
            study.sampler = GuidedSampler(evaluator.space, 0, joint=partial(joints.__getitem__, at))
            lanes.append(Lane(study, evaluator, LIBRARY_US, partial(tell, at), (), SoleTuner(study, evaluator.space)))
        stopped = run_together(lanes, Budget(trials=trials), see)
    return stopped, told, heard


@pytest.mark.parametrize("runs", [(60,), (10, 60), (5, 24, 60)], ids=["at once", "resumed", "resumed twice"])
def test_searches_of_several_spaces_try_the_same_and_end_the_same(table: Table, runs: Sequence[int]) -> None:
    steady = searched_together(table, NEVER, runs)
    for after in (3, 9, 20):
        assert searched_together(table, after, runs) == steady


class Beside(SoleTuner):
    """A tuner beside another one, which asks for a trial with each of this one's and tells it at once."""

    def __init__(self, study: optuna.Study, space: SearchSpace) -> None:
        super().__init__(study, space)
        self.news: list[TrialRecord] = []

    def begin(self, trial: optuna.Trial) -> None:
        other = self._study.ask()
        for knob in self._space.knobs:
            other.suggest_int(knob.name, 0, len(knob.values) - 1)
        mark(self._study, other, PLACE, Count(10 * other.number))
        record_outcome(self._study, other, Measurement(Status.CRASH, "it fell"))
        record = trial_record(self._study.get_trials(deepcopy=False)[other.number], self._space)
        assert record is not None
        self.news.append(record)

    def look(self) -> tuple[list[TrialRecord], int]:
        news, self.news = self.news, []
        return news, 0


def test_a_trial_has_its_place_behind_all_that_other_tuners_have_told_by_then(table: Table) -> None:
    shown = list[int]()
    with ShuffledEvaluator(table, 0) as evaluator:
        evaluator.capacity = 1
        study = optuna.create_study(sampler=RandomSampler(evaluator.space, 0))
        tuner = Beside(study, evaluator.space)
        run(study, evaluator, Budget(trials=6), LIBRARY_US, lambda trial: shown.append(trial.number), tuner=tuner)

    trials = study.get_trials(deepcopy=False)
    assert sorted(shown) == [trial.number for trial in trials]
    for own, other, before in zip(trials[::2], trials[1::2], [None, *trials[::2]], strict=False):
        assert place_of(own) == place_of(other) + 1
        assert own.system_attrs[SEEN] == (place_of(before) if before is not None else 0)
