"""Searches of several spaces for one problem at the same time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from tests.search.tuning.pruned_table import LIBRARY_US, ShuffledEvaluator, measured
from tilescout.costmodel.arrays import Floats
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.measure.measurement import Measurement
from tilescout.search.samplers.base import SpaceSampler, distributions
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.search.samplers.joint import Joint, first_alike
from tilescout.search.samplers.random import RandomSampler
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.sharing import SoleTuner
from tilescout.search.studies.trials import (
    MEASUREMENT,
    PLACE,
    Count,
    codes,
    enqueue,
    mark,
    place_of,
    record_outcome,
    trial_record,
)
from tilescout.search.tables.table import Table
from tilescout.search.tuning import loop, tally
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.loop import run_together
from tilescout.spaces.errors import BuildError, StoreError, TilescoutError


class Hopeful(RandomSampler):
    """Random, and sure of what it gains."""

    lookahead = 8
    worth = 0.1

    def is_dear(self, index: int) -> bool:
        return self.worth > Doubtful.worth

    def gain(self, study: optuna.Study) -> float | None:
        return self.worth


class Doubtful(Hopeful):
    """The same, of less."""

    worth = 0.01


def lanes(table: Table, samplers: Sequence[SpaceSampler], seed: int) -> tuple[list[Lane], list[tuple[int, float]]]:
    """Two studies that are searched together, and the lane and ratio of each trial, filled as they finish."""
    found, told = [], list[tuple[int, float]]()
    for at, sampler in enumerate(samplers):
        evaluator = ShuffledEvaluator(table, seed + at)
        study = optuna.create_study(sampler=sampler.over(evaluator.space, 0))

        def tell(trial: TrialRecord, at: int = at) -> None:
            timing = trial.measurement.timing
            told.append((at, timing.ratio if timing is not None else math.inf))

        found.append(Lane(study, evaluator, LIBRARY_US, tell, (), SoleTuner(study, evaluator.space)))
    return found, told


def test_of_several_spaces_each_begins_and_then_the_one_goes_on_that_expects_to_gain_the_most(table: Table) -> None:
    searched, told = lanes(table, [Doubtful(), Hopeful()], 0)
    joints: list[Sequence[Joint]] = []

    run_together(searched, Budget(trials=20), joints.append)

    assert [at for at, _ in told] == [0, *[1] * 19]
    ratios = [ratio for _, ratio in told]
    assert joints[-1][0] == joints[-1][1]
    last = joints[-1][0]
    assert (last.trials, last.running, last.dear_running) == (20, 0, 0)
    assert last.dear == last.since > 0
    assert max(joint.dear_running for joint, _ in joints if joint.best_us) == 8
    assert last.best_us == pytest.approx(min(ratios) * LIBRARY_US)
    assert last.since == 19 - first_alike(np.array(ratios))


def test_of_trials_that_are_compiled_as_one_none_behind_the_first_is_dear(table: Table) -> None:
    searched, told = lanes(table, [Hopeful()], 0)
    evaluator, joints = searched[0].evaluator, list[Joint]()
    evaluator.kernels = np.zeros(len(evaluator.space), dtype=np.int64)

    run_together(searched, Budget(trials=20), lambda found: joints.append(found[0]))

    assert len(told) == 20
    assert joints[-1].since > 0
    assert not any(joint.dear or joint.dear_running for joint in joints)  # none is behind the best, if not the first


class Stocked(Hopeful):
    """Random, with all but each third kernel in the store; content with six trials."""

    def waits_for_compiler(self, index: int) -> bool:
        return index % 3 == 0

    def done(self, study: optuna.Study) -> str | None:
        return "enough" if sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False)) >= 6 else None


def test_stored_kernels_are_told_first_and_the_search_ends_once_those_are_told_that_it_began_with(table: Table) -> None:
    orders = []
    for seed in (0, 1):  # of the compilers
        (lane,), _ = lanes(table, [Stocked()], seed)
        told = list[int]()

        def tell(trial: TrialRecord, told: list[int] = told) -> None:
            told.append(trial.index)

        assert run_together([replace(lane, on_trial=tell)], Budget()) == "enough"
        content = 6
        assert all(index % 3 for index in told[:content])
        assert all(index % 3 == 0 for index in told[content:]), "what is not compiled was heard, though it is done"
        assert {index for index, _ in _states(lane)[: Stocked.lookahead]} <= set(told)
        given_up = {index for index, _ in _states(lane)} - set(told)
        assert given_up, "all in flight were heard, also those that the search needs no more"
        assert all(index % 3 for index in given_up)
        orders.append(told)

    assert orders[0] == orders[1]


def test_an_outcome_that_waits_for_a_compiler_is_heard_behind_two_look_aheads_at_most(table: Table) -> None:
    class Endless(Stocked):
        def done(self, study: optuna.Study) -> str | None:
            return None

        def waits_for_compiler(self, index: int) -> bool:
            return index == first

    (lane,), _ = lanes(table, [Endless()], 0)
    (probe,), _ = lanes(table, [Endless()], 0)
    first, told = -1, list[int]()
    run_together([probe], Budget(trials=1))
    first = _states(probe)[0][0]
    run_together([replace(lane, on_trial=lambda trial: told.append(trial.index))], Budget(trials=60))
    assert told.index(first) == 2 * Endless.lookahead


def _states(lane: Lane) -> list[tuple[int, TrialState]]:
    """The index of each trial, and how far it is."""
    trials = lane.study.get_trials(deepcopy=False)
    return [(int(lane.space.find(codes(lane.space, trial.params))), trial.state) for trial in trials]


def test_what_was_in_flight_or_queued_when_the_best_was_told_was_not_proposed_with_it_in_view(table: Table) -> None:
    searched, _ = lanes(table, [Hopeful()], 0)
    lane, joints = searched[0], list[Joint]()
    queued = np.argsort([table.measurement(row).timing is None for row in range(len(table))])[:12]
    for index in queued:
        enqueue(lane.study, lane.space, int(index))

    run_together(searched, Budget(trials=60), lambda found: joints.append(found[0]))

    ratios = [_ratio_of(trial) for trial in lane.study.trials]
    first = first_alike(np.array(ratios))  # a trial's number is its turn: the first of those in flight is told first
    blind = sum(number < max(12, first + Hopeful.lookahead) for number in range(first + 1, 60))
    assert (joints[-1].since, joints[-1].blind, joints[-1].blind_running) == (59 - first, blind, 0)
    assert blind < joints[-1].since
    known = [joint for joint in joints if joint.best_us]
    assert all(joint.blind_running <= joint.running and joint.blind <= joint.since for joint in known)
    assert known[0].blind_running == known[0].running


@pytest.mark.parametrize("first", [0, 1])
def test_what_was_tried_in_searches_of_their_own_counts_in_the_order_of_the_times(table: Table, first: int) -> None:
    searched, told = lanes(table, [RandomSampler(), RandomSampler()], 0)
    joints = list[Sequence[Joint]]()
    run_together([searched[first]], Budget(trials=40 if first else 25))
    run_together([searched[1 - first]], Budget(trials=25 if first else 40))

    run_together(searched, Budget(trials=65), joints.append)

    assert len(told) == 65
    best = first_alike(np.array([ratio for _, ratio in told]))
    assert joints[-1][0].since == 64 - best
    in_flight = searched[0].evaluator.capacity
    assert joints[-1][0].blind < in_flight


def _ratio_of(trial: FrozenTrial) -> float:
    timing = Measurement.from_dict(trial.user_attrs[MEASUREMENT]).timing
    return timing.ratio if timing is not None else math.inf


class Failing(ShuffledEvaluator):
    """Can't try anything any more once it was waited for so many times."""

    after = 3

    def wait(self) -> list[tuple[int, Measurement]]:
        if self.waits == self.after:
            raise BuildError("no compiler is left")
        return super().wait()


