"""Every use of optuna that its documentation does not promise, in one place, for the versions that it was tested on."""

import copy
import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import GPSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from tilescout.spaces.errors import StoreError

if TYPE_CHECKING:
    from optuna._gp.acqf import BaseAcquisitionFunc
    from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator
    from sqlalchemy.orm import Session

TESTED = ">=5,<6"
"""The versions that this was tested on, as ``pyproject.toml`` has them; any other is refused."""

OPERATION = "op_code"
"""The key that every record of optuna's journals has, and begins with."""

MAKES_STUDY = 0
"""The operation of a record that makes a study. Who resumes one writes it, too, and it is then without effect."""

_TOKEN = "tilescout:token"  # the system attribute of a study in a database that no other study has the value of
_QUEUED = "fixed_params"  # the system attribute in which optuna keeps the parameters of an enqueued trial


def all_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials of a study in the order of their numbers, as its storage has them now; not to be changed."""
    # Not study.get_trials(): with a Hyperband pruner optuna hands samplers a study that shows only part of the trials.
    storage, number = study_key(study)
    return storage.get_all_trials(number, deepcopy=False)


def study_key(study: optuna.Study) -> tuple[BaseStorage, int]:
    """The identity of a study: its storage, and its number there."""
    _check_version()
    return study._storage, study._study_id


def token_of(study: optuna.Study) -> str | None:
    """The text that tells a study from any other, also from a later one of its name or number; None if it has none."""
    storage, number = study_key(study)
    token = storage.get_study_system_attrs(number).get(_TOKEN)
    return token if isinstance(token, str) else None


def give_token(study: optuna.Study) -> str:
    """The token of a study, which is made if it has none. Call it while holding the study's lock."""
    storage, number = study_key(study)
    token = token_of(study)
    if token is None:
        token = uuid.uuid4().hex
        storage.set_study_system_attr(number, _TOKEN, token)
    return token


@contextmanager
def only_with_token(
    storage: RDBStorage, study: optuna.Study, token: str, error: Callable[[], Exception]
) -> Iterator[None]:
    """Have each transaction with an SQLite file fail, and write nothing, once it no longer holds a study.

    Optuna's tables in SQLite give the numbers of a deleted study and of its trials to the next ones. Without this, who
    searches a deleted study would write into another one. It takes 0.1 ms a transaction, of which a trial has some 20
    (2026-11-30).

    Parameters
    ----------
    storage
        The file, as this process writes it.
    study, token
        The study, and what `give_token` gave it.
    error
        Makes the error that is raised then.
    """
    import sqlalchemy

    _, number = study_key(study)
    asked = "SELECT 1 FROM study_system_attributes WHERE study_id = ? AND key = ? AND value_json = ?"

    def check(session: "Session") -> None:
        session.flush()  # from its first write on, nobody else writes before it is committed
        if session.connection().exec_driver_sql(asked, (number, _TOKEN, json.dumps(token))).first() is None:
            raise error()

    sqlalchemy.event.listen(storage.scoped_session, "before_commit", check)
    try:
        yield
    finally:
        sqlalchemy.event.remove(storage.scoped_session, "before_commit", check)


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
    given = trial.system_attrs.get(_QUEUED)
    return dict(given) if isinstance(given, Mapping) else {}


def cached(storage: RDBStorage) -> BaseStorage:
    """The storage of a database, with finished trials kept in memory, as optuna's studies use it."""
    _check_version()
    return get_storage(storage)


class LongJournal(JournalStorage):
    """Optuna's storage in a journal, which lists the trials of a study at once, however many there are.

    Optuna looks at each trial whenever it lists them, four times a trial: 2 ms each at 10,000 trials. Here it looks at
    those that were not finished the last time.
    """

    def __init__(self, log_storage: BaseJournalBackend) -> None:
        super().__init__(log_storage)
        self._listed: dict[int, tuple[list[FrozenTrial], set[int]]] = {}  # and the numbers of the unfinished ones

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials of a study, or those in some states."""
        _check_version()
        with self._thread_lock:
            self._sync_with_backend()
            known: Mapping[int, FrozenTrial] = self._replay_result._trials
            numbers = self._replay_result._study_id_to_trial_ids.get(study_id)
            if numbers is None:
                raise KeyError(f"there is no study {study_id}")
            trials, unfinished = self._listed.setdefault(study_id, ([], set()))
            for number in (*unfinished, *range(len(trials), len(numbers))):
                trial = known[numbers[number]]
                trials[number : number + 1] = [trial]
                (unfinished.discard if trial.state.is_finished() else unfinished.add)(number)
            if states is None:
                found = list(trials)
            elif any(state.is_finished() and state in states for state in TrialState):
                found = [trial for trial in trials if trial.state in states]
            else:
                found = [trials[number] for number in sorted(unfinished) if trials[number].state in states]
            return copy.deepcopy(found) if deepcopy else found


class TPEOfAllowed(TPESampler, ABC):
    """Optuna's tree-structured Parzen estimator, to which a draw that is not allowed is worth nothing."""

    @abstractmethod
    def allowed(self, samples: Mapping[str, NDArray[np.float64]], count: int) -> NDArray[np.bool_]:
        """Mask of the draws that are allowed, of shape [count].

        Parameters
        ----------
        samples
            The values of each parameter that was drawn, of shape [count].
        count
            How many draws there are.
        """

    def _compute_acquisition_func(
        self, samples: dict[str, NDArray[np.float64]], mpe_below: "_ParzenEstimator", mpe_above: "_ParzenEstimator"
    ) -> NDArray[np.float64]:
        _check_version()
        worth = super()._compute_acquisition_func(samples, mpe_below, mpe_above)
        return np.where(self.allowed(samples, len(worth)), worth, -np.inf)


class GPOfChoice(GPSampler, ABC):
    """Optuna's Gaussian process, whose acquisition function is maximised by a method of one's own."""

    @abstractmethod
    def choose(self, worth_of: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
        """The point to try, of shape [parameters].

        Parameters
        ----------
        worth_of
            The acquisition function: its values of shape [points] at points of shape [points, parameters]. A parameter
            is scaled as optuna does it, every code in the middle of its cell of [0, 1].
        """

    def sample(
        self,
        study: optuna.Study,
        finished: list[FrozenTrial],
        running: list[FrozenTrial],
        parameters: Mapping[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The parameters to try next, of a process that is fitted to these trials and to no others."""
        _check_version()
        return self._sample_relative_impl(study, finished, running, dict(parameters))

    def _optimize_acqf(
        self, acqf: "BaseAcquisitionFunc", best_params: NDArray[np.float64] | None
    ) -> NDArray[np.float64]:
        return self.choose(acqf.eval_acqf_no_grad)


@cache
def _check_version() -> None:
    from packaging.specifiers import SpecifierSet

    installed = version("optuna")
    if not SpecifierSet(TESTED).contains(installed, prereleases=True):
        raise StoreError(f"optuna {installed} is installed, and tested is {TESTED}: install one of these")
