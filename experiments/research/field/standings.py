"""The worth of the answers of tuners, by the race in which all of them ran."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.compare.answers import APART
from tilescout.experiments.compare.inference import over_problems
from tilescout.search.measure.heats import correlation, mean_of_heats
from tilescout.search.measure.race import RaceOptions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Raced:
    """The answers to a problem, raced.

    Attributes
    ----------
    logs
        Logarithms of times over the library's, of shape [heats, rounds], by configuration.
    default
        The default configuration.
    """

    logs: Mapping[int, Floats]
    default: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The race of a problem's record."""
        return cls({int(index): np.array(logs) for index, logs in record["race"].items()}, record["default"])

    @property
    def best(self) -> int:
        """The fastest of all that raced. It was picked in the same race, so that regrets are rather too large."""
        return min(self.logs, key=lambda index: float(self.logs[index].mean()))

    def behind(self, index: int, other: int) -> float:
        """By how much one is slower than another, relative."""
        return float(np.expm1((self.logs[index] - self.logs[other]).mean()))

    def is_slower(self, index: int, other: int) -> bool:
        """Whether it is slower beyond doubt: the 95 % interval of the difference is above 0."""
        if index == other:
            return False
        difference = self.logs[index] - self.logs[other]
        found = mean_of_heats(difference, correlation(difference[:, :, None]), RaceOptions().noise)
        return found.mean > found.here


@dataclass(frozen=True)
class Standing:
    """The figures of a tuner.

    Attributes
    ----------
    searches, failed
        How many were played, and how many of them handed out nothing.
    regret, regret_low, regret_high
        How much slower its answers are than the best of the race, mean over the problems, with the 95 % interval over
        problems.
    worst
        The largest regret.
    slower_than_default
        Share of the answers that are slower than the default beyond doubt.
    flips
        Share of the pairs of searches of one problem whose answers are more than 1 % apart; NaN of single searches.
    kernels, gpu_seconds, own_seconds
        Means a search: kernels that it needs compiled, seconds of the GPU, and its own ones.
    """

    searches: int
    failed: int
    regret: float
    regret_low: float
    regret_high: float
    worst: float
    slower_than_default: float
    flips: float
    kernels: float
    gpu_seconds: float
    own_seconds: float

    def plain(self) -> dict[str, Any]:
        """The figures as JSON can hold them: what is not known is null."""
        return {name: value if np.isfinite(value) else None for name, value in asdict(self).items()}


def standings(problems: Mapping[str, Mapping[str, Any]]) -> dict[str, Standing]:
    """The standing of every tuner that has an answer to each problem, the smallest regret first."""
    raced = {name: Raced.of(record) for name, record in problems.items()}
    tuners = list(dict.fromkeys(run["tuner"] for record in problems.values() for run in record["runs"]))
    found = {}
    for tuner in tuners:
        runs = {name: [r for r in record["runs"] if r["tuner"] == tuner] for name, record in problems.items()}
        if all(any(run["answer"] is not None for run in own) for own in runs.values()):
            found[tuner] = _standing(runs, raced)
    return dict(sorted(found.items(), key=lambda item: item[1].regret))


def _standing(runs: Mapping[str, Sequence[Mapping[str, Any]]], raced: Mapping[str, Raced]) -> Standing:
    """The figures of one tuner from its runs of each problem."""
    answers = {name: [run["answer"] for run in own if run["answer"] is not None] for name, own in runs.items()}
    regrets = {name: [raced[name].behind(one, raced[name].best) for one in own] for name, own in answers.items()}
    slower = [raced[name].is_slower(one, raced[name].default) for name, own in answers.items() for one in own]
    flips = [abs(raced[name].behind(a, b)) > APART for name, own in answers.items() for a, b in combinations(own, 2)]
    means = np.array([np.mean(own) for own in regrets.values()])
    low, high = over_problems(means, np.random.default_rng(0)) if len(means) > 1 else (np.nan, np.nan)
    every = [run for own in runs.values() for run in own]
    done = [run for run in every if run["answer"] is not None]
    return Standing(
        searches=len(every),
        failed=len(every) - len(done),
        regret=float(means.mean()),
        regret_low=float(low),
        regret_high=float(high),
        worst=max(max(own) for own in regrets.values()),
        slower_than_default=float(np.mean(slower)),
        flips=float(np.mean(flips)) if flips else float("nan"),
        **{name: float(np.mean([run[name] for run in done])) for name in ("kernels", "gpu_seconds", "own_seconds")},
    )


def agreement(first: Floats, second: Floats, top: int) -> dict[str, float]:
    """How well two GPUs agree on the order of the same configurations, by their times.

    Returns
    -------
    dict
        ``tau`` and ``tau_top``: Kendall's correlation of all, and of those that are among the `top` fastest of the
        first. ``loss``: how much slower than the second's fastest the first's fastest is there, relative.
    """
    from scipy.stats import kendalltau

    known = np.isfinite(first) & np.isfinite(second)
    a, b = first[known], second[known]
    fastest = np.argsort(a)[:top]
    return {
        "configurations": int(known.sum()),
        "tau": float(kendalltau(a, b).statistic),
        "tau_top": float(kendalltau(a[fastest], b[fastest]).statistic),
        "loss": float(b[a.argmin()] / b.min() - 1),
    }