@pytest.mark.parametrize("samplers", [(Doubtful(), Hopeful()), (RandomSampler(), RandomSampler())])
def test_a_space_that_nothing_can_be_tried_in_any_more_ends_alone(
    table: Table, samplers: Sequence[SpaceSampler]
) -> None:
    (first, second), told = lanes(table, samplers, 0)
    errors = list[TilescoutError]()
    second = replace(second, evaluator=Failing(table, 1), errors=errors)

    run_together([first, second], Budget(trials=20))

    assert [str(error) for error in errors] == ["no compiler is left"]
    assert len(told) == 20
    assert [at for at, _ in told].count(1) == 3
    states = [trial.state for lane in (first, second) for trial in lane.study.trials]
    assert TrialState.RUNNING not in states
    assert states.count(TrialState.COMPLETE) + states.count(TrialState.FAIL) > 20  # some were given up


class Beside(SoleTuner):
    """A tuner beside another one, which tells trials while this one looks; `tell` is called with each look's number."""

    def __init__(self, lane: Lane, tell: Callable[["Beside", int], None]) -> None:
        super().__init__(lane.study, lane.space)
        self._lane, self._tell, self._looks, self._looked = lane, tell, 0, set[int]()

    def other(self, measurement: Measurement | None, place: int = 0) -> None:
        """Tell a trial of the other one; without a measurement one that can't be read."""
        trial = self._study.ask(dict(distributions(self._space)))
        trial.set_user_attr("other", True)
        if measurement is None:
            trial.set_user_attr(MEASUREMENT, {"status": "no such"})
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            mark(self._study, trial, PLACE, Count(place))
            record_outcome(self._study, trial, measurement)

    def look(self) -> tuple[list[TrialRecord], int]:
        self._looks += 1
        self._tell(self, self._looks)
        others = [trial for trial in self._study.get_trials(deepcopy=False) if "other" in trial.user_attrs]
        records = [trial_record(trial, self._space) for trial in others if trial.number not in self._looked]
        self._looked.update(trial.number for trial in others)
        return [record for record in records if record is not None], 0


