"""Evolutionary search: what its model learns moves its batches, and what it draws is legal."""

import numpy as np
import optuna
import pytest
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler

from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.evolutionary import PLAN, EvolutionarySampler
from tilescout.search.samplers.lfbo import PLAN as LFBO_PLAN
from tilescout.search.samplers.ordinary import among_legal
from tilescout.spaces.constraints import Constraint
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace

SPACE = SearchSpace(
    "grid",
    [Knob(name, tuple(range(16)), "for tests") for name in "abc"],
    [Constraint("even", "half of all", ("a", "b"), lambda columns, *_: (columns["a"] + columns["b"]) % 2 == 0)],
    GemmProblem(512, 512, 512),
    DEVICES["h200"],
)
KNOBS: dict[str, BaseDistribution] = {**distributions(SPACE)}


def bowl(trial: optuna.Trial) -> float:
    a, b, c = (trial.params[name] for name in "abc")
    return float(1 + (a - 3) ** 2 + (b - 13) ** 2 + (c - 8) ** 2)


def search(sampler: BaseSampler, trials: int = 48) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    for _ in range(trials):
        trial = study.ask(KNOBS)
        study.tell(trial, bowl(trial))
    return study


def test_it_finds_better_ones_than_random_search_does() -> None:
    ours = [search(make_sampler("evolutionary", SPACE, seed)).best_value for seed in range(2)]
    theirs = [search(make_sampler("random", SPACE, seed)).best_value for seed in range(2)]
    assert np.mean(ours) < 0.5 * np.mean(theirs)


def test_a_batch_is_planned_once_for_all_of_its_trials() -> None:
    plans = [trial.number for trial in search(make_sampler("evolutionary:batch=8", SPACE, 1), 30).trials
             if PLAN in trial.system_attrs]  # fmt: skip
    assert plans == [0, 8, 16, 24]


@pytest.mark.parametrize("name", ["evolutionary", "lfbo"])
def test_a_plan_over_another_space_is_not_gone_on_with(name: str) -> None:
    part, whole = SPACE.subset(np.arange(0, len(SPACE), 2)), SPACE
    for first, second in ((part, whole), (whole, part)):
        study = optuna.create_study(sampler=make_sampler(name, first, 0))
        for space in (first, second):
            study.sampler = make_sampler(name, space, 0)
            for number in range(3):
                trial = study.ask({**distributions(space)})
                planned = trial.storage.get_trial_system_attrs(trial._trial_id).keys() & {PLAN, LFBO_PLAN}
                assert len(planned) == (number == 0)
                study.tell(trial, 1.0 + number)


@pytest.mark.parametrize("mutation", [0.0, 1.0])
def test_children_are_legal_and_differ_from_their_parents_as_often_as_asked(mutation: float) -> None:
    sampler = EvolutionarySampler(SPACE, 0, mutation=mutation)
    parents = np.arange(len(SPACE))
    children = sampler._mutated(parents, np.random.default_rng(0))
    changed = (SPACE.codes[children] != SPACE.codes[parents]).sum(axis=1)
    assert changed.max() == mutation
    # Two of the three knobs keep the rule in 7 of 15 mutations, the third in all.
    assert changed.mean() == pytest.approx(mutation * (2 * 7 / 15 + 1) / 3, abs=0.05)


class ChoosesLate(RandomSampler):
    """As optunahub's AutoSampler: how it samples is decided before each trial."""

    ready = False

    def before_trial(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        self.ready = True

    def sample_independent(self, *arguments: object) -> int:
        return 5 if self.ready else 0


def test_an_optuna_sampler_hears_of_a_trial_before_it_samples() -> None:
    study = search(among_legal(ChoosesLate)(SPACE, 0), 1)
    assert list(study.trials[0].params.values()) == [5, 5, 5]
