"""The search strategies: legal configurations only, none twice, the same ones for the same seed."""

import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.samplers import SAMPLERS, make_sampler
from tilescout.search.samplers.base import SpaceExhaustedError, SpaceSampler, distributions, seen
from tilescout.search.samplers.exhaustive import ExhaustiveSampler
from tilescout.search.studies.ledger import CLAIM
from tilescout.spaces.constraints import Columns, Constraint
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SamplerError, SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.templates import find_template

PROBLEM, DEVICE = GemmProblem(512, 512, 512), DEVICES["h200"]
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def space_of(shape: Sequence[int], holds: Callable[[Columns], np.ndarray] | None = None) -> SearchSpace:
    """A space of knobs a, b, c, ... with values 10, 11, ...; `holds` sees the values."""
    knobs = [Knob(chr(ord("a") + i), tuple(range(10, 10 + size)), "for tests") for i, size in enumerate(shape)]
    names = tuple(knob.name for knob in knobs)
    rules = [] if holds is None else [Constraint("rule", "for tests", names, lambda columns, *_: holds(columns))]
    return SearchSpace("small", knobs, rules, PROBLEM, DEVICE)


def study_of(name: str, space: SearchSpace | None, seed: int = 0, **options: Any) -> optuna.Study:
    return optuna.create_study(sampler=make_sampler(name, space, seed), **options)


def ask(study: optuna.Study, space: SearchSpace) -> tuple[optuna.Trial, int]:
    trial = study.ask({**distributions(space)})
    return trial, int(space.find([trial.params[knob.name] for knob in space.knobs]))


def search(study: optuna.Study, space: SearchSpace, trials: int, time_of: Callable[[int], float | None]) -> list[int]:
    """Ask and tell one by one; `time_of` an index is None where it fails."""
    asked = []
    for _ in range(trials):
        trial, index = ask(study, space)
        time = time_of(index)
        study.tell(trial, time, TrialState.FAIL if time is None else TrialState.COMPLETE)
        asked.append(index)
    return asked


def codes_of(space: SearchSpace, index: int) -> dict[str, int]:
    return dict(zip(distributions(space), map(int, space.codes[index]), strict=True))


SMALL = space_of((3, 4, 2, 3), lambda columns: (columns["a"] + columns["b"] * columns["d"]) % 3 != 0)


@st.composite
def spaces(draw: st.DrawFn, most: int) -> SearchSpace:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    weights = draw(st.lists(st.integers(0, 6), min_size=len(shape), max_size=len(shape)))
    divisor = draw(st.integers(2, 5))

    def holds(columns: Columns) -> np.ndarray:
        total = sum(weight * column for weight, column in zip(weights, columns.values(), strict=True))
        return np.asarray(total % divisor != 0)

    try:
        space = space_of(shape, holds)
    except SpaceError:
        assume(False)
    assume(2 <= len(space) <= most)
    return space


def check_that_every_configuration_is_proposed_once(name: str, space: SearchSpace, data: st.DataObject) -> None:
    study = study_of(name, space, seed=data.draw(st.integers(0, 99)))
    asked: list[int] = []
    in_flight: list[optuna.Trial] = []
    while len(asked) < len(space):
        assert len(seen(study, space)) == len(asked)
        trial, index = ask(study, space)
        assert index >= 0, "not legal"
        asked.append(index)
        in_flight.append(trial)
        match data.draw(st.sampled_from(["leave", "complete", "complete", "fail"])):
            case "complete":
                study.tell(in_flight.pop(0), 1.0 + index % 7)
            case "fail":
                study.tell(in_flight.pop(), state=TrialState.FAIL)
    assert sorted(asked) == list(range(len(space)))
    with pytest.raises(SpaceExhaustedError):
        study.ask({**distributions(space)})


hastily = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", ["exhaustive", "random", "tpe"])
@given(space=spaces(most=40), data=st.data())
@hastily
def test_every_legal_configuration_is_proposed_once_and_then_no_more(
    name: str, space: SearchSpace, data: st.DataObject
) -> None:
    check_that_every_configuration_is_proposed_once(name, space, data)


@given(space=spaces(most=18), data=st.data())
@settings(hastily, max_examples=5)
def test_gp_proposes_every_legal_configuration_once_and_then_no_more(space: SearchSpace, data: st.DataObject) -> None:
    check_that_every_configuration_is_proposed_once("gp", space, data)


def test_an_enqueued_trial_that_no_configuration_suits_is_refused_with_its_codes() -> None:
    space = space_of((2, 2), lambda columns: columns["a"] == 10)
    study = study_of("random", space)
    study.enqueue_trial({"a": 1})
    with pytest.raises(SamplerError, match=r"fixes the codes a=1; no legal configuration") as refusal:
        study.ask({**distributions(space)})
    assert not isinstance(refusal.value, SpaceExhaustedError)
    assert ask(study, space)[1] in (0, 1)


def journal(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))


class OvertakenSampler(ExhaustiveSampler):
    """Another worker claims what this one is about to propose."""

    others: optuna.Study | None = None

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        chosen = super().propose(study, trial, free)
        if self.others is not None:
            others, self.others = self.others, None
            assert ask(others, self.space)[1] == chosen
        return chosen


