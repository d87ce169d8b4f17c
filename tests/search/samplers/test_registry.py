"""How samplers are found and made: by name, module:Class, entry point, class and object; and what they are told."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial

from tilescout.search import tune
from tilescout.search.samplers import (
    SAMPLERS,
    Option,
    SpaceSampler,
    distributions,
    find_sampler,
    make_sampler,
    other_samplers,
    parse_sampler,
)
from tilescout.search.samplers.registry import GROUP
from tilescout.search.samplers.testing import SPACES, search
from tilescout.search.samplers.tpe import TPESampler
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import tune_suite
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.space import Indices

Install = Callable[..., None]
SPACE = SPACES[0]
SOURCE = """
from tilescout.search.samplers import SpaceSampler

class {name}(SpaceSampler):
    '''The last free configuration.'''

    name = "{name}".lower()

    def propose(self, study, trial, free):
        return int(free[-1])
"""


class LastSampler(SpaceSampler):
    """The last free configuration.

    Or one before it.
    """

    options = (Option("before", 0, 0, 5, "how many before the last"), Option("weight", 0.5, 0.0, 1.0, "of nothing"))

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        return int(free[max(len(free) - 1 - int(self.option["before"]), 0)])


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("tpe", "tpe", {}),
        ("lfbo:copies=5:initial=9", "lfbo", {"copies": "5", "initial": "9"}),
        ("mine.samplers:Mine", "mine.samplers:Mine", {}),
        ("mine:Mine:a=1:b=2", "mine:Mine", {"a": "1", "b": "2"}),
        ("unheard-of", "unheard-of", {}),
    ],
)
def test_what_a_person_writes_is_a_name_and_options(text: str, name: str, options: dict[str, str]) -> None:
    assert parse_sampler(text) == (name, options)


@pytest.mark.parametrize("text", ["lfbo:copies", "lfbo:=5", "lfbo:copies=", "mine:Mine:a", ":Mine", "mine:", "tpe:"])
def test_what_is_malformed_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(SamplerError, match=f"malformed strategy {text!r}: expected NAME"):
        parse_sampler(text)


def test_an_option_that_is_given_twice_is_refused() -> None:
    with pytest.raises(SamplerError, match="given twice"):
        parse_sampler("lfbo:copies=1:copies=2")
    with pytest.raises(SamplerError, match="copies is given twice"):
        make_sampler("lfbo:copies=1", options={"copies": 2})


def test_every_class_is_known_by_its_own_name_and_says_what_it_does() -> None:
    assert list(SAMPLERS) == ["exhaustive", "random", "tpe", "gp", "lfbo", "evolutionary", "guided", "guided-cold"]
    for name, kind in SAMPLERS.items():
        assert kind.name == name
        assert kind.summary
        assert make_sampler(name).label == name
    assert {name for name, kind in SAMPLERS.items() if kind.learns_from_others} == {"guided", "guided-cold"}
    assert {name for name, kind in SAMPLERS.items() if kind.uses_model} == {"guided"}
    assert {name for name, kind in SAMPLERS.items() if kind.deterministic} == {"exhaustive", "guided"}
    assert "magic" not in SAMPLERS
    assert SAMPLERS.get("magic") is None


def test_a_class_is_called_as_it_is_written_unless_it_says_otherwise() -> None:
    assert (LastSampler.name, LastSampler.summary) == ("LastSampler", "The last free configuration.")


def test_a_label_has_the_options_that_are_not_the_default_and_makes_the_same_sampler() -> None:
    made = make_sampler(LastSampler, SPACE, 0, {"weight": "0.25", "before": 0})
    assert made.label == "LastSampler:weight=0.25"
    assert make_sampler("guided-cold:gain=0.05:startup=5").label == "guided-cold:gain=0.05"


def test_an_installed_sampler_is_found_by_its_name(install: Install) -> None:
    install("last-samplers", "last", SOURCE.format(name="Last"), "Last", GROUP)
    assert "last" in SAMPLERS
    assert list(SAMPLERS)[-1] == "last"
    study = optuna.create_study(sampler=make_sampler("last", SPACE, 0))
    assert search(study, SPACE, 2) == [len(SPACE) - 1, len(SPACE) - 2]


def test_a_package_is_not_imported_before_its_sampler_is_asked_for(install: Install) -> None:
    install("loud-samplers", "loud", "raise RuntimeError('imported')", "Loud", GROUP)
    assert "loud" in list(SAMPLERS)
    make_sampler("random", SPACE)
    with pytest.raises(SamplerError, match=r"sampler 'loud' of loud-samplers 1\.0 is broken.*RuntimeError: imported"):
        find_sampler("loud")


def test_names_that_clash_are_refused_with_the_reason(install: Install) -> None:
    for package in ("one-samplers", "two-samplers"):
        install(package, "twice", SOURCE.format(name="Twice"), "Twice", GROUP)
    install("greedy-samplers", "tpe", SOURCE.format(name="Greedy"), "Greedy", GROUP)
    install("odd-samplers", "ranking.odd", SOURCE.format(name="Odd"), "Odd", GROUP)
    assert find_sampler("tpe") is TPESampler
    assert "the name is tilescout's own" in other_samplers().refused["tpe"]
    with pytest.raises(SamplerError, match=r"'twice' is registered by one-samplers 1\.0 and two-samplers 1\.0"):
        find_sampler("twice")
    with pytest.raises(SamplerError, match=r"'ranking.odd' of odd-samplers 1\.0 is refused: a name has letters"):
        find_sampler("ranking.odd")
    assert find_sampler("two_samplers:Twice").name == "twice"


def test_a_sampler_that_calls_itself_otherwise_than_its_package_does_is_refused(install: Install) -> None:
    install("renamed-samplers", "former", SOURCE.format(name="Latter"), "Latter", GROUP)
    with pytest.raises(SamplerError, match="sampler 'former' calls itself 'latter': the names must agree"):
        find_sampler("former")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module:Mine", "can't load 'no_such_module:Mine': ModuleNotFoundError"),
        ("tilescout.spaces.knobs:Knob", "is no class of optuna samplers, but a Knob"),
        ("tilescout.search.samplers.registry:GROUP", "is no class of optuna samplers, but a str"),
    ],
)
def test_what_is_no_sampler_is_refused(name: str, reason: str) -> None:
    with pytest.raises(SamplerError, match=reason):
        make_sampler(name)


def test_an_object_is_copied_with_the_space_of_the_search_and_keeps_its_seed() -> None:
    mine = make_sampler("random", None, 7)
    made = make_sampler(mine, SPACE, 0)
    assert (made.seed, mine.knobs) == (7, {})
    first, second = (
        search(optuna.create_study(sampler=sampler), SPACE, 6) for sampler in (made, make_sampler("random", SPACE, 7))
    )
    assert first == second
    assert make_sampler(TPESampler(startup=3), SPACE, 4).seed == 4
    with pytest.raises(SamplerError, match="'startup' can't be set on an object; give its class"):
        make_sampler(mine, SPACE, 0, {"startup": 3})


def test_an_optuna_sampler_proposes_what_is_legal_and_was_not_tried() -> None:
    given = optuna.samplers.TPESampler(seed=3, n_startup_trials=2)
    asked = search(optuna.create_study(sampler=make_sampler(given, SPACE)), SPACE, len(SPACE))
    assert sorted(asked) == list(range(len(SPACE)))


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_an_optuna_sampler_sees_what_it_chose_before_of_a_trial() -> None:
    brute = optuna.samplers.BruteForceSampler(seed=1)  # asks which trials have had the knobs that were chosen
    asked = search(optuna.create_study(sampler=make_sampler(brute, SPACE)), SPACE, 12)
    assert len(set(asked)) == 12


class Noting(optuna.samplers.RandomSampler):
    """Notes which knobs it is asked for."""

    def sample_independent(self, study, trial, param_name, param_distribution):
        ASKED.append(param_name)
        return super().sample_independent(study, trial, param_name, param_distribution)


class Unfinished(SpaceSampler):
    """Proposes nothing."""


class Mute(optuna.samplers.RandomSampler):
    def sample_independent(self, study, trial, param_name, param_distribution):
        raise ModuleNotFoundError("No module named 'rare'")


class Picky(optuna.samplers.RandomSampler):
    def before_trial(self, study, trial):
        raise ValueError("two objectives")


class Deaf(optuna.samplers.RandomSampler):
    def after_trial(self, study, trial, state, values):
        raise ValueError("two objectives")


class Aloof(optuna.samplers.RandomSampler):
    def infer_relative_search_space(self, study, trial):
        raise ValueError("two objectives")


ASKED: list[str] = []


def test_an_optuna_sampler_is_asked_for_knobs_in_their_order_so_that_its_seed_settles_all() -> None:
    ASKED.clear()
    sampler = make_sampler(Noting, SPACE, 0)
    search(optuna.create_study(sampler=sampler), SPACE, 3)
    assert list(sampler.variable_knobs) * 3 == ASKED


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (optuna.samplers.GridSampler, "sampler GridSampler can't be made: TypeError: .*'search_space'"),
        (Unfinished, "sampler Unfinished can't be made: TypeError: .*abstract"),
        (Mute, "Mute can't propose a trial: ModuleNotFoundError: No module named 'rare'"),
        (Picky, "Picky can't propose a trial: ValueError: two objectives"),
        (Aloof, "Aloof can't propose a trial: ValueError: two objectives"),
        (Deaf, "Deaf can't learn from a trial: ValueError: two objectives"),
    ],
)
def test_a_sampler_that_can_not_be_made_or_asked_says_why(kind: type, reason: str) -> None:
    with pytest.raises(SamplerError, match=reason):
        search(optuna.create_study(sampler=make_sampler(kind, SPACE, 0)), SPACE, 1)


@pytest.mark.parametrize("value", [None, [1], float("inf"), 10**400, "1e400"])
def test_what_is_no_number_of_an_option_is_refused(value: object) -> None:
    for name, option in (("gp", "startup"), ("guided", "length")):
        with pytest.raises(SamplerError, match=f"{name}: option {option} can't be"):
            make_sampler(name, SPACE, 0, {option: value})  # type: ignore[dict-item]


def test_an_optuna_sampler_is_heard_and_not_only_replaced() -> None:
    class Highest(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, param_name, param_distribution):
            return param_distribution.high

    study = optuna.create_study(sampler=make_sampler(Highest(), SPACE))
    trial = study.ask({**distributions(SPACE)})
    far = np.abs(SPACE.codes - (np.array(SPACE.shape) - 1)) / np.maximum(np.array(SPACE.shape) - 1, 1)
    asked = int(SPACE.find([trial.params[name] for name in distributions(SPACE)]))
    assert far.sum(axis=1)[asked] == pytest.approx(far.sum(axis=1).min())


@pytest.mark.parametrize(
    ("sampler", "name", "seed"),
    [
        (LastSampler, "LastSampler", 2),
        (LastSampler(seed=9, before=2), "LastSampler:before=2", 9),
        (optuna.samplers.RandomSampler(seed=1), "RandomSampler", 2),
        ("tpe:startup=3", "tpe:startup=3", 2),
    ],
    ids=["class", "object", "optuna's", "text"],
)
def test_tune_takes_a_sampler_in_any_form_and_names_the_study_after_it(
    invented_table: Table, tmp_path: Path, sampler: object, name: str, seed: int
) -> None:
    problem = invented_table.problems[0]

    def run(trials: int, resume: bool) -> list[int]:
        result = tune(
            "gemm_sm90",
            problem,
            sampler=sampler,  # type: ignore[arg-type]
            seed=2,
            budget=Budget(trials=trials),
            device="replay",
            table=invented_table.path,
            store=tmp_path,
            resume=resume,
            mlflow=False,
        )
        assert (result.info.sampler, result.info.seed) == (name, seed)
        assert f"-{name.replace(':', '-')}-s{seed}" in result.info.name
        return [trial.index for trial in result.trials]

    first = run(6, resume=False)
    assert len(set(first)) == 6
    assert run(8, resume=True)[:6] == first


def test_a_suite_takes_no_object(tmp_path: Path) -> None:
    options = TuneOptions(LastSampler(seed=0), 0, Budget(trials=2), tmp_path)
    with pytest.raises(SamplerError, match="need a sampler each"):
        tune_suite(None, [], options)  # type: ignore[arg-type]
