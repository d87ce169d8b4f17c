"""Evolutionary search on a model that is learnt meanwhile, as TVM's schedulers search."""

from typing import TYPE_CHECKING

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.options import Option
from tilescout.search.studies.optuna_hooks import set_system_attribute
from tilescout.spaces.space import Indices

if TYPE_CHECKING:
    from sklearn.ensemble import GradientBoostingRegressor

PLAN = "tilescout:evolutionary"
"""The system attribute of the first trial of a batch that holds the configurations of the batch."""

Floats = NDArray[np.float64]


class EvolutionarySampler(SpaceSampler):
    """Populations that evolve by mutation on a model's estimate; the best of what they met is measured, in batches.

    The first batch is random. Before every other one, boosted trees learn the speed of all trials, relative to the
    fastest; failed ones have none. A population is made of the fastest trials and of random configurations. Each
    generation is drawn from the one before it, the likelier the faster the model holds a configuration. Most of those
    drawn mutate: one knob gets another value. A mutation that is not legal changes nothing. Of all configurations that
    any generation had and no trial has, the next batch takes those that the model holds for the fastest, and a few at
    random.

    It is the search of MetaSchedule (Shao et al., "Tensor program optimization with probabilistic programs", NeurIPS
    2022) and of Ansor before it (OSDI 2020), with MetaSchedule's constants as of TVM 0.20, over the knobs of a space in
    place of a schedule's decisions. Batches are smaller: MetaSchedule's 64 are most of a budget here.
    """

    name = "evolutionary"
    summary = "populations evolve on a model that is learnt meanwhile, and their best are measured, as in TVM"
    options = (
        Option("batch", 16, 1, 10_000, "configurations that are measured between two models; MetaSchedule takes 64"),
        Option("population", 512, 2, 100_000, "configurations of a generation"),
        Option("generations", 4, 1, 1000, "times that a population evolves before a batch is chosen"),
        Option("mutation", 0.85, 0.0, 1.0, "share of those drawn that mutate"),
        Option("measured", 0.2, 0.0, 1.0, "share of the first generation that are the fastest trials"),
        Option("drawn", 0.05, 0.0, 1.0, "share of a batch that is drawn at random"),
    )
    several_objectives = True

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        available = set(free.tolist())
        left = [index for index in self.planned(study, PLAN, list) or () if index in available]
        if not left:
            left = self._batch(study, free, np.random.default_rng(self.seed_of(trial)))
            set_system_attribute(study, trial, PLAN, left)
        return left[0]

    def _batch(self, study: optuna.Study, free: Indices, rng: np.random.Generator) -> list[int]:
        """The configurations to measure next, in order; never empty."""
        count = min(int(self.option["batch"]), len(free))
        indices, speeds = self._speeds(study)
        if len(indices) < 2 or not speeds.any():  # of one row, a part of the rows leaves none to judge the trees by
            return [int(index) for index in rng.choice(free, count, replace=False)]
        model = self._fit(indices, speeds, rng)
        met = self._evolved(indices, speeds, model, rng)
        met = np.intersect1d(met, free)
        best = met[np.argsort(-model.predict(self.space.features[met]), kind="stable")] if len(met) else met
        chosen = best[: count - round(count * self.option["drawn"])]
        others = rng.permutation(np.setdiff1d(free, chosen))[: count - len(chosen)]
        return [*map(int, chosen), *map(int, others)]

    def _speeds(self, study: optuna.Study) -> tuple[Indices, Floats]:
        """The configurations of finished trials and their speeds over that of the fastest; 0 where one failed."""
        indices, values = self.outcomes(study)
        timed = np.isfinite(values)
        speeds = np.zeros(len(values))
        if timed.any():
            # The fastest over each, for times; of values that are none, how far they are from the best.
            least = values[timed].min()
            speeds[timed] = least / values[timed] if least > 0 else 1 / (1 + values[timed] - least)
        inside = indices >= 0
        return indices[inside], speeds[inside]

    def _fit(self, indices: Indices, speeds: Floats, rng: np.random.Generator) -> "GradientBoostingRegressor":
        from sklearn.ensemble import GradientBoostingRegressor

        model = GradientBoostingRegressor(subsample=0.8, random_state=int(rng.integers(2**31)))
        return model.fit(self.space.features[indices], speeds)

    def _evolved(
        self, indices: Indices, speeds: Floats, model: "GradientBoostingRegressor", rng: np.random.Generator
    ) -> Indices:
        """All configurations that the generations have, each once."""
        size = int(self.option["population"])
        fastest = indices[np.argsort(-speeds, kind="stable")[: round(size * self.option["measured"])]]
        population = np.concatenate([fastest, rng.integers(0, len(self.space), size - len(fastest))])
        met = [population]
        for _ in range(int(self.option["generations"])):
            worth = np.maximum(model.predict(self.space.features[population]), 1e-9)
            parents = rng.choice(population, size, p=worth / worth.sum())
            population = self._mutated(parents, rng)
            met.append(population)
        return np.unique(np.concatenate(met))

    def _mutated(self, parents: Indices, rng: np.random.Generator) -> Indices:
        """The children: most have another value of one knob than their parents, where that is legal."""
        codes = self.space.codes[parents].astype(np.int64)
        shape = np.array(self.space.shape)
        variable = np.flatnonzero(shape > 1)
        if not len(variable):
            return parents
        rows, axes = np.arange(len(parents)), rng.choice(variable, len(parents))
        codes[rows, axes] = (codes[rows, axes] + rng.integers(1, shape[axes])) % shape[axes]
        found = self.space.find(codes)
        changed = (found >= 0) & (rng.random(len(parents)) < self.option["mutation"])
        return np.asarray(np.where(changed, found, parents), dtype=np.int64)