def test_a_proposal_that_another_worker_claimed_first_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    mine = OvertakenSampler(SMALL)
    study = optuna.create_study(storage=journal(path), study_name="s", sampler=mine)
    mine.others = optuna.load_study(study_name="s", storage=journal(path), sampler=ExhaustiveSampler(SMALL))
    assert ask(study, SMALL)[1] == 1
    assert list(seen(study, SMALL)) == [0, 1]


def test_a_worker_that_finds_nothing_left_claims_nothing(tmp_path: Path) -> None:
    space, path = space_of((2,)), tmp_path / "shared"
    mine = OvertakenSampler(space)
    study = optuna.create_study(storage=journal(path), study_name="s", sampler=mine)
    mine.others = optuna.load_study(study_name="s", storage=journal(path), sampler=ExhaustiveSampler(space))
    search(mine.others, space, 1, float)
    with pytest.raises(SpaceExhaustedError, match="all 2 configurations"):
        study.ask({**distributions(space)})
    assert not study.trials[1].system_attrs[CLAIM]


class CarelessSampler(ExhaustiveSampler):
    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        return 0


def test_a_strategy_that_repeats_a_configuration_is_stopped() -> None:
    study = optuna.create_study(sampler=CarelessSampler(SMALL))
    ask(study, SMALL)
    with pytest.raises(SamplerError, match="CarelessSampler proposed configuration 0, which is not free"):
        study.ask({**distributions(SMALL)})


@pytest.mark.parametrize("found", [None, 0.0, "0", np.array([0, 1])])
def test_a_proposal_that_is_no_index_is_refused(found: Any) -> None:
    class Odd(ExhaustiveSampler):
        def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
            return found

    study = optuna.create_study(sampler=Odd(SMALL))
    with pytest.raises(SamplerError, match=r"Odd proposed .*, expected one of the indices in `free`, an integer"):
        study.ask({**distributions(SMALL)})


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"name": None}, "its name is None, expected a text that is not empty"),
        ({"options": ("startup",)}, r"its options is \('startup',\), expected a tuple of Options"),
        ({"lookahead": "x"}, "its lookahead is 'x', expected an integer, or None"),
    ],
)
def test_a_class_that_declares_what_can_not_be_is_refused(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(SamplerError, match=f"^Odd: {told}$"):
        type("Odd", (ExhaustiveSampler,), declared)


def test_a_sampler_may_serve_one_study_after_another() -> None:
    sampler = make_sampler("exhaustive", SMALL)
    for _ in range(2):
        assert search(optuna.create_study(sampler=sampler), SMALL, 3, float) == [0, 1, 2]


def test_a_trial_counts_from_its_claim_on_even_if_its_process_dies_before_it_is_stored() -> None:
    study = study_of("exhaustive", SMALL)
    study.ask({"a": distributions(SMALL)["a"]})  # the other knobs were never stored
    assert list(seen(study, SMALL)) == [0]
    assert ask(study, SMALL)[1] == 1


@every_sampler
def test_trials_that_ask_for_no_knob_use_up_no_configuration(name: str) -> None:
    space = space_of((2,))
    study = study_of(name, space)
    search(study, space, 2, float)
    other = study.ask({"x": FloatDistribution(0, 1), "a": IntDistribution(5, 9)})
    assert 5 <= other.params["a"] <= 9
    assert len(seen(study, space)) == 2


def test_threads_of_one_study_do_not_repeat_each_other() -> None:
    study = study_of("random", SMALL)
    study.optimize(lambda trial: sum(trial.suggest_int(*knob) for knob in KNOBS), n_trials=len(SMALL), n_jobs=4)
    assert list(seen(study, SMALL)) == list(range(len(SMALL)))


KNOBS = [(name, knob.low, knob.high) for name, knob in distributions(SMALL).items()]


@every_sampler
def test_the_real_space_is_searched_without_a_warning_or_a_log_line(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    space = find_template("gemm_sm90").space(GemmProblem(4096, 4096, 4096), DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = study_of(name, space)
        search(study, space, 13, lambda index: None if index % 6 == 0 else 1.0 + index)
    assert len(seen(study, space)) == 13
    assert capfd.readouterr() == ("", "")


def test_exhaustive_goes_in_the_order_of_the_space() -> None:
    assert search(study_of("exhaustive", SMALL), SMALL, 20, float) == list(range(20))


def test_random_prefers_nothing() -> None:
    space = space_of((4, 4), lambda columns: columns["a"] >= columns["b"])
    firsts = Counter(ask(study_of("random", space, seed), space)[1] for seed in range(600))
    assert set(firsts) == set(range(10))
    assert max(firsts.values()) < 100  # 60 expected; 100 is more than five standard deviations away


@pytest.mark.parametrize("name", ["simulated-annealing", "TPE", ""])
def test_an_unknown_strategy_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(SamplerError, match="known are exhaustive, random, tpe, gp, lfbo"):
        make_sampler(name)


def test_a_sampler_without_a_space_says_so() -> None:
    sampler = make_sampler("random")
    with pytest.raises(SamplerError, match="has no search space"):
        sampler.free(optuna.create_study(sampler=sampler))


def test_the_names_are_listed_without_importing_optuna() -> None:
    code = "import sys, tilescout.search.samplers as s; print('optuna' in sys.modules, *s.SAMPLERS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", *SAMPLERS]


def test_every_listed_strategy_is_a_space_sampler() -> None:
    assert all(isinstance(make_sampler(name, SMALL), SpaceSampler) for name in SAMPLERS)
