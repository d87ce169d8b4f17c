"""When a guided search stops, alone or beside searches of other spaces."""

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from tests.search.samplers.test_guided import SPACE, TEMPLATE, Expectation, ask, sampler_of, search, study_of, truth_of
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.joint import ALIKE, Joint


@pytest.mark.parametrize("outcome", [1.0, None])
def test_it_stops_after_so_many_trials_without_a_faster_one_and_says_why(outcome: float | None) -> None:
    study = study_of(SPACE, Expectation(truth_of(SPACE)), patience=6, least=3)

    def tell(value: float | None) -> None:
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        study.tell(ask(study, SPACE)[0], value, state=state)

    for value in (1.0, 0.9, *[outcome] * 5):
        tell(value)
    assert sampler_of(study).done(study) is None
    ask(study, SPACE)
    assert sampler_of(study).sated(study)  # if the one in flight is no faster, it is the sixth
    assert sampler_of(study).done(study) is None
    tell(0.8)
    assert not sampler_of(study).sated(study)
    for _ in range(6):
        tell(outcome)
    assert sampler_of(study).done(study) == "6 trials in a row found none that is faster"


def test_it_does_not_stop_before_enough_was_proposed_once_the_best_was_known() -> None:
    study = study_of(SPACE, Expectation(truth_of(SPACE)), patience=6, seeing=3, least=3)
    study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[0]), strict=True)))
    best, *others = [ask(study, SPACE)[0] for _ in range(8)]
    study.tell(best, 0.8)
    study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[1]), strict=True)))
    others.append(ask(study, SPACE)[0])  # no sampler proposed it
    for trial in others:
        study.tell(trial, 1.0)
        assert sampler_of(study).done(study) is None
    for _ in range(2):
        study.tell(ask(study, SPACE)[0], 1.0)
        assert sampler_of(study).done(study) is None
    trial, _ = ask(study, SPACE)
    assert sampler_of(study).sated(study)
    study.tell(trial, 1.0)
    assert sampler_of(study).done(study) == "11 trials in a row found none that is faster"


def test_searches_of_several_spaces_stop_once_enough_was_proposed_with_the_best_of_all_in_view() -> None:
    known = [Joint(0.7, since=9, trials=20, blind=7)]
    options = {"patience": 5, "seeing": 3, "each": 1, "least": 4}
    model = Expectation(truth_of(SPACE))
    sampler = make_sampler("guided", SPACE, 0, options, model=model, joint=lambda: known[-1])
    study = optuna.create_study(sampler=sampler)
    study.tell(ask(study, SPACE)[0], 1.0)
    for joint, sated, ends in (
        (known[0], False, False),
        (Joint(0.7, since=9, trials=20, running=2, blind=7, blind_running=2), False, False),
        (Joint(0.7, since=9, trials=20, running=2, blind=7, blind_running=1), True, False),
        (Joint(0.7, since=9, trials=20, running=2, blind=6, blind_running=2), True, True),
    ):
        known.append(joint)
        assert sampler_of(study).sated(study) == sated
        assert (sampler_of(study).done(study) is not None) == ends


def test_a_gain_that_may_be_chance_is_no_reason_to_go_on() -> None:
    study = study_of(SPACE, Expectation(truth_of(SPACE)), patience=4, least=3)
    for value in (1.0, 0.9, 0.9 * (1 - ALIKE / 3), 0.9 * (1 - ALIKE / 2), 0.95):
        study.tell(ask(study, SPACE)[0], value)
    assert sampler_of(study).done(study) is None
    study.tell(ask(study, SPACE)[0], 0.9 * (1 - 2 * ALIKE))
    for _ in range(3):
        study.tell(ask(study, SPACE)[0], 1.0)
        assert sampler_of(study).done(study) is None
    study.tell(ask(study, SPACE)[0], 0.9 * (1 - 2.5 * ALIKE))
    assert sampler_of(study).done(study) == "4 trials in a row found none that is faster"


