"""Every use of optuna that its documentation does not promise, in one place, for the versions that it was tested on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import GPSampler, TPESampler
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna.trial import FrozenTrial

from tilescout.spaces.errors import StoreError

if TYPE_CHECKING:
    from optuna._gp.acqf import BaseAcquisitionFunc
    from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator

TESTED = ">=5,<6"
"""The versions that this was tested on, as ``pyproject.toml`` has them; any other is refused."""

OPERATION = "op_code"
"""The key that every record of optuna's journals has, and begins with."""

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