@pytest.mark.parametrize("samplers", [(Doubtful(), Hopeful()), (RandomSampler(), RandomSampler())])
@pytest.mark.parametrize("look", range(2, 10))
def test_a_space_of_which_another_tuner_told_what_can_not_be_read_ends_alone(
    table: Table, samplers: Sequence[SpaceSampler], look: int
) -> None:
    def tell(tuner: Beside, looks: int) -> None:
        if looks == look - 1:
            tuner.other(measured(1.1))
        if looks == look:
            tuner.other(None)

    (first, second), told = lanes(table, samplers, 0)
    errors = list[TilescoutError]()
    second = replace(second, tuner=Beside(second, tell), errors=errors)

    run_together([first, second], Budget(trials=20))

    assert [isinstance(error, StoreError) for error in errors] == [True]
    assert len(told) == 20
    assert {trial.state for trial in (*first.study.trials, *second.study.trials)} == {
        TrialState.COMPLETE,
        TrialState.FAIL,
    }
    assert len(second.finished()) == [at for at, _ in told].count(1)

    run_together([first, second], Budget(trials=25))  # the next turn
    assert len(told) == 25
    assert len(errors) == 1


def test_a_trial_comes_behind_all_that_other_tuners_have_told_of_either_space(table: Table) -> None:
    (first, second), told = lanes(table, [Doubtful(), Hopeful()], 0)
    beside = Beside(first, lambda tuner, looks: tuner.other(measured(0.1), 50) if len(told) == 10 else None)
    joints = list[Sequence[Joint]]()

    run_together([replace(first, tuner=beside), second], Budget(trials=30), joints.append)

    assert [at for at, _ in told] == [0, *[1] * 9, 0, *[1] * 19]  # the budget is that of both tuners
    assert told[10] == (0, 0.1)
    assert sorted(map(place_of, second.study.trials)) == [*range(2, 11), *range(51, 70)]
    assert joints[-1][0].best_us == pytest.approx(0.1 * LIBRARY_US)
    assert (joints[-1][0].since, joints[-1][0].blind) == (19, 8)  # of these, as many as were in flight


