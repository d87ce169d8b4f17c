"""Every use of optuna that its documentation does not promise, in one place, for the versions that it was tested on."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import optuna
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna.trial import FrozenTrial

from tilescout.spaces.errors import StoreError

TESTED = ">=5,<6"
"""The versions that this was tested on, as ``pyproject.toml`` has them; any other is refused."""

OPERATION = "op_code"
"""The key that every record of optuna's journals has, and begins with."""

_QUEUED = "fixed_params"  # the system attribute in which optuna keeps the parameters of an enqueued trial


def all_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of a study in the order of their numbers, as its storage has them now; not to be changed."""
    # Not study.get_trials(): with a Hyperband pruner samplers are handed a study that shows only part of its trials.
    storage, number = study_key(study)
    return storage.get_all_trials(number, deepcopy=False)


def study_key(study: optuna.Study) -> tuple[BaseStorage, int]:
    """What a study is known by: its storage, and its number there."""
    _check_version()
    return study._storage, study._study_id


def live_trial(study: optuna.Study, frozen: FrozenTrial) -> optuna.Trial:
    """A handle on an unfinished trial that another handle, perhaps of another process, asked for."""
    _check_version()
    return optuna.Trial(study, frozen._trial_id)


def set_system_attribute(study: optuna.Study, trial: FrozenTrial, key: str, value: Any) -> None:
    """Store a system attribute of a trial: what a sampler keeps for itself."""
    storage, _ = study_key(study)
    storage.set_trial_system_attr(trial._trial_id, key, value)


def queued_parameters(trial: FrozenTrial) -> dict[str, Any]:
    """The parameters that an enqueued trial was given, some or all; they outlive its being run."""
    given: Mapping[str, Any] = trial.system_attrs.get(_QUEUED, {})
    return dict(given)


def cached(storage: RDBStorage) -> BaseStorage:
    """The storage of a database, with finished trials kept in memory, as optuna's studies use it."""
    _check_version()
    return get_storage(storage)


@cache
def _check_version() -> None:
    from packaging.specifiers import SpecifierSet

    installed = version("optuna")
    if not SpecifierSet(TESTED).contains(installed, prereleases=True):
        raise StoreError(f"optuna {installed} is installed, and tested is {TESTED}: install one of these")
