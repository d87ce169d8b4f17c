"""Optuna's own conformance suite, passed by every strategy with and without a search space."""

import functools
from collections.abc import Callable

import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.tpe import TPESampler
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

SPACE = find_template("gemm_sm90").space(GemmProblem(512, 512, 512), DEVICES["h200"])


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class Conformance(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    """What every optuna sampler must do."""

    name: str

    @pytest.fixture(params=[None, SPACE], ids=["ordinary", "space"])
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], BaseSampler]:
        return functools.partial(make_sampler, self.name, request.param, seed=0)


class TestExhaustive(Conformance):
    name = "exhaustive"


class TestRandom(Conformance):
    name = "random"


class TestTPE(Conformance):
    name = "tpe"


class TestGP(Conformance):
    name = "gp"


class TestLFBO(Conformance):
    name = "lfbo"


class EagerTPESampler(TPESampler):
    """Models from the first trial on, as the relative cases need it: optuna tests its own samplers so."""

    def ordinary(self, seed: int) -> BaseSampler:
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=0)


class TestRelativeTPE(RelativeSamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return functools.partial(EagerTPESampler, SPACE, seed=0)