def test_what_has_arrived_is_not_lost_where_another_space_ends_the_search(table: Table) -> None:
    (first, second), told = lanes(table, [RandomSampler(), RandomSampler()], 0)
    failing = Failing(table, 1)
    failing.after = 0

    with pytest.raises(BuildError):
        run_together([first, replace(second, evaluator=failing)], Budget(trials=20))

    assert told == []
    assert sum(MEASUREMENT in trial.user_attrs for trial in first.study.trials) == 1


class AtOnce(ShuffledEvaluator):
    """Hands out all that is in flight at once."""

    def wait(self) -> list[tuple[int, Measurement]]:
        found = list[tuple[int, Measurement]]()
        while self._in_flight:
            found += Evaluator.wait(self)
        return found


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("of a callback")])
def test_what_has_arrived_is_not_lost_where_a_callback_ends_the_search(table: Table, error: BaseException) -> None:
    (lane,), told = lanes(table, [RandomSampler()], 0)

    def tell(trial: TrialRecord) -> None:
        lane.on_trial(trial)
        if len(told) == 2:
            raise error

    with pytest.raises(type(error)):
        run_together([replace(lane, evaluator=AtOnce(table, 0), on_trial=tell)], Budget(trials=20))

    assert len(told) == 2
    trials = lane.study.trials
    assert len(trials) == 8
    assert all(MEASUREMENT in trial.user_attrs for trial in trials)


@pytest.mark.parametrize("after", [0, 4])
def test_an_outcome_that_is_not_stored_when_ctrl_c_comes_is_not_lost(
    table: Table, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    (lane,), told = lanes(table, [RandomSampler()], 0)

    def interrupted(study: optuna.Study, trial: optuna.Trial, measurement: Measurement) -> bool:
        if len(told) == after:
            raise KeyboardInterrupt
        return record_outcome(study, trial, measurement)

    monkeypatch.setattr(loop, "record_outcome", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_together([replace(lane, evaluator=AtOnce(table, 0))], Budget(trials=20))

    assert len(told) == after
    assert all(MEASUREMENT in trial.user_attrs for trial in lane.study.trials)


@pytest.mark.parametrize("is_heard", [True, False])
def test_where_the_best_stands_is_looked_for_only_when_there_is_another_and_somebody_hears_of_it(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> None:
    looks = list[int]()

    def look(ratios: Floats) -> int:
        looks.append(len(ratios))
        return first_alike(ratios)

    monkeypatch.setattr(tally, "first_alike", look)
    searched, told = lanes(table, [Hopeful()], 0)
    run_together(searched, Budget(trials=60), (lambda found: None) if is_heard else None)

    bests = [
        at for at in range(1, 61) if told[at - 1][1] < min((ratio for _, ratio in told[: at - 1]), default=math.inf)
    ]
    assert looks == (bests if is_heard else [])
    assert 1 < len(bests) < 20


def test_what_is_tried_in_several_spaces_does_not_depend_on_which_compiler_is_faster(table: Table) -> None:
    tried = []
    for seed in (0, 10):
        joints = [Joint(), Joint()]
        samplers = [GuidedSampler(joint=partial(joints.__getitem__, at)) for at in range(2)]
        searched, told = lanes(table, samplers, seed)

        def see(found: Sequence[Joint], joints: list[Joint] = joints) -> None:
            joints[:] = found

        stopped = run_together(searched, Budget(trials=60), see)
        assert stopped is not None
        tried.append((told, [[trial.params for trial in lane.study.trials] for lane in searched]))

    assert tried[0] == tried[1]
