"""A sampler as a contender, in the loop that ``tilescout tune`` runs."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import optuna

from tilescout.costmodel.estimator import CostModel
from tilescout.experiments.compare.asking import LivePart
from tilescout.experiments.compare.contender import Answering, Contender
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.samplers import AnySampler, SpaceSampler, find_sampler, make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.options import Option, OptionValue, read_options
from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.loop import run
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace

_LOG = logging.getLogger("tilescout")

WHOLE = Option("whole", 0, 0, 1, "1: go on also where the sampler finds that it is not worth it")
DEFAULT = Option("default", 0, 0, 1, "1: try the default first, as `tilescout tune` does")
_OURS = (WHOLE, DEFAULT)


@dataclass(frozen=True)
class SamplerContender(Contender):
    """A sampler that searches a replayed table, or live; unlike ``tilescout tune`` it does not begin with the default.

    One that uses a cost model gets a model of the same table that was trained without the problems of this shape. Where
    the table has nothing to learn from it searches without one, as ``tilescout tune`` does.

    Attributes
    ----------
    sampler
        Its name or ``module:Class``, without options; or a class; or an object, which is copied for every search and
        given the seed of the search. An object of a plain optuna sampler keeps its own random state.
    """

    sampler: AnySampler

    @property
    def deterministic(self) -> bool:
        return self._kind is not None and self._kind.deterministic

    def deterministic_on(self, table: Path) -> bool:
        return self.deterministic and (not self._takes_model or held_out(table, self.models).can_learn())

    @property
    def packages(self) -> tuple[str, ...]:
        return ("optuna", "scikit-learn")

    def prepare(self, table: Path, problems: Sequence[str], processes: int) -> None:
        if self._takes_model:
            models = held_out(table, self.models)
            if not models.can_learn():
                _LOG.warning(f"{self.name} searches without a cost model: {table} has nothing that one can learn from")
                return
            models.train(list(dict.fromkeys(map(models.of_shape, problems))), processes)

    def check(self) -> None:
        if not isinstance(self.sampler, str):
            _check_importable(self.sampler if isinstance(self.sampler, type) else type(self.sampler))
        self._make(None, 0)
        self._own()

    def play(self, engine: Answering, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        own, found = self._own(), engine.recording(problem)
        study = optuna.create_study(sampler=self._sampler(found, seed), direction="minimize")
        tried: list[int] = []
        in_full = []
        if own[DEFAULT.name] and found.default in found.space:
            in_full.append(found.space.index(found.default))
            codes = map(int, found.space.codes[in_full[0]])
            study.enqueue_trial(dict(zip(distributions(found.space), codes, strict=True)))
        with Evaluator(engine, problem) as evaluator:
            budget = Budget(trials, whole=bool(own[WHOLE.name]))
            run(study, evaluator, budget, evaluator.library_us(), lambda trial: tried.append(trial.index), in_full)
        return tried

    @property
    def _kind(self) -> type[SpaceSampler] | None:
        """The sampler's class; None for an object of a plain optuna sampler."""
        if isinstance(self.sampler, str | type):
            return find_sampler(self.sampler)
        return type(self.sampler) if isinstance(self.sampler, SpaceSampler) else None

    @property
    def _takes_model(self) -> bool:
        return isinstance(self.sampler, str | type) and find_sampler(self.sampler).uses_model

    def _own(self) -> dict[str, OptionValue]:
        """The options of the comparison, beside those of the sampler."""
        names = [option.name for option in _OURS]
        given = {name: value for name, value in self.options.items() if name in names}
        return read_options(self.name, _OURS, given)

    def _sampler(self, recording: RecordedSpace | LivePart, seed: int) -> SpaceSampler:
        if self._takes_model and isinstance(recording, RecordedSpace):
            model = _model_without(recording.table.path, self.models, str(recording.problem))
            return self._make(recording.space, seed, model=model)
        made = self._make(recording.space, seed)
        if made.hindsight:
            raise SamplerError(
                f"{self.name}: its cost model was trained on {recording.space.problem}, which is replayed; give its "
                "name or its class, and it gets one that was not"
            )
        return made

    def _make(self, space: SearchSpace | None, seed: int, **settings: Any) -> SpaceSampler:
        if isinstance(self.sampler, SpaceSampler):
            return self.sampler.over(space, seed)
        options = {name: value for name, value in self.options.items() if name not in [each.name for each in _OURS]}
        return make_sampler(self.sampler, space, seed, options, **settings)


def held_out(table: Path, folder: Path) -> HeldOutModels:
    """The models of a comparison: fitted like the one that is shipped."""
    return HeldOutModels((table.absolute(),), folder)


@lru_cache(maxsize=2)  # a process plays the searches of a problem one after the other
def _model_without(table: Path, folder: Path, problem: str) -> CostModel | None:
    models = held_out(table, folder)
    if not models.can_learn():
        return None
    return models.without(models.of_shape(problem))


def _check_importable(kind: type) -> None:
    """Refuse a class that other processes could not find."""
    try:
        found = attrgetter(kind.__qualname__)(sys.modules[kind.__module__])
    except (AttributeError, KeyError):
        found = None
    if found is not kind:
        raise SamplerError(f"{kind.__qualname__} runs in other processes, which import it: define it in a module")