def test_searches_of_several_spaces_stop_together_and_each_has_its_fewest_trials() -> None:
    known = [Joint(spaces=2)]
    options = {"patience": 5, "each": 4, "least": 4}
    model = Expectation(truth_of(SPACE))
    sampler = make_sampler("guided", SPACE, 0, options, model=model, joint=lambda: known[-1])
    study = optuna.create_study(sampler=sampler)
    assert len(list(sampler.first([0], 16))) == 7  # the other space compiles as many
    for value in (1.0, 0.9, 0.8):
        study.tell(ask(study, SPACE)[0], value)
    known.append(Joint(0.7, since=5, trials=12))
    assert sampler_of(study).done(study) is None  # of four trials it has three
    study.tell(ask(study, SPACE)[0], 0.75)
    assert sampler_of(study).done(study) == "5 trials in a row found none that is faster"
    known.append(Joint(0.7, since=3, trials=12, running=2))
    assert sampler_of(study).sated(study)
    assert sampler_of(study).done(study) is None


def test_trials_that_no_model_proposed_are_none_of_the_fewest_but_for_the_default() -> None:
    joint, options = Joint(0.7, since=9, trials=12), {"patience": 5, "each": 4, "least": 4}
    sampler = make_sampler("guided", SPACE, 0, options, model=Expectation(truth_of(SPACE)), joint=lambda: joint)
    study = optuna.create_study(sampler=sampler)
    for index in range(3):
        study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[index]), strict=True)))
    for _ in range(5):
        study.tell(ask(study, SPACE)[0], 1.0)
        assert sampler_of(study).done(study) is None
    study.tell(ask(study, SPACE)[0], 1.0)
    assert sampler_of(study).done(study) == "9 trials in a row found none that is faster"


def test_a_proposal_is_to_improve_on_the_best_of_all_spaces() -> None:
    known = [Joint()]
    sampler = make_sampler("guided", SPACE, 0, {}, model=Expectation(truth_of(SPACE)), joint=lambda: known[-1])
    assert len(list(sampler.first([0], 16))) == 16  # another space may never be searched
    study = optuna.create_study(sampler=sampler)
    assert sampler_of(study).gain(study) is None
    study.tell(ask(study, SPACE)[0], 10 * float(truth_of(SPACE).max()))
    alone = sampler_of(study).gain(study)
    known.append(Joint(best_us=float(truth_of(SPACE).min())))
    beside = sampler_of(study).gain(study)
    known.append(Joint(expected_us=float(truth_of(SPACE).min())))
    assert alone is not None
    assert beside is not None
    assert 0 < beside < alone
    assert sampler_of(study).gain(study) == beside


def test_without_a_model_it_stops_when_a_gain_is_unlikely_and_says_why() -> None:
    space = SPACE.subset(np.arange(60))
    study = study_of(space, None, least_cold=20, chance=0.5)
    search(study, space, truth_of(space), 59)
    why = sampler_of(study).done(study)
    assert why is not None
    assert "more than 1% faster" in why


def test_of_kernels_that_nobody_compiles_it_trusts_ranks_less_and_tries_more_before_it_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(TEMPLATE), "loader", "a_library:Loader")
    truth = truth_of(SPACE)
    study = study_of(SPACE, Expectation(truth, 0.01, 0.1), least_apart=30, patience=5)
    search(study, SPACE, truth, 29)
    sampler = sampler_of(study)
    assert sampler.done(study) is None
    assert sampler.about.prior.covariance.alone == pytest.approx(sampler.tuning.alone_apart**2)
    search(study, SPACE, truth, 1)
    assert sampler.done(study) is not None


def test_it_does_not_stop_on_values_that_are_no_times() -> None:
    truth = truth_of(SPACE)
    study = optuna.create_study(sampler=make_sampler("guided", SPACE, 0), direction="maximize")
    for _ in range(25):
        trial, index = ask(study, SPACE)
        study.tell(trial, -float(truth[index]))
    assert sampler_of(study).done(study) is None
