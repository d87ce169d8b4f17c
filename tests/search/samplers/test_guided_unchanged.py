"""Findings about a study's trials are worked out anew once one of them changed, and not before."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import optuna
import pytest

from tilescout.search.samplers.guided.unchanged import Unchanged
from tilescout.search.studies.optuna_hooks import LongJournal

KNOB: dict[str, optuna.distributions.BaseDistribution] = {"knob": optuna.distributions.IntDistribution(0, 9)}
STORAGES: dict[str, Callable[[Path], optuna.storages.BaseStorage]] = {
    "memory": lambda folder: optuna.storages.InMemoryStorage(),
    "journal": lambda folder: LongJournal(optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))),
    "database": lambda folder: optuna.storages.RDBStorage(f"sqlite:///{folder / 'studies.db'}"),
}


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> optuna.storages.BaseStorage:
    """A storage of each kind."""
    return STORAGES[request.param](tmp_path)


def test_every_change_of_a_trial_is_seen(storage: optuna.storages.BaseStorage) -> None:
    study = optuna.create_study(storage=storage)
    kept: Unchanged[list[tuple[object, ...]]] = Unchanged()

    def states() -> list[tuple[object, ...]]:
        return [(t.state, t.params, t.value, t.system_attrs, t.user_attrs) for t in study.get_trials(deepcopy=True)]

    def now() -> list[tuple[object, ...]]:
        return kept.of(study, study.get_trials(deepcopy=False), "states", states)

    assert now() == []
    study.enqueue_trial({"knob": 3})
    assert now() == states()
    trial = study.ask()
    assert now() == states()
    trial.suggest_int("knob", 0, 9)
    assert now() == states()
    trial.set_user_attr("said", 1)
    assert now() == states()
    study.tell(trial, 1.0)
    assert now() == states()
    study.ask(KNOB)
    assert now() == states()


def test_nothing_is_worked_out_twice_while_nothing_changes(tmp_path: Path) -> None:
    study = optuna.create_study(storage=STORAGES["journal"](tmp_path))
    for value in range(3):
        study.tell(study.ask(KNOB), value)
    study.ask(KNOB)
    kept, calls = Unchanged[int](), list[str]()

    def asked(which: str) -> int:
        def work_out() -> int:
            calls.append(which)
            return len(calls)

        return kept.of(study, study.get_trials(deepcopy=False), which, work_out)

    assert [asked("one"), asked("other"), asked("one"), asked("other")] == [1, 2, 1, 2]
    study.ask(KNOB)
    assert asked("one") == 3


def test_two_studies_are_told_apart_though_neither_has_a_trial(tmp_path: Path) -> None:
    storage = STORAGES["journal"](tmp_path)
    kept = Unchanged[str]()
    for name in ("one", "other"):
        assert kept.of(optuna.create_study(storage=storage), [], "name", partial(str, name)) == name
