"""Gaussian-process Bayesian optimisation over legal configurations."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.samplers import BaseSampler
from optuna.samplers import GPSampler as OrdinaryGPSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.options import Option
from tilescout.search.studies.optuna_hooks import GPOfChoice
from tilescout.spaces.space import Indices, SearchSpace


class GPSampler(SpaceSampler):
    """The configuration of largest expected improvement under a Gaussian process over codes.

    The process sees logarithms where all values are positive, as times are. A failed configuration counts as bad as
    the worst that ran. Of more trials than ``largest`` it sees the better half of that number and an even spread of
    the others: fitting takes time by the cube of their number. With 512 candidates instead of 2048 the best after 64
    trials was 3.0 % above the optimum, against 1.2 %.
    """

    name = "gp"
    summary = "Gaussian process and expected improvement; a proposal takes tenths of a second"
    options = (
        Option("startup", 10, 1, 10_000, "timed or pruned trials before a process is fitted; until then it is random"),
        Option("candidates", 2048, 1, 10**6, "random free configurations from the best of which a climb starts"),
        Option("largest", 256, 2, 10_000, "trials that a process is fitted to at most"),
    )
    several_objectives = True

    def ordinary(self, seed: int) -> BaseSampler:
        return OrdinaryGPSampler(seed=seed)

    def propose(self, study: optuna.Study, trial: FrozenTrial, free: Indices) -> int:
        import torch

        seed = self.seed_of(trial)
        completed, failures = self.told(study)
        if len(completed) < self.option["startup"]:
            return int(np.random.default_rng(seed).choice(free))
        running = self.trials(study, TrialState.RUNNING)
        knobs = self.variable_knobs
        settled = {_key(other, knobs) for other in (*completed, *running)}
        failed = [other for other in failures if _key(other, knobs) not in settled]
        observed = _observations(completed, failed, study.directions, int(self.option["largest"]))
        with torch.device("cpu"), _one_thread():  # whatever the caller's default device is
            gaussian = _GPAmong(self.space, free, seed, int(self.option["candidates"]))
            chosen = gaussian.sample(study, observed, running, knobs)
        return int(self.space.find([chosen.get(name, 0) for name in self.knobs]))


class _GPAmong(GPOfChoice):
    """Optuna's sampler, maximising over `free` what it maximises over the whole grid.

    Moving its own choice to the nearest free configuration instead took longer and found slower ones: on synthetic
    GEMM times 7.7 % above the optimum after 64 trials, against 1.2 % (medians of 36 searches).
    """

    def __init__(self, space: SearchSpace, free: Indices, seed: int, candidates: int) -> None:
        super().__init__(seed=seed)
        self._within = space
        self._free = free
        self._candidates = candidates
        self._generator = np.random.default_rng(seed)

    def choose(self, worth_of: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
        shape = np.array(self._within.shape)
        # Scaled as optuna does it: every code in the middle of its cell, and no knob of one value.
        points: NDArray[np.float64] = ((self._within.codes + 0.5) / shape)[:, shape > 1]
        pool = self._generator.choice(self._free, min(self._candidates, len(self._free)), replace=False)
        best, worth = int(pool[0]), -np.inf
        while len(pool):
            values = worth_of(points[pool])
            if not values.max() > worth:
                break
            best, worth = int(pool[values.argmax()]), values.max()
            pool = np.intersect1d(self._within.neighbours(best), self._free, assume_unique=True)
        chosen: NDArray[np.float64] = points[best]
        return chosen


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch on one thread: the matrices are small, and compilers want the other cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _key(trial: FrozenTrial, knobs: Iterable[str]) -> tuple[Any, ...]:
    return tuple(trial.params[name] for name in knobs)


def _observations(
    completed: Sequence[FrozenTrial],
    failed: Sequence[FrozenTrial],
    directions: Sequence[StudyDirection],
    largest: int,
) -> list[FrozenTrial]:
    """Copies of the trials, in the order of their values, with the values that a process is fitted to."""
    values = np.array([trial.values for trial in completed])
    if (values > 0).all():
        values = np.log(values)
    towards_worse = np.array([1 if direction == StudyDirection.MINIMIZE else -1 for direction in directions])
    worst = (values * towards_worse).max(axis=0) * towards_worse
    values = np.concatenate([values, np.broadcast_to(worst, (len(failed), len(worst)))])
    order = np.argsort((values * towards_worse).sum(axis=1), kind="stable")
    return [_with_values((*completed, *failed)[row], values[row]) for row in order[_thinned(len(order), largest)]]


def _thinned(length: int, largest: int) -> NDArray[np.int64]:
    """Which of `length` ordered trials to fit to: the first ones and an even spread of the others."""
    first = min(length, largest // 2)
    others = min(length, largest) - first
    return np.concatenate([np.arange(first), np.linspace(first, length - 1, others).round().astype(np.int64)])


def _with_values(trial: FrozenTrial, values: NDArray[np.float64]) -> FrozenTrial:
    observed = copy.copy(trial)
    observed.values = values.tolist()
    return observed
