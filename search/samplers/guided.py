"""A search that starts from what a cost model knows and learns from every measurement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tilescout.costmodel.estimator import CostModel, Expected, Prediction
from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.costmodel.persistence import ModelCard, load_model, shipped_model
from tilescout.costmodel.posterior import (
    Kernel,
    Observed,
    chance_below,
    condition,
    expected_improvement,
    fit_kernel,
)
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.coordinates import coordinates
from tilescout.search.samplers.others import OtherTrials, features_of, nearest, place_of
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.templates import find_template

SHIPPED = "shipped"
"""Take the model that comes with the package for the space and device, if there is one."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GuidedOptions:
    """How a guided search goes about it.

    Attributes
    ----------
    startup
        Random configurations to begin with where there is no prior.
    candidates
        Configurations that are looked at for a proposal, besides the neighbours of the best; every one in a small
        space.
    tops, radius
        Best trials whose neighbours are looked at: all that differ in at most so many knobs. Without a prior, on
        recorded spaces of other kernels, 2 scored 0.73 and 1 scored 0.69.
    length
        Distance over which a prior's errors are alike, in units of a knob's whole range.
    noise
        Standard deviation of a measured log time.
    pilot_noise
        The same of a pruned trial's: one launch has told it.
    failure
        Log by which a failed configuration counts as slower than expected, in standard deviations of its own error.
    refit
        Finished trials after which the kernel is fitted anew, where there is no prior; early on it is sooner.
    least, least_cold
        Finished trials before which a search does not stop by itself, with and without a prior. Without one the process
        is too sure of itself early on: of 104 searches of other kernels' recorded spaces that stopped after 20 to 199
        trials, 33 had more than 1 % left to find.
    gain
        Relative improvement worth going on for.
    ahead
        Proposals that are looked ahead.
    chance
        A search is done if all of those together find the gain with less than this probability.
    enough, trees
        Timed trials of other problems from which a model is learned where there is none, and trees of its forest.
    """

    startup: int = 10
    candidates: int = 1024
    tops: int = 3
    radius: int = 2
    length: float = 1.5
    noise: float = 0.005
    pilot_noise: float = 0.3
    failure: float = 2.0
    refit: int = 20
    least: int = 10
    least_cold: int = 100
    gain: float = 0.01
    ahead: int = 10
    chance: float = 0.05
    enough: int = 40
    trees: int = 24


