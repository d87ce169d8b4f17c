"""Any sampler of optuna's, kept to the configurations that are legal and were not tried."""

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.samplers.base import SpaceSampler
from tilescout.spaces.errors import SamplerError, TilescoutError
from tilescout.spaces.faults import described
from tilescout.spaces.space import Indices, SearchSpace


@contextmanager
def _told(sampler: BaseSampler, doing: str = "propose") -> Iterator[None]:
    """Turn an error of somebody's sampler into ours."""
    try:
        yield
    except TilescoutError:
        raise
    except Exception as error:  # what it imports is missing, or it asks for more than a search can tell it
        raise SamplerError(f"{type(sampler).__name__} can't {doing} a trial: {described(error)}") from error


class OrdinarySampler(SpaceSampler):
    """An optuna sampler whose proposals are moved to the nearest free configuration.

    Optuna samplers know neither constraints nor what was tried: they would propose configurations that can't be built,
    and some again and again. Samplers that choose among legal configurations find faster ones, see
    `tilescout.search.samplers.tpe`.

    Attributes
    ----------
    kind
        The optuna sampler's class. One is made for every proposal, with a seed of its own, so that a resumed study goes
        on as it would have.
    """

    kind: ClassVar[type[BaseSampler]]

    def ordinary(self, seed: int) -> BaseSampler:
        takes_seed = "seed" in inspect.signature(self.kind).parameters
        return self.kind(seed=seed) if takes_seed else self.kind()  # type: ignore[call-arg]

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        sampler = self.ordinary(self.seed_of(trial))
        with _told(sampler):
            sampler.before_trial(study, trial)  # some, as optunahub's AutoSampler, choose here how they sample
        return self._nearest(sampler, study, trial, free)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        with _told(self._ordinary):
            return super().infer_relative_search_space(study, trial)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        with _told(self._ordinary):
            super().before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        with _told(self._ordinary, "learn from"):
            super().after_trial(study, trial, state, values)

    def _nearest(self, sampler: BaseSampler, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        with _told(sampler):
            chosen = self._chosen(sampler, study, trial)
            return self.space.nearest([chosen.get(name, 0) for name in self.knobs], free)

    def _chosen(self, sampler: BaseSampler, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        inferred = sampler.infer_relative_search_space(study, trial)
        relative = {name: found for name, found in inferred.items() if self.variable_knobs.get(name) == found}
        chosen = sampler.sample_relative(study, trial, relative)
        so_far = copy.copy(trial)  # as optuna has it: what was chosen before is known
        for name, knob in self.variable_knobs.items():  # in their order: each takes the next random number
            if name not in chosen:
                so_far.params = {**trial.params, **chosen}
                chosen[name] = sampler.sample_independent(study, so_far, name, knob)
        return chosen


class GivenSampler(OrdinarySampler):
    """An optuna sampler that somebody made; it keeps its own random state, which no seed settles."""

    def __init__(self, sampler: BaseSampler, space: SearchSpace | None = None, seed: int | None = None) -> None:
        self._given = sampler
        super().__init__(space, seed)

    @property
    def label(self) -> str:
        return type(self._given).__name__

    def ordinary(self, seed: int) -> BaseSampler:
        return copy.deepcopy(self._given)

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        return self._nearest(self._ordinary, study, trial, free)


def among_legal(kind: type[BaseSampler]) -> type[SpaceSampler]:
    """The class of samplers over legal configurations that an optuna sampler's class stands for."""
    summary = (kind.__doc__ or "").strip().partition("\n")[0]
    return type(kind.__name__, (OrdinarySampler,), {"name": kind.__name__, "summary": summary, "kind": kind})
