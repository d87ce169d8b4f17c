"""Likelihood-free Bayesian optimisation: its generations, what its forest learns, and its options."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution

from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.lfbo import PLAN, LFBOSampler
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace

SPACE = SearchSpace(
    "grid",
    [
        Knob("a", tuple(range(12)), "for tests"),
        Knob("b", tuple(range(12)), "for tests"),
        Knob("c", ("x", "y", "z"), "for tests"),
        Knob("one", (7,), "for tests"),
    ],
    [],
    GemmProblem(512, 512, 512),
    DEVICES["h200"],
)
KNOBS: dict[str, BaseDistribution] = {**distributions(SPACE)}
SMALL = {"initial": 8, "copies": 2, "neighbours": 40, "selected": 0.1}
RNG = np.random.default_rng


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def bowl(index: int) -> float:
    a, b, c, _ = (int(code) for code in SPACE.codes[index])
    return float(1 + (a - 9) ** 2 + (b - 2) ** 2 + 5 * (c != 1))


def search(trials: int, value: Callable[[int], float | None] = bowl, seed: int = 0, **options: float) -> optuna.Study:
    study = optuna.create_study(sampler=make_sampler("lfbo", SPACE, seed, SMALL | options))
    for _ in range(trials):
        trial = study.ask(KNOBS)
        found = value(index_of(trial))
        study.tell(trial, found, optuna.trial.TrialState.FAIL if found is None else None)
    return study


def index_of(trial: optuna.trial.FrozenTrial | optuna.Trial) -> int:
    return int(SPACE.find([trial.params[name] for name in KNOBS]))


def plans(study: optuna.Study) -> list[tuple[int, dict[str, Any]]]:
    planned = [trial for trial in study.trials if PLAN in trial.system_attrs]
    return [(trial.number, json.loads(json.dumps(trial.system_attrs[PLAN]))) for trial in planned]


def test_a_population_comes_first_and_then_copies_that_start_from_its_best() -> None:
    study = search(9)
    (first, population), (second, generation) = plans(study)
    assert (first, second) == (0, 8)
    assert population["population"] == [index_of(trial) for trial in study.trials[:8]]
    best = sorted(population["population"], key=bowl)[:2]
    assert [copy["at"] for copy in generation["copies"]] == best


@pytest.mark.slow
def test_a_generation_is_planned_once_and_tried_as_planned() -> None:
    study = search(40)
    asked = [index_of(trial) for trial in study.trials]
    starts = [number for number, _ in plans(study)]
    for (start, plan), end in zip(plans(study)[:-1], starts[1:], strict=True):
        queue = plan["population"] + [index for copy in plan["copies"] for index in copy["batch"]]
        assert asked[start:end] == queue


def test_copies_stand_at_the_best_that_they_have_tried() -> None:
    (*_, (_, before), (_, after)) = plans(search(17, patience=100, improvement=0.0))
    stood = [min((copy["at"], *copy["batch"]), key=bowl) for copy in before["copies"]]
    assert [copy["at"] for copy in after["copies"]] == stood


def test_when_no_copy_improves_a_new_population_is_tried() -> None:
    study = search(60, value=lambda index: 5.0, patience=0)
    populations = [plan["population"] for _, plan in plans(study) if plan["population"]]
    assert len(populations) > 2
    assert all(len(population) == 8 for population in populations)


def test_what_all_fail_leaves_random_populations() -> None:
    study = search(30, value=lambda index: None)
    assert all(not plan["copies"] for _, plan in plans(study))


@pytest.mark.slow
def test_a_resumed_search_goes_on_as_it_would_have() -> None:
    whole = search(40, seed=3)
    study = optuna.create_study(sampler=make_sampler("lfbo", SPACE, 3, SMALL))
    for number in range(40):
        study.sampler = make_sampler("lfbo", SPACE, 3, SMALL)  # as a new process would have it
        trial = study.ask(KNOBS)
        assert index_of(trial) == index_of(whole.trials[number])
        study.tell(trial, bowl(index_of(trial)))


@given(seed=st.integers(0, 1000), at=st.integers(0, len(SPACE) - 1), radius=st.integers(1, 4))
def test_neighbours_differ_by_what_the_radius_allows(seed: int, at: int, radius: int) -> None:
    sampler = LFBOSampler(SPACE, 0, radius=radius)
    moved = sampler._moved(SPACE.codes[at].astype(np.int64), 50, RNG(seed))
    inside = SPACE.find(moved) >= 0
    steps = np.abs(moved - SPACE.codes[at])[inside]
    assert (steps[:, 3] == 0).all()
    assert ((steps > 0).sum(axis=1) <= radius + 1).all()
    assert ((steps > 0).sum(axis=1) >= 1).all()
    ordered = steps[:, :2]
    assert (ordered <= radius).all()
    assert ((ordered > 1).sum(axis=1) <= 1).all()


def test_where_neighbours_are_few_the_nearest_stand_in() -> None:
    sparse = SPACE.subset(RNG(0).choice(len(SPACE), 40, replace=False))
    sampler = LFBOSampler(sparse, 0, neighbours=20, selected=1.0)
    free = np.arange(40)
    distance = np.abs(sparse.features - sparse.features[5]).sum(axis=1)
    around = sampler._around(5, free[free != 5], RNG(0))
    assert set(np.argsort(distance, kind="stable")[1:21]) <= set(around.tolist())


def test_the_forest_tells_good_from_bad_and_learns_from_failures() -> None:
    sampler = LFBOSampler(SPACE, 0, quantile=0.2)
    rng = RNG(0)
    indices = rng.choice(len(SPACE), 200, replace=False)
    failing = SPACE.codes[indices, 1] < 6
    values = np.where(failing, np.inf, SPACE.codes[indices, 0])
    forest = sampler._fit(indices, values, rng)
    assert forest is not None
    worth = forest.predict_proba(SPACE.codes)[:, 1]
    broken = SPACE.codes[:, 1] < 6
    low = SPACE.codes[:, 0] <= 1
    assert worth[broken].mean() < 0.1
    assert worth[~broken & low].mean() > 0.7
    assert worth[~broken & ~low & (SPACE.codes[:, 0] > 3)].mean() < 0.1
    assert sampler._fit(indices, np.full(200, np.inf), rng) is None
    assert sampler._fit(indices, np.full(200, 3.0), rng) is None


def test_picks_are_likely_good_and_unlike_each_other() -> None:
    rng = RNG(0)
    indices = rng.choice(len(SPACE), 200, replace=False)
    values = np.array([bowl(int(index)) for index in indices])
    spreads = {}
    for penalty in (0.0, 5.0):
        sampler = LFBOSampler(SPACE, 0, penalty=penalty)
        picked = np.array(sampler._pick(np.arange(len(SPACE)), sampler._fit(indices, values, RNG(1)), RNG(2)))
        assert len(set(picked.tolist())) == round(0.1 * len(SPACE))
        features = SPACE.features[picked[:10]]
        spreads[penalty] = np.abs(features[:, None] - features[None]).sum(axis=2).mean()
        assert bowl(picked[0]) < np.quantile(values, 0.1)
    assert spreads[5.0] > spreads[0.0]


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"width": 3}, "lfbo: unknown option 'width', known are initial, copies"),
        ({"initial": 2.5}, "lfbo: option initial can't be 2.5, allowed is an integer from 1 to 10000"),
        ({"initial": np.float32(2.5)}, "lfbo: option initial can't be 2.5, allowed is an integer from 1 to 10000"),
        ({"copies": "many"}, "option copies can't be many"),
        ({"quantile": 1.0}, "option quantile can't be 1.0, allowed is a number from 0.001 to 0.999"),
        ({"penalty": "nan"}, "option penalty can't be nan"),
    ],
)
def test_unknown_and_impossible_options_are_refused(options: dict[str, float | str], answer: str) -> None:
    with pytest.raises(SamplerError, match=answer):
        make_sampler("lfbo", SPACE, 0, options)


def test_options_are_read_from_text_too() -> None:
    sampler = make_sampler("lfbo", SPACE, 0, {"copies": "4", "quantile": "0.25"})
    assert isinstance(sampler, LFBOSampler)
    assert sampler.option == {option.name: option.default for option in LFBOSampler.options} | {
        "copies": 4,
        "quantile": 0.25,
    }


def test_a_strategy_without_options_takes_none() -> None:
    with pytest.raises(SamplerError, match="random: unknown option 'copies', it has none"):
        make_sampler("random", SPACE, 0, {"copies": 3})
