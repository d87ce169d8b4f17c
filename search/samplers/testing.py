"""The conformance suite of samplers.

Subclass it where pytest looks for tests, and say what is tested::

    from tilescout.search.samplers.testing import SamplerConformance

    class TestMySampler(SamplerConformance):
        tested = "my_module:MySampler:startup=3"  # or the class

The suite asks for some thirty trials of small spaces. Set options so low that the sampler has begun to learn by then.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.testing.pytest_samplers import BasicSamplerTestCase
from optuna.trial import TrialState, create_trial

from tilescout.search.samplers import (
    SpaceExhaustedError,
    SpaceSampler,
    distributions,
    find_sampler,
    make_sampler,
    seen,
)
from tilescout.spaces.constraints import Columns, Constraint
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.knobs import Knob, Value
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.space import SearchSpace

__all__ = ["SPACES", "OptunaConformance", "SamplerConformance", "search"]


def space_of(
    values: Mapping[str, Sequence[Value]], legal: Callable[[Columns], Any] = lambda columns: True
) -> SearchSpace:
    """A search space of these knobs; `legal` gets the columns of their values and says which rows are."""

    def holds(columns: Columns, *_: Any) -> Any:
        rows = len(next(iter(columns.values())))
        return np.broadcast_to(np.asarray(legal(columns), dtype=np.bool_), rows)

    knobs = [Knob(name, tuple(each), "of the conformance suite") for name, each in values.items()]
    rule = Constraint("rule", "of the conformance suite", tuple(values), holds)
    return SearchSpace("conformance", knobs, [rule], NamedProblem("conformance"), DEVICES["h200"])


SPACES = (
    space_of(
        {"a": (16, 32, 64), "b": (1, 2, 3, 4), "c": ("row", "column"), "d": (10, 11, 12)},
        lambda columns: (columns["a"] + columns["b"] * columns["d"]) % 3 != 0,
    ),
    space_of({"a": (1, 2, 3, 4, 5, 6, 7)}),
    space_of({"a": (1,), "b": (0, 1), "c": ("only",), "d": (2, 3, 4)}, lambda columns: columns["b"] + columns["d"] > 2),
    space_of({"a": (1, 2), "b": (1, 2), "c": (1, 2)}, lambda columns: columns["a"] == columns["b"]),
)
"""Small spaces: with rules, with one knob, with knobs of one value."""

ONE = space_of({"a": (1, 2), "b": ("row",)}, lambda columns: columns["a"] == 2)
SINGLE = space_of({"a": (1,), "b": ("row",)})
"""Spaces of one configuration: a rule leaves it, or every knob has one value."""


class SamplerConformance:
    """The rules of samplers over search spaces, as tests.

    Attributes
    ----------
    tested
        The sampler: text as the command line takes it, or a class.
    options, settings
        What it is made with; see `make_sampler`.
    spaces
        Spaces of at most some 40 configurations, the first of at least 20. Replace them if the sampler is for certain
        kernels only.
    """

    tested: ClassVar[str | type[BaseSampler]]
    options: ClassVar[Mapping[str, float]] = {}
    settings: ClassVar[Mapping[str, Any]] = {}
    spaces: ClassVar[Sequence[SearchSpace]] = SPACES

    def make(self, space: SearchSpace | None, seed: int | None = 0) -> SpaceSampler:
        """A sampler to test."""
        return make_sampler(self.tested, space, seed, self.options, **self.settings)

    def study(self, space: SearchSpace, seed: int = 0, **given: Any) -> optuna.Study:
        """A study that a sampler to test searches."""
        return optuna.create_study(sampler=self.make(space, seed), **given)

    @pytest.fixture(autouse=True)
    def quiet(self) -> Iterator[None]:
        """Keep optuna from reporting every trial."""
        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        yield
        optuna.logging.set_verbosity(level)

    def test_it_says_what_it_is(self) -> None:
        kind = find_sampler(self.tested)
        assert kind.name
        assert not set(kind.name) & set(":=,. \n"), "it could not be named on the command line"
        assert kind.summary
        assert "\n" not in kind.summary
        assert len({each.name for each in kind.options}) == len(kind.options)
        for option in kind.options:
            assert option.low <= option.default <= option.high
            assert option.doc

    def test_options_are_checked(self) -> None:
        kind = find_sampler(self.tested)
        made = self.make(self.spaces[0])
        assert made.option.keys() == {each.name for each in kind.options}
        assert make_sampler(kind, None, 0, dict(made.option), **self.settings).label == made.label
        with pytest.raises(SamplerError, match="unknown option"):
            make_sampler(kind, None, 0, {"no_such_option": 1}, **self.settings)
        for option in kind.options:
            with pytest.raises(SamplerError, match=option.name):
                make_sampler(kind, None, 0, {option.name: option.high + 1}, **self.settings)

    @pytest.mark.parametrize("seed", [None, 0, 2**32, 2**70])
    def test_any_seed_is_taken_that_is_not_negative(self, seed: int | None) -> None:
        study = optuna.create_study(sampler=self.make(self.spaces[0], seed))
        assert ask(study, self.spaces[0])[1] >= 0
        with pytest.raises(SamplerError, match="seed can't be -1"):
            self.make(self.spaces[0], -1)

    def test_every_legal_configuration_is_proposed_once_and_then_no_more(self) -> None:
        for space in self.spaces:
            study, rng = self.study(space), np.random.default_rng(0)
            asked: list[int] = []
            in_flight: list[tuple[optuna.Trial, int]] = []
            while len(asked) < len(space):
                assert len(seen(study, space)) == len(asked)
                trial, index = ask(study, space)
                assert index >= 0, "not legal"
                asked.append(index)
                in_flight.append((trial, index))
                while len(in_flight) > rng.integers(4):
                    tell(study, *in_flight.pop(int(rng.integers(len(in_flight)))))
            assert sorted(asked) == list(range(len(space)))
            with pytest.raises(SpaceExhaustedError):
                ask(study, space)

    @pytest.mark.parametrize("space", [ONE, SINGLE], ids=["rule", "values"])
    def test_a_space_of_one_configuration_is_searched(self, space: SearchSpace) -> None:
        study = self.study(space)
        trial, index = ask(study, space)
        assert index == 0
        study.tell(trial, 1.0)
        sampler = study.sampler
        assert isinstance(sampler, SpaceSampler)
        assert not len(sampler.free(study))
        check_opinions(study)

    def test_asks_without_a_tell_do_not_repeat(self) -> None:
        space = self.spaces[0]
        study = self.study(space)
        search(study, space, 8)
        rest = [ask(study, space)[1] for _ in range(len(space) - 8)]
        assert len({*rest, *seen(study, space).tolist()}) == len(space)

    def test_the_seed_settles_the_proposals(self) -> None:
        space = self.spaces[0]
        sequences = [search(self.study(space, seed), space, 18) for seed in (3, 3, 4)]
        assert sequences[0] == sequences[1]
        assert find_sampler(self.tested).deterministic or sequences[0] != sequences[2]

    def test_a_resumed_study_goes_on_as_it_would_have(self, tmp_path: Path) -> None:
        space = self.spaces[0]

        def run(path: Path, trials: int) -> list[int]:
            study = self.study(space, 5, storage=journal(path), study_name="s", load_if_exists=True)
            return search(study, space, trials)

        whole = run(tmp_path / "whole", 19)
        parts = run(tmp_path / "parts", 4) + run(tmp_path / "parts", 9) + run(tmp_path / "parts", 6)
        assert parts == whole

    def test_proposals_follow_from_the_study_and_from_nothing_that_the_object_remembers(self) -> None:
        space = self.spaces[0]
        kept, replaced = self.study(space), self.study(space)
        for _ in range(9):
            pairs = [ask(study, space) for study in (kept, replaced) for _ in range(2)]
            assert [index for _, index in pairs[:2]] == [index for _, index in pairs[2:]]
            for study, (trial, index) in zip((kept, replaced), pairs[::2], strict=True):
                tell(study, trial, index)
            replaced.sampler = self.make(space)

    def test_an_object_serves_one_study_after_another(self) -> None:
        space, other = self.spaces[:2]
        sampler = self.make(space, 1)
        first, again = (search(optuna.create_study(sampler=sampler), space, 12) for _ in range(2))
        assert first == again
        elsewhere = optuna.create_study(sampler=sampler.over(other))
        assert len(set(search(elsewhere, other, min(5, len(other))))) == min(5, len(other))
        assert sampler.space is space

    @pytest.mark.parametrize("state", [TrialState.FAIL, TrialState.PRUNED])
    def test_it_goes_on_where_nothing_was_ever_timed(self, state: TrialState) -> None:
        space = self.spaces[0]
        study = self.study(space)
        for number in range(20):
            trial, _ = ask(study, space)
            if state is TrialState.PRUNED and number % 2:
                trial.report(1000.0 + number, 0)
            study.tell(trial, state=state)
        assert len(seen(study, space)) == 20
        check_opinions(study)

    @pytest.mark.parametrize("value", [1.0, 0.0, -1.0])
    def test_values_that_are_all_the_same_break_nothing(self, value: float) -> None:
        space = self.spaces[0]
        study = self.study(space)
        for _ in range(18):
            study.tell(ask(study, space)[0], value)
        assert len(seen(study, space)) == 18
        check_opinions(study)

    def test_an_enqueued_configuration_is_tried_as_it_is_and_not_again(self) -> None:
        space = self.spaces[0]
        study = self.study(space)
        search(study, space, 8)
        wanted = int(np.setdiff1d(np.arange(len(space)), seen(study, space))[-1])
        study.enqueue_trial(codes_of(space, wanted))
        assert wanted in seen(study, space)
        assert ask(study, space)[1] == wanted
        rest = [ask(study, space)[1] for _ in range(len(space) - 9)]
        assert wanted not in rest
        assert len(set(rest)) == len(rest)

    def test_knobs_that_an_enqueued_trial_leaves_open_are_chosen_to_suit_the_others(self) -> None:
        space = self.spaces[0]
        study = self.study(space)
        search(study, space, 5)
        names = [name for name, knob in distributions(space).items() if not knob.single()]
        for name in (*names, *names):
            before = seen(study, space)
            last = int(np.setdiff1d(np.arange(len(space)), before)[-1])
            code = codes_of(space, last)[name]
            study.enqueue_trial({name: code})
            trial, index = ask(study, space)
            assert trial.params[name] == code
            assert index >= 0
            assert index not in before

    @pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING])
    def test_an_enqueued_combination_that_is_not_legal_is_not_learnt_from(self, state: TrialState) -> None:
        space = self.spaces[0]
        everything = np.stack(np.meshgrid(*map(np.arange, space.shape), indexing="ij"), axis=-1).reshape(
            -1, len(space.shape)
        )
        illegal = everything[space.find(everything) < 0][0]
        study = self.study(space)
        study.enqueue_trial(dict(zip(distributions(space), map(int, illegal), strict=True)))
        trial, index = ask(study, space)
        assert index < 0
        if state is not TrialState.RUNNING:
            study.tell(trial, 1e-3 if state is TrialState.COMPLETE else None, state)
        asked = search(study, space, 18)
        assert min(asked) >= 0
        assert len(set(asked)) == 18
        check_opinions(study)

    def test_parameters_that_are_not_knobs_are_sampled_beside_them(self) -> None:
        space = self.spaces[0]
        study = self.study(space)

        def objective(trial: optuna.Trial) -> float:
            x = trial.suggest_float("x", -1, 1)
            return 1 + x**2 + sum(trial.suggest_int(name, 0, knob.high) for name, knob in distributions(space).items())

        study.optimize(objective, n_trials=15)
        assert len(seen(study, space)) == 15
        assert len({trial.params["x"] for trial in study.trials}) > 5

    def test_trials_of_other_parameters_use_up_no_configuration(self) -> None:
        space = self.spaces[0]
        study = self.study(space)
        names = list(distributions(space))
        for number in range(6):
            other = study.ask({"x": FloatDistribution(0, 1), names[0]: IntDistribution(50, 99)})
            assert 50 <= other.params[names[0]] <= 99
            study.tell(other, float(number))
        foreign: dict[str, Any] = {name: IntDistribution(50, 99) for name in names}
        study.add_trial(create_trial(params=dict.fromkeys(names, 60), distributions=foreign, value=1e-3))
        assert not len(seen(study, space))
        assert sorted(search(study, space, len(space))) == list(range(len(space)))

    def test_workers_that_share_a_study_do_not_repeat_each_other(self, tmp_path: Path) -> None:
        space, path = self.spaces[0], tmp_path / "shared"
        optuna.create_study(storage=journal(path), study_name="s")

        def work(worker: int) -> list[int]:
            study = optuna.load_study(study_name="s", storage=journal(path), sampler=self.make(space))
            return search(study, space, 6)

        with ThreadPoolExecutor(3) as pool:
            asked = [index for indices in pool.map(work, range(3)) for index in indices]
        assert len(set(asked)) == 18

    def test_values_may_be_maximised(self) -> None:
        self._search_values(["maximize"])

    def test_several_objectives_are_searched_if_it_claims_so(self) -> None:
        if not find_sampler(self.tested).several_objectives:
            pytest.skip("it does not claim to search studies of several objectives")
        self._search_values(["minimize", "maximize"])

    def _search_values(self, directions: list[str]) -> None:
        space = self.spaces[0]
        study = self.study(space, directions=directions)
        for _ in range(16):
            trial, index = ask(study, space)
            study.tell(trial, [float((index + at) % 5 - 2) for at in range(len(directions))])
        assert len(seen(study, space)) == 16
        check_opinions(study)

    def test_what_it_says_of_a_search_is_a_reason_and_a_share(self) -> None:
        space = self.spaces[0]
        study = self.study(space)
        for _ in range(len(space)):
            check_opinions(study)
            search(study, space, 1)
        check_opinions(study)

    def test_a_search_warns_of_nothing_and_prints_nothing(self, capfd: pytest.CaptureFixture[str]) -> None:
        space = self.spaces[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            search(self.study(space), space, 15)
        assert capfd.readouterr() == ("", "")

    def test_without_a_space_it_is_an_ordinary_sampler_and_says_so(self) -> None:
        sampler = self.make(None)
        study = optuna.create_study(sampler=sampler)
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=12)
        assert len({trial.params["x"] for trial in study.trials}) > 6
        with pytest.raises(SamplerError, match="no search space"):
            sampler.free(study)


class OptunaConformance(BasicSamplerTestCase):
    """Optuna's own suite, of parameters that are not knobs; with a space, and without.

    Attributes
    ----------
    tested, options, settings
        See `SamplerConformance`.
    """

    tested: ClassVar[str | type[BaseSampler]]
    options: ClassVar[Mapping[str, float]] = {}
    settings: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture(params=[None, SPACES[0]], ids=["ordinary", "space"])
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], BaseSampler]:
        """Makes a sampler to test."""
        return lambda: make_sampler(self.tested, request.param, 0, self.options, **self.settings)


def ask(study: optuna.Study, space: SearchSpace) -> tuple[optuna.Trial, int]:
    """A new trial of a study, and the index of its configuration; -1 if it is not legal."""
    trial = study.ask({**distributions(space)})
    return trial, int(space.find([trial.params[knob.name] for knob in space.knobs]))


def tell(study: optuna.Study, trial: optuna.Trial, index: int) -> None:
    """Tell the outcome of a configuration: of eight, one failed, one was pruned, the others were timed, in µs."""
    time = 5.0 + (7 * index) % 23
    if index % 8 == 3:
        study.tell(trial, state=TrialState.FAIL)
    elif index % 8 == 5:
        trial.report(3 * time, 0)
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, time)


def search(study: optuna.Study, space: SearchSpace, trials: int) -> list[int]:
    """Ask and tell, one by one; the indices of the configurations."""
    asked = []
    for _ in range(trials):
        trial, index = ask(study, space)
        tell(study, trial, index)
        asked.append(index)
    return asked


def codes_of(space: SearchSpace, index: int) -> dict[str, int]:
    """A configuration as the parameters of a trial."""
    return dict(zip(distributions(space), map(int, space.codes[index]), strict=True))


def journal(path: Path) -> JournalStorage:
    """A study's storage in a file."""
    return JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))


def check_opinions(study: optuna.Study) -> None:
    """Check the form of what a sampler says of going on, of the next trial's gain and of a configuration's time."""
    sampler = study.sampler
    assert isinstance(sampler, SpaceSampler)
    reason, gain, expected = sampler.done(study), sampler.gain(study), sampler.expected(0)
    assert reason is None or (reason and "\n" not in reason)
    assert gain is None or (math.isfinite(gain) and gain >= 0)
    assert expected is None or (expected.time_us > 0 and expected.low_us <= expected.time_us <= expected.high_us)
