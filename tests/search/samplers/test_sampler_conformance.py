"""The shipped conformance suite and optuna's own, passed by every sampler, the flagships with and without a model."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import MultiObjectiveSamplerTestCase, RelativeSamplerTestCase

from tilescout.costmodel.persistence import load_model
from tilescout.search.samplers import SAMPLERS, SpaceSampler, find_sampler
from tilescout.search.samplers.testing import OptunaConformance, SamplerConformance
from tilescout.search.samplers.tpe import TPESampler
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

WHOLE = find_template("gemm_sm90").space(GemmProblem(512, 512, 512), DEVICES["h200"])
PARTS = tuple(WHOLE.subset(np.arange(0, count * 997, 997)) for count in (30, 7))
"""Parts of a space that the shipped cost model is of."""


class TestExhaustive(SamplerConformance):
    tested = "exhaustive"


class TestRandom(SamplerConformance):
    tested = "random"


class TestTPE(SamplerConformance):
    tested = "tpe:startup=5"


@pytest.mark.slow
class TestGP(SamplerConformance):
    tested = "gp:startup=5"


@pytest.mark.slow
class TestLFBO(SamplerConformance):
    tested = "lfbo:initial=5:neighbours=60:selected=0.4"  # else it picks one, and fits a forest for each trial


@pytest.mark.slow
class TestEvolutionary(SamplerConformance):
    tested = "evolutionary:batch=12:population=16"


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """Every sampler of the tests would read the shipped model, which takes as long as all that they are asked."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilescout.search.samplers.guided.prior.load_model", functools.cache(load_model))
        yield


@pytest.mark.usefixtures("read_once")
class TestGuided(SamplerConformance):
    tested = "guided"
    spaces = PARTS


@pytest.mark.slow
class TestGuidedWithoutModel(SamplerConformance):
    tested = "guided:startup=4:refit=6:least_cold=8"
    settings = {"model": None}  # noqa: RUF012


@pytest.mark.slow
class TestGuidedCold(SamplerConformance):
    tested = "guided-cold:startup=4:refit=6:least_cold=8"


@pytest.mark.slow
class TestGuidedColdThatLooksAtFew(SamplerConformance):
    tested = "guided-cold:startup=4:candidates=2"


class TestOptunaSampler(SamplerConformance):
    """A plain sampler of optuna's, by its class."""

    tested = "optuna.samplers:NSGAIISampler"


def test_the_shipped_model_guides_the_searches_that_are_said_to_have_one() -> None:
    sampler = TestGuided().make(PARTS[0])
    assert sampler.expected(0) is not None


def test_every_named_sampler_is_tested_here() -> None:
    tested = {find_sampler(suite.tested).name for suite in SamplerConformance.__subclasses__()}
    assert set(SAMPLERS) <= tested


class OrdinaryConformance(OptunaConformance, MultiObjectiveSamplerTestCase):
    """Optuna's cases for all samplers, and those for several objectives."""


class TestOrdinaryExhaustive(OrdinaryConformance):
    tested = "exhaustive"


class TestOrdinaryRandom(OrdinaryConformance):
    tested = "random"


class TestOrdinaryTPE(OrdinaryConformance):
    tested = "tpe"


class TestOrdinaryGP(OrdinaryConformance):
    tested = "gp"


class TestOrdinaryLFBO(OrdinaryConformance):
    tested = "lfbo"


class TestOrdinaryGuided(OrdinaryConformance):
    tested = "guided"


class TestOrdinaryGuidedCold(OrdinaryConformance):
    tested = "guided-cold"


class EagerTPESampler(TPESampler):
    """Models from the first trial on, as the relative cases need it: optuna tests its own samplers so."""

    def ordinary(self, seed: int) -> BaseSampler:
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)


class TestRelativeTPE(RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return functools.partial(EagerTPESampler, WHOLE, seed=0)


class Careless(SpaceSampler):
    """A sampler that breaks rules of the suite, each if told to."""

    def propose(self, study: optuna.Study, trial: optuna.trial.FrozenTrial, free: Any) -> int:
        return int(free[0])


class Forgetful(Careless):
    """A sampler whose proposals follow from what the object did before."""

    asked = 0

    def propose(self, study: optuna.Study, trial: optuna.trial.FrozenTrial, free: Any) -> int:
        self.asked += 1
        return int(free[self.asked % len(free)])


class Unseeded(Careless):
    """A sampler with randomness of its own."""

    def propose(self, study: optuna.Study, trial: optuna.trial.FrozenTrial, free: Any) -> int:
        return int(np.random.default_rng().choice(free))


class Optimist(Careless):
    """A sampler that takes every trial for a timed one."""

    def propose(self, study: optuna.Study, trial: optuna.trial.FrozenTrial, free: Any) -> int:
        best = min((t for t in study.get_trials(deepcopy=False)[:-1]), key=lambda t: t.value, default=None)  # type: ignore[arg-type,return-value]
        return int(free[0 if best is None else -1])


class Rambling(Careless):
    """A sampler whose reason to stop is none."""

    def done(self, study: optuna.Study) -> str:
        return ""


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (Forgetful, "test_proposals_follow_from_the_study_and_from_nothing_that_the_object_remembers"),
        (Unseeded, "test_the_seed_settles_the_proposals"),
        (Optimist, "test_asks_without_a_tell_do_not_repeat"),
        (Rambling, "test_what_it_says_of_a_search_is_a_reason_and_a_share"),
    ],
)
def test_the_suite_catches_samplers_that_break_a_rule(kind: type[SpaceSampler], case: str) -> None:
    suite = SamplerConformance()
    suite.tested = kind  # type: ignore[misc]
    with pytest.raises((AssertionError, TypeError)):
        getattr(suite, case)()