class GuidedSampler(SpaceSampler):
    """The configuration of largest expected improvement under a cost model that every measurement corrects.

    A Gaussian process models the error of the model's log times (`tilescout.costmodel.posterior`); without a model it
    models the log times themselves. A pruned trial counts with its pilot's uncertainty, a failed one as slow, and
    trials in flight as what is expected of them, so that proposals made at the same time differ.

    Trials of other problems, as of a suite that is tuned together, correct the model too, the more the more similar the
    problem. Without a model, one is learned from them.

    Of values that are no times (not all positive, maximised, or of several objectives) it sees standardised ranks or
    values, and no prior.

    **When it stops** (`done`): when the chance that any of the `GuidedOptions.ahead` likeliest configurations is more
    than `GuidedOptions.gain` faster than the best so far is below `GuidedOptions.chance`, counting their errors as
    independent.

    Parameters
    ----------
    space, seed
        See `SpaceSampler`.
    model
        The prior: a fitted cost model of the template that is named like the space, or the file of one; None for a
        search without; by default the one that comes with the package, where there is one.
    tuning
        See `GuidedOptions`.
    others
        Called before every proposal for what is known by then of other problems with the same knobs; see
        `tilescout.search.samplers.others`.
    """

    def __init__(
        self,
        space: SearchSpace | None = None,
        seed: int | None = None,
        model: CostModel | Path | str | None = SHIPPED,
        tuning: GuidedOptions | None = None,
        others: Callable[[], Sequence[OtherTrials]] | None = None,
    ) -> None:
        super().__init__(space, seed)
        self.tuning = tuning if tuning is not None else GuidedOptions()
        self._model = model
        self._others = others
        self._learned: tuple[int, Prediction] | None = None
        self._expected: dict[int, tuple[OtherTrials, Prediction]] = {}
        self._kernels: dict[tuple[float, ...], Kernel] = {}

    def ordinary(self, seed: int) -> BaseSampler:
        return RandomSampler(seed=seed)

    @cached_property
    def model(self) -> CostModel | None:
        """The cost model; None without one.

        Raises
        ------
        ModelError
            If it can't be read.
        SpaceError
            If one was named for a space that has no template.
        """
        if self._model is None:
            return None
        if self._model != SHIPPED:
            find_template(self.space.name)
        if isinstance(self._model, CostModel):
            return self._model
        return self._loaded[0] if self._loaded is not None else None

    @cached_property
    def prior(self) -> Prediction | None:
        """What the model expects of every configuration of the space; None without a model.

        Raises
        ------
        ModelError
            If the model is not one of the space's template.
        """
        return None if self.model is None else self.model.predict(features_of(self.space))

    @property
    def model_file(self) -> Path | None:  # type: ignore[override]
        """The file of the model; None without a model, or if it came from no file."""
        if self._model is None or isinstance(self._model, CostModel) or self._space is None:
            return None
        if self._model == SHIPPED:
            return shipped_model(self._space.name, self._space.device.name)
        return Path(self._model)

    @property
    def hindsight(self) -> bool:  # type: ignore[override]
        """Whether the model was trained on the problem of the space."""
        return self._loaded is not None and str(self.space.problem) in self._loaded[1].problems

    @cached_property
    def _loaded(self) -> tuple[CostModel, ModelCard] | None:
        return load_model(self.model_file) if self.model_file is not None else None

    def expected(self, index: int) -> Expected | None:
        if self.prior is None:
            return None
        return Expected.of(self.prior, index)

    @cached_property
    def points(self) -> Floats:
        """Where the process sees the configurations, of shape [configurations, coordinates]."""
        return coordinates(self.space)

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        rng = np.random.default_rng(self.seed_of(trial))
        seen = self._seen(study, but=trial.number)
        if seen.prior is None and len(seen.settled) < self.tuning.startup:
            return int(rng.choice(free))
        candidates = self._candidates(seen, free, rng)
        mean, std = self._posterior(seen, candidates)
        best = seen.best
        if best is None and seen.prior is not None and len(seen.running):
            best = float(seen.prior.mean[seen.running].min())  # asked for before anything is known: spread out
        if best is None:
            return int(candidates[mean.argmin()])
        return int(candidates[expected_improvement(mean, std, best).argmax()])

    def done(self, study: optuna.Study) -> str | None:
        seen, options = self._seen(study), self.tuning
        free = self.free(study)
        if len(seen.settled) < (options.least if seen.prior is not None else options.least_cold):
            return None
        if seen.best is None or not seen.are_times or not len(free):
            return None
        candidates = self._candidates(seen, free, np.random.default_rng(len(seen.settled)))
        mean, std = self._posterior(seen, candidates)
        each = np.sort(chance_below(mean, std, seen.best + np.log(1 - options.gain)))[-options.ahead :]
        chance = 1 - float(np.prod(1 - each))
        if chance >= options.chance:
            return None
        return (
            f"the chance that {options.ahead} more measurements find one more than {options.gain:.0%} faster is "
            f"{chance:.1%}"
        )

    def gain(self, study: optuna.Study) -> float | None:
        """The largest expected improvement, as a share of the time: what the next proposal is chosen by."""
        seen, free = self._seen(study), self.free(study)
        if seen.best is None or not seen.are_times:
            return None
        if not len(free):
            return 0.0
        if seen.prior is None and len(seen.settled) < 2 * self.tuning.startup:
            return None
        candidates = self._candidates(seen, free, np.random.default_rng(len(seen.settled)))
        mean, std = self._posterior(seen, candidates)
        return float(expected_improvement(mean, std, seen.best).max())

    def _seen(self, study: optuna.Study, but: int | None = None) -> "_Seen":
        """The study's trials as the process sees them."""
        finished = [
            trial
            for state in (TrialState.COMPLETE, TrialState.PRUNED)
            for trial in self.trials(study, state)
            if trial.values is not None
        ]
        finished.sort(key=lambda trial: trial.number)
        values, are_times = _losses(finished, study.directions)
        finite = np.isfinite(values)
        finished = [trial for trial, kept in zip(finished, finite, strict=True) if kept]
        failed = self._indices(self.trials(study, TrialState.FAIL))
        running = [t for t in self.trials(study, TrialState.RUNNING) if t.number != but]
        pruned = np.array([trial.state is TrialState.PRUNED for trial in finished], dtype=np.bool_)
        indices = self._indices(finished)
        exact = values[finite][~pruned]
        return _Seen(
            settled=indices,
            values=values[finite],
            pruned=pruned,
            failed=np.setdiff1d(failed, indices),
            running=np.setdiff1d(self._indices(running), indices),
            best=float(exact.min()) if len(exact) else None,
            are_times=are_times,
            prior=self._prior() if are_times else None,
        )

    def _prior(self) -> Prediction | None:
        """The model's prior; without a model, that of one which is learned from other problems, if they have enough."""
        if self.prior is not None or self._others is None:
            return self.prior
        others = self._others()
        known = sum(int((~other.pruned).sum()) for other in others)
        if known < self.tuning.enough:
            return None
        if self._learned is None or known >= 2 * self._learned[0]:  # not after every trial: it takes seconds
            options = ForestOptions(trees=self.tuning.trees)
            model = ForestModel(options).fit([other.sample() for other in others])
            self._learned = known, model.predict(features_of(self.space))
        return self._learned[1]

    def _elsewhere(self) -> Observed | None:
        """How wrong the model was on other problems; None if nothing is known of that."""
        if self.model is None or self._others is None or not (others := self._others()):
            return None
        parts = []
        for number, other in enumerate(nearest(others, self.space.problem), start=1):
            if id(other) not in self._expected:
                self._expected[id(other)] = other, self.model.predict(other.features)
            expected = self._expected[id(other)][1]
            noise = np.where(other.pruned, self.tuning.pilot_noise, self.tuning.noise)
            problem = np.full(len(other), number)
            parts.append(Observed(other.points, other.log_time - expected.mean, expected.spread, noise, problem))
        return reduce(Observed.and_, parts)

    def _indices(self, trials: Sequence[FrozenTrial]) -> Indices:
        codes = np.array([[trial.params[name] for name in self.knobs] for trial in trials], dtype=np.int64)
        found: Indices = self.space.find(codes.reshape(-1, len(self.knobs)))
        return found

    def _candidates(self, seen: "_Seen", free: Indices, rng: np.random.Generator) -> Indices:
        options = self.tuning
        if len(free) <= 2 * options.candidates:
            return free
        if seen.prior is not None:
            hopeful = seen.prior.mean[free] - seen.prior.spread[free]
            kept = free[np.argpartition(hopeful, options.candidates)[: options.candidates]]
        else:
            kept = rng.choice(free, options.candidates, replace=False)
        order = np.argsort(seen.values, kind="stable")[: options.tops]
        codes, ones = self.space.codes[free], np.ones(len(self.knobs), dtype=np.uint8)
        differing = [(codes != self.space.codes[index]).view(np.uint8) @ ones for index in seen.settled[order]]
        return np.unique(np.concatenate([kept, *(free[count <= options.radius] for count in differing)]))

    def _posterior(self, seen: "_Seen", candidates: Indices) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the losses of candidates."""
        if seen.prior is not None:
            return self._corrected(seen, seen.prior, candidates)
        return self._unguided(seen, candidates)

    def _corrected(self, seen: "_Seen", prior: Prediction, candidates: Indices) -> tuple[Floats, Floats]:
        options = self.tuning
        elsewhere = self._elsewhere()
        if elsewhere is None and not len(seen.settled) + len(seen.failed) + len(seen.running):
            return prior.mean[candidates], prior.std[candidates]
        place = place_of(self.space.problem)
        kernel = Kernel.even(self.points.shape[1] + len(place), options.length, options.noise)

        def points_of(chosen: Indices) -> Floats:
            return np.concatenate([self.points[chosen], np.tile(place, (len(chosen), 1))], axis=1)

        indices = np.concatenate([seen.settled, seen.failed])
        spread = prior.spread[indices]
        errors = np.concatenate(
            [seen.values - prior.mean[seen.settled], options.failure * prior.spread[seen.failed]]
        )  # fmt: skip
        noise = np.full(len(indices), options.noise)
        noise[np.flatnonzero(seen.pruned)] = options.pilot_noise
        noise[len(seen.settled) :] = options.pilot_noise
        observed = Observed.here(points_of(indices), errors, spread, noise)
        if elsewhere is not None:
            observed = observed.and_(elsewhere)
        running = points_of(seen.running), prior.spread[seen.running]
        observed = self._with_running(observed, kernel, prior.shift, *running)
        mean, std = condition(kernel, prior.shift, observed, points_of(candidates), prior.spread[candidates])
        return prior.mean[candidates] + mean, std

    def _unguided(self, seen: "_Seen", candidates: Indices) -> tuple[Floats, Floats]:
        worst = seen.values.max()
        values = np.concatenate([seen.values, np.full(len(seen.failed), worst)])
        # How slow the slow half is says little of the fast one, and stretches the scale.
        values = np.minimum(values, np.quantile(values, SLOW))
        centre, scale = float(values.mean()), float(values.std()) or 1.0
        indices = np.concatenate([seen.settled, seen.failed])
        kernel = self._fitted(seen)
        ones = np.ones(len(indices))
        noise = np.full(len(indices), max(kernel.noise, self.tuning.noise / scale))
        uncertain = np.flatnonzero(seen.pruned)
        noise[uncertain] = np.maximum(noise[uncertain], self.tuning.pilot_noise / scale)
        observed = Observed.here(self.points[indices], (values - centre) / scale, ones, noise)
        observed = self._with_running(observed, kernel, 1.0, self.points[seen.running], np.ones(len(seen.running)))
        mean, std = condition(kernel, 1.0, observed, self.points[candidates], np.ones(len(candidates)))
        return centre + scale * mean, scale * std

    def _fitted(self, seen: "_Seen") -> Kernel:
        """The kernel of the first trials, as many as there were when it was due: the same after a resumption."""
        options = self.tuning
        due = _due(len(seen.values), options)
        values = seen.values[:due]
        key = (*values.tolist(), *map(float, seen.settled[:due]))
        if key not in self._kernels:
            values = np.minimum(values, np.quantile(values, SLOW))
            spread = float(values.std()) or 1.0
            rng = np.random.default_rng(due)
            kernel = fit_kernel(self.points[seen.settled[:due]], (values - values.mean()) / spread, rng)
            self._kernels = {key: kernel}
        return self._kernels[key]

    def _with_running(
        self, observed: Observed, kernel: Kernel, shift: float, points: Floats, spread: Floats
    ) -> Observed:
        """The observations with trials in flight at `points` as what is expected of them (a kriging believer)."""
        if not len(points):
            return observed
        believed = np.zeros(len(points))
        if len(observed.errors):
            believed, _ = condition(kernel, shift, observed, points, spread)
        return observed.and_(Observed.here(points, believed, spread, np.full(len(points), self.tuning.noise)))


class ColdSampler(GuidedSampler):
    """`GuidedSampler` without a prior."""

    def __init__(
        self,
        space: SearchSpace | None = None,
        seed: int | None = None,
        tuning: GuidedOptions | None = None,
        others: Callable[[], Sequence[OtherTrials]] | None = None,
    ) -> None:
        super().__init__(space, seed, model=None, tuning=tuning, others=others)


SLOW = 0.9
"""Without a prior, values above this quantile count as that quantile: on recorded spaces of other kernels 0.5 scored
0.58, 0.75 and 0.9 scored 0.73 and no limit 0.71 (means of 8 seeds of 200 trials on 6 spaces)."""


def _due(count: int, options: GuidedOptions) -> int:
    """The number of first trials that the kernel is fitted to when there are `count`.

    After 10, 15, 20, 30, 40, 60, 80 ... trials; without the early ones searches of other kernels scored 0.73, not 0.75.
    """
    early = [options.startup * number // 2 for number in (2, 3, 4, 6)]
    due = [number for number in (*early, count // options.refit * options.refit) if number <= count]
    return max(due, default=count)


@dataclass(frozen=True)
class _Seen:
    """A study's trials: `settled`, `failed` and `running` are indices; `values` and `pruned` are of the settled."""

    settled: Indices
    values: Floats
    pruned: NDArray[np.bool_]
    failed: Indices
    running: Indices
    best: float | None
    are_times: bool
    prior: Prediction | None


def _losses(trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection]) -> tuple[Floats, bool]:
    """A number to minimise for each trial, and whether it is a log time."""
    values = np.array([trial.values for trial in trials], dtype=np.float64).reshape(len(trials), len(directions))
    if len(directions) == 1 and directions[0] == StudyDirection.MINIMIZE and (values > 0).all():
        return np.log(values[:, 0]), True
    signs = np.array([1.0 if direction == StudyDirection.MINIMIZE else -1.0 for direction in directions])
    if len(directions) == 1:
        return signs[0] * values[:, 0], False
    # Of several objectives, the mean of the ranks.
    ranks = np.argsort(np.argsort(signs * values, axis=0, kind="stable"), axis=0, kind="stable")
    return np.asarray(ranks.mean(axis=1), dtype=np.float64), False
