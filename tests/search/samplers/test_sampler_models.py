"""The strategies with a model: that they learn, and what from."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from tilescout.search.samplers import gp, make_sampler, tpe
from tilescout.search.samplers.base import distributions
from tilescout.spaces.constraints import Constraint
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace

SHAPE = {"a": 6, "b": 6, "c": 5, "d": 5, "e": 4}
BOWL = SearchSpace(
    "bowl",
    [Knob(name, tuple(range(size)), "for tests") for name, size in SHAPE.items()],
    [
        Constraint(
            "rule", "for tests", ("a", "b", "e"), lambda values, *_: (values["a"] + values["b"] + values["e"]) % 4 != 1
        )
    ],
    GemmProblem(512, 512, 512),
    DEVICES["h200"],
)
KNOBS: dict[str, BaseDistribution] = {**distributions(BOWL)}


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def bowl(index: int) -> float:
    """A time with one minimum, steep in two knobs, in which two knobs interact."""
    a, b, c, d, e = (float(code) for code in BOWL.codes[index])
    return 5 + 2 * (a - 4) ** 2 + (b - 1 - 0.5 * (a - 4)) ** 2 + 0.5 * (c - 2) ** 2 + 0.3 * (d - 3) ** 2 + 0.2 * e


TIMES = np.array([bowl(index) for index in range(len(BOWL))])


def study_of(name: str, seed: int = 0, direction: str = "minimize") -> optuna.Study:
    return optuna.create_study(sampler=make_sampler(name, BOWL, seed), direction=direction)  # type: ignore[arg-type]


def search(study: optuna.Study, trials: int, time_of: Callable[[int], float | None]) -> list[int]:
    """Ask and tell one by one; `time_of` an index is None where it fails."""
    asked = []
    for _ in range(trials):
        trial = study.ask(KNOBS)
        asked.append(int(BOWL.find([trial.params[name] for name in KNOBS])))
        time = time_of(asked[-1])
        study.tell(trial, time, TrialState.FAIL if time is None else TrialState.COMPLETE)
    return asked


@pytest.mark.slow
@pytest.mark.parametrize(("name", "trials", "seeds"), [("tpe", 60, 4), ("gp", 25, 3), ("lfbo", 80, 4)])
@pytest.mark.parametrize("sign", [1, -1], ids=["minimize", "maximize"])
def test_models_find_far_better_configurations_than_chance(name: str, trials: int, seeds: int, sign: int) -> None:
    def best(seed: int) -> float:
        study = study_of(name, seed, "minimize" if sign > 0 else "maximize")
        return float(TIMES[search(study, trials, lambda index: sign * bowl(index))].min())

    rng = np.random.default_rng(0)
    chance = np.mean([rng.choice(TIMES, trials, replace=False).min() for _ in range(1000)])
    regret = np.mean([best(seed) for seed in range(seeds)]) - TIMES.min()
    assert regret < (chance - TIMES.min()) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "trials", "seeds"), [("tpe", 60, 4), ("gp", 25, 3), ("lfbo", 80, 4)])
def test_models_learn_from_pruned_trials_too(name: str, trials: int, seeds: int) -> None:
    """Whatever takes one and a half times the best so far is pruned; its value is a pilot, off by up to a fifth."""
    rng = np.random.default_rng(0)

    def best(seed: int) -> float:
        study, least, asked = study_of(name, seed), np.inf, []
        for _ in range(trials):
            trial = study.ask(KNOBS)
            asked.append(int(BOWL.find([trial.params[knob] for knob in KNOBS])))
            time = bowl(asked[-1])
            if time > 1.5 * least:
                trial.report(time * rng.uniform(1.0, 1.2), step=0)
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, time)
                least = min(least, time)
        assert sum(trial.state is TrialState.PRUNED for trial in study.trials) >= trials / 4
        return float(TIMES[asked].min())

    chance = np.mean([rng.choice(TIMES, trials, replace=False).min() for _ in range(1000)])
    regret = np.mean([best(seed) for seed in range(seeds)]) - TIMES.min()
    assert regret < (chance - TIMES.min()) / 2


def test_tpe_chooses_among_those_of_its_draws_that_are_free() -> None:
    study = study_of("tpe")
    search(study, 12, bowl)
    sampler: Any = study.sampler
    free = sampler.free(study)[::3]  # two of three draws are refused
    chosen = [
        tpe._TPEAmong(BOWL, free, seed, candidates=24).sample_relative(study, study.trials[-1], dict(KNOBS))
        for seed in range(60)
    ]
    found = BOWL.find([[codes[name] for name in KNOBS] for codes in chosen])
    assert np.isin(found, free).mean() > 0.9


def test_gp_keeps_away_from_where_configurations_fail() -> None:
    broken = BOWL.codes[:, 0] >= 3
    asked = search(study_of("gp"), 30, lambda index: None if broken[index] else bowl(index))
    assert broken.mean() > 0.45
    assert broken[asked[-12:]].mean() < 0.25


@pytest.mark.slow
def test_gp_goes_on_with_more_trials_than_it_fits_to() -> None:
    asked = search(study_of("gp:largest=12"), 30, lambda index: None if index % 9 == 0 else bowl(index))
    assert np.median(TIMES[asked[12:]]) < np.median(TIMES[asked[:12]])


@given(length=st.integers(1, 2000))
def test_gp_fits_to_the_best_and_an_even_spread_of_the_others(length: int) -> None:
    chosen = gp._thinned(length, 256)
    best = 128
    assert len(chosen) == min(length, 256)
    assert (np.diff(chosen) > 0).all()
    assert list(chosen[:best]) == list(range(min(length, best)))
    assert chosen[-1] == length - 1


def trial_of(*values: float) -> FrozenTrial:
    """A finished trial; one without values failed."""
    state = TrialState.COMPLETE if values else TrialState.FAIL
    return create_trial(state=state, values=list(values) or None, params={"a": 0}, distributions={"a": KNOBS["a"]})


@pytest.mark.parametrize(
    ("direction", "values", "expected"),
    [
        (StudyDirection.MINIMIZE, [8.0, 1.0, 2.0], np.log([1.0, 2.0, 8.0, 8.0])),
        (StudyDirection.MAXIMIZE, [8.0, 1.0, 2.0], np.log([8.0, 2.0, 1.0, 1.0])),
        (StudyDirection.MINIMIZE, [3.0, 0.0, -1.0], [-1.0, 0.0, 3.0, 3.0]),
    ],
)
def test_gp_sees_logarithms_of_times_and_failures_as_the_worst(
    direction: StudyDirection, values: Sequence[float], expected: Sequence[float]
) -> None:
    completed = [trial_of(value) for value in values]
    observed = gp._observations(completed, [trial_of()], [direction], 256)
    assert [trial.value for trial in observed] == pytest.approx(list(expected))
    assert [trial.value for trial in completed] == values, "the study's own trials were changed"


def test_gp_does_not_hold_an_interruption_against_a_configuration_that_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = study_of("gp")
    interrupted, broken = search(study, 2, lambda index: None)
    again = {name: int(code) for name, code in zip(KNOBS, BOWL.codes[interrupted], strict=True)}
    study.enqueue_trial(again)
    search(study, int(study.sampler.option["startup"]), bowl)  # type: ignore[union-attr]
    failed: list[FrozenTrial] = []
    observations = gp._observations

    def spy(*arguments: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        failed.extend(arguments[1])
        return observations(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(gp, "_observations", spy)
    study.ask(KNOBS)
    assert [trial.number for trial in failed] == [1]
    assert BOWL.find([failed[0].params[name] for name in KNOBS]) == broken


def test_a_space_of_other_parameters_in_the_same_study_is_not_learnt_from() -> None:
    for name in ("tpe", "gp", "lfbo"):
        study = study_of(name)
        for value in range(12):
            study.tell(study.ask({"x": IntDistribution(0, 99)}), float(value))
        assert len(set(search(study, 12, bowl))) == 12
