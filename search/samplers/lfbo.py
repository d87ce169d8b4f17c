"""Likelihood-free Bayesian optimisation by pattern search: a classifier picks among the neighbours of the best."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.options import Option
from tilescout.search.studies.optuna_hooks import set_system_attribute
from tilescout.spaces.space import Indices

if TYPE_CHECKING:
    from sklearn.ensemble import RandomForestClassifier

PLAN = "tilescout:lfbo"
"""The system attribute of the first trial of a generation that holds the generation's plan."""


@dataclass(frozen=True)
class _Copy:
    """One of the searches: where it stands, what it tries now, and what it may still do."""

    at: int
    batch: tuple[int, ...]
    patience: int
    generations: int


@dataclass(frozen=True)
class _Plan:
    """The configurations that a generation tries. Without copies it is a random population, from which they start."""

    population: tuple[int, ...]
    copies: tuple[_Copy, ...] = ()

    @property
    def queue(self) -> tuple[int, ...]:
        return self.population + tuple(index for copy in self.copies for index in copy.batch)

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "_Plan":
        copies = tuple(_Copy(**{**copy, "batch": tuple(copy["batch"])}) for copy in record["copies"])
        return cls(tuple(record["population"]), copies)


class LFBOSampler(SpaceSampler):
    """Pattern search whose neighbours a random forest filters, as Helion's autotuner does by default.

    A random population is tried first. From its best configurations a few searches start, and advance generation by
    generation. A search draws neighbours of the configuration at which it stands. A random forest is trained to tell
    the best tenth of all trials from the rest; better trials weigh more. It picks a tenth of the neighbours, one by
    one, each unlike those picked before. They are tried, and the search moves to the best of them. Failed
    configurations belong to the rest, so the forest learns to keep away from failures.

    The acquisition function is that of Song et al., "A general recipe for likelihood-free Bayesian optimization" (ICML
    2022). The search is that of pytorch/helion's LFBOPatternSearch as of 2026, with the corrections that were made
    there later: every trial is learnt from once, positive weights have a mean of 1, and picks are diverse.

    It differs from Helion's in three ways. Helion moves one block size and the number of warps in every neighbour; no
    knob is special here, and the one that moves furthest is drawn. Helion's search ends when no copy improves any more;
    this one starts again from a new random population, with all that it has learnt. If fewer neighbours are in the
    space than are to be picked, as in a table that holds a sample of a space, the nearest configurations stand in.

    A generation is planned when the first of its trials is asked for, from the trials that are finished then.
    """

    name = "lfbo"
    summary = "pattern search whose neighbours a random forest picks, in batches, as Helion's autotuner does"
    options = (
        Option("initial", 30, 1, 10_000, "random configurations that are tried first; Helion's full effort takes 100"),
        Option("copies", 2, 1, 100, "searches that start from the best of them and advance together; at full effort 5"),
        Option("generations", 20, 1, 10_000, "times that a search advances at most"),
        Option("neighbours", 300, 1, 100_000, "changed configurations that are drawn around where a search stands"),
        Option("selected", 0.1, 0.001, 1.0, "share of them that the classifier picks to be tried"),
        Option("radius", 2, 1, 100, "steps that one knob may move, and how many others may move one step"),
        Option("quantile", 0.1, 0.001, 0.999, "share of the timed configurations that the classifier learns as good"),
        Option("patience", 1, 0, 100, "generations without improvement that a search survives"),
        Option("improvement", 0.001, 0.0, 1.0, "relative gain below which a generation has not improved"),
        Option("penalty", 1.0, 0.0, 100.0, "how much a pick is worth less for being like those picked before it"),
    )
    several_objectives = True

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        available = set(free.tolist())
        noted = self.planned(study, PLAN, lambda record: _Plan.read(record).queue)
        plan = _Plan.read(noted) if noted is not None else None
        left = [index for index in plan.queue if index in available] if plan is not None else []
        if not left:
            plan = self._next(plan, study, free, np.random.default_rng(self.seed_of(trial)))
            set_system_attribute(study, trial, PLAN, asdict(plan))
            left = list(plan.queue)
        return left[0]

    def _next(self, plan: _Plan | None, study: optuna.Study, free: Indices, rng: np.random.Generator) -> _Plan:
        """The plan of the next generation; never empty."""
        indices, values = self.outcomes(study)
        inside = indices >= 0
        indices, values = indices[inside], values[inside]
        known = dict(zip(indices.tolist(), values.tolist(), strict=True))
        forest = self._fit(indices, values, rng)
        copies: list[_Copy] = []
        for copy in self._advance(plan, known):
            taken = [index for other in copies for index in other.batch]
            batch = self._pick(self._around(copy.at, np.setdiff1d(free, taken), rng), forest, rng)
            if batch:
                copies.append(_Copy(copy.at, batch, copy.patience, copy.generations))
        if copies:
            return _Plan((), tuple(copies))
        size = min(int(self.option["initial"]), len(free))
        return _Plan(tuple(rng.choice(free, size, replace=False).tolist()))

    def _advance(self, plan: _Plan | None, known: Mapping[int, float]) -> Sequence[_Copy]:
        """The copies that go on, where they stand now."""
        option = self.option
        if plan is None:
            return []
        if not plan.copies:
            started = sorted((i for i in plan.population if np.isfinite(known.get(i, np.inf))), key=known.__getitem__)
            return [
                _Copy(i, (), int(option["patience"]), int(option["generations"]))
                for i in started[: int(option["copies"])]
            ]
        going = []
        for copy in plan.copies:
            before = known.get(copy.at, np.inf)
            best = min((copy.at, *copy.batch), key=lambda index: known.get(index, np.inf))
            gain = before - known.get(best, np.inf) if best != copy.at else 0.0
            improved = gain > 0 and gain >= option["improvement"] * abs(before)
            patience = copy.patience - (not improved)
            if patience >= 0 and copy.generations > 1:
                going.append(_Copy(best, (), patience, copy.generations - 1))
        return going

    def _fit(
        self, indices: Indices, values: NDArray[np.float64], rng: np.random.Generator
    ) -> "RandomForestClassifier | None":
        """A forest that tells good configurations from the rest; None while all are the same to it."""
        finite = np.isfinite(values)
        if not finite.any():
            return None
        threshold = np.quantile(values[finite], self.option["quantile"])
        good = values <= threshold
        if good.all():
            return None
        # Of equally good ones none has a margin; then all weigh the same.
        margin = np.maximum(threshold - values[good], 1e-5 * max(abs(threshold), 1e-300))
        weights = np.ones(len(values))
        weights[good] = margin / margin.mean()
        from sklearn.ensemble import RandomForestClassifier

        forest = RandomForestClassifier(criterion="log_loss", random_state=int(rng.integers(2**31)), n_jobs=1)
        forest.fit(self.space.codes[indices], good, sample_weight=weights)
        return forest

    def _around(self, at: int, free: Indices, rng: np.random.Generator) -> Indices:
        """Free configurations around one: drawn neighbours, or the nearest where those are too few."""
        count = int(self.option["neighbours"])
        found = self.space.find(self._moved(self.space.codes[at].astype(np.int64), count, rng))
        found = np.intersect1d(found, free)
        if len(found) < min(count * self.option["selected"], len(free)):
            distance = np.abs(self.space.features[free] - self.space.features[at]).sum(axis=1)
            nearest = free[np.argsort(distance, kind="stable")[:count]]
            found = np.union1d(found, nearest)
        return np.asarray(found, dtype=np.int64)

    def _moved(self, codes: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`count` changes of a configuration, as codes [count, knobs]; illegal and equal ones are among them."""
        radius = int(self.option["radius"])
        shape = np.array(self.space.shape)
        # A knob's turn: the first moves up to `radius` steps, and of the others so many as are drawn move one step.
        turn = np.argsort(np.argsort(np.where(shape > 1, rng.random((count, len(shape))), 2.0), axis=1), axis=1)
        others = rng.integers(0, radius, size=(count, 1), endpoint=True)
        steps = np.where(turn == 0, rng.integers(1, radius, size=(count, 1), endpoint=True), turn <= others)
        steps *= rng.choice([-1, 1], size=steps.shape)
        moved = codes + steps
        moved = np.where((moved < 0) | (moved >= shape), codes - steps, moved)
        named = np.array([isinstance(knob.values[0], str) for knob in self.space.knobs])
        jumped = (codes + rng.integers(1, np.maximum(shape, 2), size=steps.shape)) % shape
        return np.where(named & (steps != 0), jumped, moved)  # names have no order: any other is one step away

    def _pick(
        self, candidates: Indices, forest: "RandomForestClassifier | None", rng: np.random.Generator
    ) -> tuple[int, ...]:
        """The share of the candidates to try: likely good ones, each unlike those picked before it."""
        if not len(candidates):  # other searches have the last of the space
            return ()
        count = min(max(round(len(candidates) * self.option["selected"]), 1), len(candidates))
        if forest is None:
            return tuple(rng.choice(candidates, count, replace=False).tolist())
        codes = self.space.codes[candidates]
        worth = forest.predict_proba(codes)[:, 1]
        leaves = forest.apply(codes)
        likeness = np.zeros(len(candidates))  # to those picked: shares of the trees in which two have the same leaf
        picked: list[int] = []
        for _ in range(count):
            adjusted = worth - self.option["penalty"] * likeness / max(len(picked), 1)
            adjusted[picked] = -np.inf
            picked.append(int(adjusted.argmax()))
            likeness += (leaves == leaves[picked[-1]]).mean(axis=1)
        return tuple(candidates[picked].tolist())
