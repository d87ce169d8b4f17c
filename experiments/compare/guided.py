"""The guided search as a contender: its cost model has never seen the problem that is replayed."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import optuna

from tilescout.costmodel.learned import ForestModel
from tilescout.experiments.compare.contenders import Contender
from tilescout.experiments.sources import template_of
from tilescout.search.evaluate.replay import ReplayEvaluator
from tilescout.search.evaluate.table import Table
from tilescout.search.loop import Budget, run
from tilescout.search.samplers import make_sampler
from tilescout.search.training import train_model
from tilescout.spaces.knobs import Configuration


class GuidedSearch(Contender):
    """The sampler ``guided`` with a model of the same table, trained without the problem; it stops by itself."""

    def check(self) -> None:
        make_sampler("guided", None, 0, self.options, model=None)

    def play(self, evaluator: ReplayEvaluator, default: Configuration, trials: int, seed: int) -> Sequence[int]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        model = _model_without(evaluator.table.path, str(evaluator.space.problem))
        sampler = make_sampler("guided", evaluator.space, seed, self.options, model=model)
        study = optuna.create_study(sampler=sampler, direction="minimize")
        tried: list[int] = []
        run(study, evaluator, Budget(trials), evaluator.library_us(), lambda trial: tried.append(trial.index))
        return tried


@lru_cache(maxsize=2)  # a process plays the seeds of a problem one after the other
def _model_without(path: Path, problem: str) -> ForestModel:
    table = Table.read(path)
    template = template_of(table)
    return train_model(table, template, without=[template.parse(problem)])
