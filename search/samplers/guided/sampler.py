"""Samplers that start from what a cost model knows and learn from every measurement."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.coordinates import coordinates
from tilescout.costmodel.estimator import CostModel, Expected, Prediction
from tilescout.costmodel.posterior import Kernel, Observed, expected_improvement
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.guided.acquisition import (
    Neighbours,
    candidates_among,
    furthest,
    held_by,
    incumbent,
    looks_around,
    most_promising,
    new_tiles,
    runs_of,
    ventures,
)
from tilescout.search.samplers.guided.history import History, history_of
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.samplers.guided.posterior import Corrected, Posterior, Uninformed, fitted_to, kernel_of
from tilescout.search.samplers.guided.prior import SHIPPED, Prior
from tilescout.search.samplers.guided.stopping import (
    alone,
    least_trials,
    may_stop,
    out_of_patience,
    unlikely_gain,
)
from tilescout.search.samplers.guided.unchanged import Unchanged
from tilescout.search.samplers.joint import Joint
from tilescout.search.samplers.options import OptionValue, options_of
from tilescout.search.samplers.others import OtherTrials, points_of
from tilescout.search.studies.noise import EARLY, doubt
from tilescout.search.studies.optuna_hooks import all_trials
from tilescout.spaces.errors import ModelError, one_line
from tilescout.spaces.space import Indices, SearchSpace

_REMEMBERED = 32  # what is foreseen before any outcome is known, twice: while a GPU is set up, and when it is ready
_MORE = 1.5  # times as many trials of other problems as a kernel was fitted to, before it is fitted anew
_FORBIDDING = 1e6  # the price of a trial that promises too little for what it takes: any other goes before it
_MOST = 0.9  # of the stock near the best is there where it was compiled, though some kernels of it may have failed

_LOG = logging.getLogger("tilescout")


class GuidedSampler(SpaceSampler):
    """The configuration of largest expected improvement under a cost model that every measurement corrects.

    A Gaussian process models the error of the cost model's log times (`tilescout.costmodel.posterior`). Without a cost
    model it models the log times themselves. A pruned trial counts with the large uncertainty of its pilot, the one
    launch that told that it is slow. A failed trial counts as slow. A trial in flight counts as having the time that is
    expected of it, so that proposals made at the same time differ.

    Trials of other problems, as of a suite that is tuned together, correct the cost model too, more so the more similar
    the problem is. Without a cost model, one is learned from them, if the template says how configurations divide the
    work; else one Gaussian process models the log times of all these problems.

    Values that are no times (not all positive, maximised, or of several objectives) are standardised, as they are or as
    ranks, and no prior is used.

    The parts are modules of their own: `prior`, `posterior`, `acquisition` and `stopping`.

    Parameters
    ----------
    space, seed
        See `SpaceSampler`.
    model
        The prior: a fitted cost model of the template that is named like the space, or the file of one, or a folder
        that has one a space, as `tilescout train` names them; None for a search without; by default the one that comes
        with the package, where there is one. Where a second space is searched, a folder alone speaks for it, too.
    others
        Called before every proposal for what is known by then of other problems with the same knobs; see
        `tilescout.search.samplers.others`.
    earlier
        Called once for the trials of earlier studies of the kernel, of other problems, where neither a model nor a
        description of its tiling tells of it; None if there are none.
    joint
        Called for how far the searches of several spaces for the same problem are together, this one among them. A
        proposal has to improve on the best of all, and they stop together.
    given
        Values of the options, see `GuidedOptions`.

    Raises
    ------
    ModelError
        If `model` is something else, such as a class.
    """

    name = "guided"
    summary = "what a cost model expects, corrected by every measurement; stops by itself; the fewest trials"
    options = options_of(GuidedOptions)
    deterministic = True
    uses_model = True
    learns_from_others = True
    recalls = True
    searches_jointly = True
    several_objectives = True

    def __init__(
        self,
        space: SearchSpace | None = None,
        seed: int | None = None,
        model: CostModel | Path | str | None = SHIPPED,
        others: Callable[[], Sequence[OtherTrials]] | None = None,
        joint: Callable[[], Joint] | None = None,
        earlier: Callable[[], Sequence[OtherTrials]] | None = None,
        **given: OptionValue | str,
    ) -> None:
        if not isinstance(model, CostModel | PathLike | str | None):
            of = "a class" if isinstance(model, type) else f"of type {type(model).__name__}"
            raise ModelError(f"the cost model is {of}, expected a fitted CostModel, the file or folder of one, or None")
        self._model = model
        self._others = others
        self._earlier = earlier
        self._joint = joint
        super().__init__(space, seed, **given)
        self.tuning = GuidedOptions(**dict[str, Any](self.option))

    def _begin(self, space: SearchSpace | None, seed: int | None) -> None:
        super()._begin(space, seed)
        self._about: _About | None = None
        self._kernels: dict[tuple[float, ...], Kernel] = {}  # the last that was fitted
        self._stored: Indices = np.empty(0, dtype=np.int64)  # what costs no compiling
        self._stock: Indices = self._stored  # what was chosen to serve all problems
        self._kernels_of: Indices | None = None  # the number of the kernel that each configuration is compiled as
        self._there: set[int] = set()  # kernels of what is stored, and of what is compiled while a GPU is set up
        self._near: tuple[Prediction, Indices] | None = None  # the capital by an expectation
        self._free_now: Unchanged[Indices] = Unchanged()
        self._history_now: Unchanged[History] = Unchanged()
        self._seen: dict[tuple[bytes, bytes], tuple[Indices, Floats, Floats]] = {}  # what was last foreseen
        self._seen_beside: Sequence[OtherTrials] = ()  # what was known of other problems then

    @property
    def about(self) -> "_About":
        """The space, and what is known of it before anything is measured."""
        if self._about is None:
            self._about = _About(self.space, Prior(self.space, self._model, self._others, self.tuning, self._earlier))
        return self._about

    @property
    def prior(self) -> Prediction | None:
        """The cost model's expectation of every configuration of the space; None without a model.

        Raises
        ------
        ModelError
            If the model can't be read, or is not one of the space's template.
        SpaceError
            If one was given for a space that has no template.
        """
        return self.about.prior.of_model

    @property
    def model_file(self) -> Path | None:  # type: ignore[override]
        """The file of the model; None without a model, or if it came from no file."""
        return self.about.prior.file if self._space is not None else None

    @property
    def model_object(self) -> str:  # type: ignore[override]
        """The class of the model, if it was given as an object; else empty."""
        return one_line(type(self._model).__name__, 60) if isinstance(self._model, CostModel) else ""

    @property
    def model_sha256(self) -> str:  # type: ignore[override]
        """The SHA-256 of the bytes that the model was read from, or of an object's content; empty without a model."""
        return self.about.prior.sha256 if self._space is not None else ""

    @property
    def hindsight(self) -> bool:  # type: ignore[override]
        """Whether the model was trained on the problem of the space."""
        return self._space is not None and self.about.prior.hindsight

    def expected(self, index: int) -> Expected | None:
        return Expected.of(self.prior, index) if self.prior is not None else None

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        rng = np.random.default_rng(self.seed_of(trial))
        known = self._known(study, but=trial.number)
        history = known.history
        if self._starts_up(known):
            tried = np.concatenate([history.settled, history.failed, history.running])
            return furthest(self.about.points, tried, free, self.tuning.drawn, rng)
        return self._proposal(known, free, rng)

    def first(self, given: Sequence[int], count: int) -> Iterator[int]:
        prior = self.about.prior.now()
        if prior is None:
            return
        running = np.unique(np.asarray(given, dtype=np.int64))
        if self._joint is not None and (spaces := self._joint().spaces) > 1:
            # The searches take turns before an outcome is known.
            count = min(count, (self.lookahead or count) // spaces - len(running))
        free = np.setdiff1d(np.arange(len(self.space)), running, assume_unique=True)
        yield from self._proposals(_Known(History.of_running(running), prior), free, count)

    def ahead(self, study: optuna.Study, count: int) -> Iterator[int]:
        known = self._known(study)
        if not known.is_blind and known.history.are_times:
            yield from self._proposals(known, self.free(study), count)

    def _proposals(self, known: "_Known", free: Indices, count: int) -> Iterator[int]:
        """Proposals one behind the other, none of whose outcomes is known; with a prior nothing is left to chance."""
        rng = np.random.default_rng(0)
        for _ in range(min(count, len(free))):
            if self._reason_to_stop(known, free) is not None:
                return
            index = self._proposal(known, free, rng)
            yield index
            running = np.union1d(known.history.running, [index])
            known, free = replace(known, history=replace(known.history, running=running)), free[free != index]

    def find_stored(self, stored: Indices, stock: Indices, kernels: Indices | None = None) -> None:
        self._stored, self._stock, self._kernels_of, self._near = stored, stock, kernels, None
        self._there = self._compiled_as(stored)

    def get_ready(self) -> None:
        prior = self.about.prior
        if prior.of_model is not None:
            _ = prior.points
            prior.tell_if_lent()
        else:
            prior.beside()

    def free(self, study: optuna.Study) -> Indices:
        trials = all_trials(study)
        return self._free_now.of(study, trials, None, lambda: self._free(study, trials=trials))

    def done(self, study: optuna.Study) -> str | None:
        return self._reason_to_stop(*self._if_given_up(study), given_up=True)

    def sated(self, study: optuna.Study) -> bool:
        return self._reason_to_stop(self._known(study), self.free(study)) is not None

    def _if_given_up(self, study: optuna.Study) -> tuple["_Known", Indices]:
        """The history without what is in flight, and what is still to be tried: that is among it."""
        known, free = self._known(study), self.free(study)
        running = known.history.running
        if known.prior is None or not len(free):  # with a prior nothing matters but whether any is left
            free = np.insert(free, np.searchsorted(free, running), running)
        return replace(known, history=replace(known.history, running=running[:0])), free

    def _reason_to_stop(self, known: "_Known", free: Indices, given_up: bool = False) -> str | None:
        """Why the search would end, if the trials in flight came back as expected; None if it would not."""
        history, has_prior = known.history, known.prior is not None
        found = self._joint() if self._joint is not None else self._alone(known)
        found = replace(found, running=0, dear_running=0, blind_running=0) if given_up else found
        least = least_trials(has_prior, self.about.calibrated, self.tuning)
        # What is tried first beside the default says nothing of what the model knows.
        own = history.finished + len(history.running) - max(history.given - 1, 0)
        if not len(free) or not history.are_times or not may_stop(found, own, least, self.tuning):
            return None
        if has_prior:
            return out_of_patience(found, self.tuning)
        if history.best is None or self._starts_up(known):
            return None
        _, mean, std = self._foreseen(known, free, np.random.default_rng(len(history.settled)))
        return unlikely_gain(mean, std, history.best, self.tuning)

    def gain(self, study: optuna.Study) -> float | None:
        """The largest expected improvement, as a share of the time, for its price: what the next is chosen by."""
        known, free = self._known(study), self.free(study)
        history = known.history
        best = self._to_beat(history)
        if best is None or not history.are_times:
            return None
        if not len(free):
            return 0.0
        if known.is_blind and len(history.settled) < 2 * self.tuning.startup:
            return None
        candidates, mean, std = self._foreseen(known, free, np.random.default_rng(len(history.settled)))
        worth = self._worth(known, candidates, mean, std, best)
        return float(worth.max()) if worth is not None else None

    def posterior(self, study: optuna.Study) -> Posterior:
        """The distribution of configurations' values after the study's trials; without a prior one trial is needed."""
        return self._posterior(self._known(study))

    def _starts_up(self, known: "_Known") -> bool:
        """Whether nothing is foreseen of the next configuration, which is drawn."""
        return known.is_blind and len(known.history.settled) < self.tuning.startup

    def _known(self, study: optuna.Study, but: int | None = None) -> "_Known":
        trials = study.get_trials(deepcopy=False)
        history = self._history_now.of(study, trials, but, lambda: history_of(study, self.space, but, trials))
        prior = self.about.prior
        return _Known(history, prior.now(), prior.beside()) if history.are_times else _Known(history, None)

    def _proposal(self, known: "_Known", free: Indices, rng: np.random.Generator) -> int:
        """The candidate of the largest expected improvement for its price; of a new tile, where it is time for one."""
        history, capital = known.history, self._capital(known.prior)
        if len(capital) and not history.finished:
            held = held_by(free, self._stored if ventures(history, self.tuning) else capital)
            some = free[~held] if ventures(history, self.tuning) else free[held]
            free = some if len(some) else free
        candidates, mean, std = self._foreseen(known, free, rng)
        if known.prior is not None and looks_around(history, self.tuning):
            some = new_tiles(self.about.prior.features, candidates, history.running)
            candidates, mean, std = candidates[some], mean[some], std[some]
        best = self._to_beat(history, known.prior)
        proposed = int(candidates[most_promising(mean, self._worth(known, candidates, mean, std, best))])
        if not history.finished:
            self._there |= self._compiled_as(np.array([proposed]))
        return proposed

    def _capital(self, prior: Prediction | None) -> Indices:
        """The stock that is expected to be near the best; none if that is little, or much of it is not stored."""
        if prior is None or not len(self._stock):
            return self._stock[:0]
        if self._near is None or self._near[0] is not prior:
            mean = prior.mean
            near: Indices = self._stock[mean[self._stock] <= mean.min() + self.tuning.capital]
            there: Indices = np.intersect1d(near, self._stored)
            is_much = len(there) >= max(self.tuning.least, _MOST * len(near))
            self._near = prior, there if is_much else there[:0]
        return self._near[1]

    def is_dear(self, index: int) -> bool:
        return self._is_beyond(self._there, index)

    def waits_for_compiler(self, index: int) -> bool:
        return self._is_beyond(self._compiled_as(self._stored), index)

    def _is_beyond(self, kernels: set[int], index: int) -> bool:
        """Whether much is stored, and a configuration is compiled as none of some kernels."""
        prior = self.about.prior.now() if len(self._stock) else None
        return len(self._capital(prior)) > 0 and not self._compiled_as(np.array([index])) <= kernels

    def _count_dear(self, trials: Indices, before: Indices, prior: Prediction | None) -> int:
        """How many kernels of trials had to be compiled, though much was stored; those of trials before were there."""
        if not len(self._capital(prior)):
            return 0
        return len(self._compiled_as(trials) - self._there - self._compiled_as(before))

    def _compiled_as(self, trials: Indices) -> set[int]:
        """The kernels of trials."""
        return set(self._numbers(trials).tolist())

    def _numbers(self, trials: Indices) -> Indices:
        """The numbers of the kernels of trials, of shape [trials]."""
        return trials if self._kernels_of is None else self._kernels_of[trials]

    def _alone(self, known: "_Known") -> Joint:
        """How far the search is, where it is alone."""
        history, prior = known.history, known.prior
        behind = history.after_best
        dear = self._count_dear(behind, history.settled[: len(history.settled) - len(behind)], prior)
        return replace(
            alone(history), dear=dear, dear_running=self._count_dear(history.running, history.settled, prior)
        )

    def _worth(
        self, known: "_Known", candidates: Indices, mean: Floats, std: Floats, best: float | None
    ) -> Floats | None:
        """The expected improvement of each candidate for its price; None without a value to improve on."""
        if best is None:
            return None
        gain, history = expected_improvement(mean, std, best), known.history
        price = np.ones(len(candidates))
        if history.finished:
            tried = self._compiled_as(np.concatenate([history.settled, history.running]))
            numbers = self._numbers(candidates)
            there = np.isin(numbers, list(tried))
            price[there] = self.tuning.relaunched
            if len(self._capital(known.prior)):
                there |= np.isin(numbers, list(self._there))
                price[~there & (gain < self.tuning.dear)] = _FORBIDDING
        price[np.isin(candidates, self._stored)] = self.tuning.stored
        return np.asarray(gain / price)

    def _to_beat(self, history: History, prior: Prediction | None = None) -> float | None:
        """The log time to improve on; None if nothing is known, nor expected of what is in flight by the prior."""
        found = self._joint() if self._joint is not None else Joint()
        best_us = found.best_us if found.best_us is not None else found.expected_us
        return incumbent(history, prior, float(np.log(best_us)) if best_us is not None else None)

    def _foreseen(self, known: "_Known", free: Indices, rng: np.random.Generator) -> tuple[Indices, Floats, Floats]:
        """The candidates, and the mean and standard deviation of their values.

        Proposals are asked for twice where their kernels are compiled ahead: of the same history, and of the same
        trials of other problems, they are the same. Without a prior candidates are drawn.
        """
        again = self._seen if known.prior is not None else {}
        others = list(self._others()) if self._others is not None else []
        if any(one is not other for one, other in zip_longest(others, self._seen_beside)):
            again.clear()
            self._seen_beside = others
        key = (known.history.key, runs_of(free))
        if key not in again:
            about = self.about
            candidates = candidates_among(
                free, about.neighbours, known.history, known.prior, self.tuning, rng, self._stored
            )
            while len(again) >= _REMEMBERED:
                del again[next(iter(again))]
            again[key] = candidates, *self._posterior(known).at(candidates)
        return again[key]

    def _posterior(self, known: "_Known") -> Posterior:
        about, history = self.about, known.history
        if known.prior is not None:
            prior = about.prior
            return Corrected(prior.points, history, known.prior, prior.elsewhere(), prior.covariance, self.tuning)
        points = about.points if known.beside is None else about.placed
        return Uninformed(points, history, self._kernel(known, points), self.tuning, known.beside)

    def _kernel(self, known: "_Known", points: Floats) -> Kernel:
        """The kernel of the first trials, as many as there were when it was due: the same after a resumption.

        Trials of other problems come all the time: it is fitted anew when there are half as many again.
        """
        history, beside = known.history, known.beside
        due = fitted_to(len(history.values), self.tuning)
        settled, values = history.settled[:due], history.values[:due]
        others = 0.0 if beside is None else float(np.log(len(beside.errors)) // np.log(_MORE))
        key = (others, *values.tolist(), *map(float, settled))
        if key not in self._kernels:
            points = points[settled]
            self._kernels = {key: kernel_of(points, values, beside)}
            if beside is None and due == EARLY and history.are_times and (doubted := doubt(points, values)) is not None:
                _LOG.warning(doubted)
        return self._kernels[key]


class ColdSampler(GuidedSampler):
    """`GuidedSampler` without a cost model."""

    name = "guided-cold"
    summary = "guided without a cost model: for spaces and devices that nothing is known of"
    deterministic = False
    uses_model = False

    def __init__(
        self,
        space: SearchSpace | None = None,
        seed: int | None = None,
        others: Callable[[], Sequence[OtherTrials]] | None = None,
        joint: Callable[[], Joint] | None = None,
        earlier: Callable[[], Sequence[OtherTrials]] | None = None,
        **given: OptionValue | str,
    ) -> None:
        super().__init__(space, seed, model=None, others=others, joint=joint, earlier=earlier, **given)


@dataclass(frozen=True, eq=False)
class _Known:
    """The history that a proposal follows from and, where its values are times, a prior or other problems' trials."""

    history: History
    prior: Prediction | None
    beside: Observed | None = None

    @property
    def is_blind(self) -> bool:
        """Whether its own trials are all that it follows from."""
        return self.prior is None and self.beside is None


@dataclass(eq=False)
class _About:
    """A space as a guided search sees it."""

    space: SearchSpace
    prior: Prior

    @cached_property
    def neighbours(self) -> Neighbours:
        """The configurations near others."""
        return Neighbours(self.space)

    @cached_property
    def calibrated(self) -> bool:
        """Whether its kernels are compiled, and the model is theirs: the stopping rule is calibrated on such."""
        return not self.prior.of_library and not self.prior.of_relative

    @cached_property
    def points(self) -> Floats:
        """Where the configurations lie, of shape [configurations, coordinates]."""
        return coordinates(self.space)

    @cached_property
    def placed(self) -> Floats:
        """Where they lie among those of all problems."""
        return points_of(self.space)
