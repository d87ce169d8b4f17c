"""The guided search as a contender: its cost model has never seen the problem that is replayed."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tilescout.costmodel.estimator import CostModel
from tilescout.experiments.compare.contenders import HouseSampler
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.tables.recorded_space import RecordedSpace


class GuidedSearch(HouseSampler):
    """The sampler ``guided`` with a model of the same table, trained without the problem; it stops by itself.

    With a model nothing in it is random.
    """

    @property
    def deterministic(self) -> bool:
        return True

    def prepare(self, table: Path, problems: Sequence[str], processes: int) -> None:
        held_out(table, self.models).train([(problem,) for problem in problems], processes)

    def sampler(self, recording: RecordedSpace, seed: int) -> SpaceSampler:
        model = _model_without(recording.table.path, self.models, str(recording.problem))
        return self._make(recording.space, seed, model=model)


def held_out(table: Path, folder: Path) -> HeldOutModels:
    """The models of a comparison: fitted like the one that is shipped."""
    return HeldOutModels(table.absolute(), folder)


@lru_cache(maxsize=2)  # a process plays the searches of a problem one after the other
def _model_without(table: Path, folder: Path, problem: str) -> CostModel:
    return held_out(table, folder).without([problem])
