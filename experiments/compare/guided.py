"""The guided search as a contender: its cost model has never seen the problem that is replayed."""

from functools import lru_cache

from tilescout.costmodel.estimator import CostModel
from tilescout.experiments.compare.contenders import HouseSampler
from tilescout.search.evaluate.replay import ReplayEvaluator
from tilescout.search.evaluate.table import Table
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.sources import template_of
from tilescout.search.training import train_model
from tilescout.spaces.problems import Problem


class GuidedSearch(HouseSampler):
    """The sampler ``guided`` with a model of the same table, trained without the problem; it stops by itself."""

    def sampler(self, evaluator: ReplayEvaluator, seed: int) -> SpaceSampler:
        model = _model_without(evaluator.table, evaluator.space.problem)
        return self._make(evaluator.space, seed, model=model)


@lru_cache(maxsize=2)  # a process plays the seeds of a problem one after the other
def _model_without(table: Table, problem: Problem) -> CostModel:
    return train_model(table, template_of(table), without=[problem])
