"""The quality of predictions for new problems: each problem, or family of problems, is left out in turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.features import space_features
from tilescout.costmodel.roofline import Roofline
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate

TOPS = (1, 5, 10)
"""How many of the first-ranked are looked at."""

BEST_SHARE = 0.1
"""Share of the configurations, the fastest ones, within which ranks are correlated."""


@dataclass(frozen=True)
class Quality:
    """How good a prediction for one problem is.

    Attributes
    ----------
    problem, family
        The problem and its family.
    regret
        For each of `TOPS`: the fastest of the first-ranked, relative to the fastest of all, less 1.
    rank_correlation
        Spearman's, within the fastest tenth.
    error
        Root mean square of the log error, less the median error of the problem.
    shift
        The median log error of the problem.
    covered
        Share of the configurations whose time is in the 95 % interval.
    """

    problem: str
    family: str
    regret: Mapping[int, float]
    rank_correlation: float
    error: float
    shift: float
    covered: float


@dataclass(frozen=True)
class Interval:
    """A median over problems with the 95 % confidence interval of its bootstrap."""

    value: float
    low: float
    high: float


def leave_out(
    samples: Sequence[Sample], groups: Sequence[str], fit: Callable[[Sequence[Sample]], CostModel]
) -> list[tuple[Sample, Prediction]]:
    """Predictions for every sample by a model that saw no sample of its group.

    Samples of which every measurement is censored are left out: no time tells how good a prediction of theirs is.

    Parameters
    ----------
    samples
        Measurements, a sample a problem.
    groups
        A label for each: equal ones are left out together.
    fit
        Gives a model that learned from some of them and nothing else.
    """
    found: dict[int, Prediction] = {}
    judged = [at for at, sample in enumerate(samples) if not sample.censored.all()]
    for group in dict.fromkeys(groups[at] for at in judged):
        model = fit([s for s, label in zip(samples, groups, strict=True) if label != group])
        for at in judged:
            if groups[at] == group:
                found[at] = model.predict(samples[at].features)
    return [(samples[at], found[at]) for at in judged]


def quality(sample: Sample, prediction: Prediction) -> Quality:
    """How good a prediction is, over the measurements that are not censored.

    Raises
    ------
    ModelError
        If all are.
    """
    exact = ~sample.censored
    if not exact.any():
        raise ModelError(f"every measurement of {sample.problem} was given up early: there is no time to judge by")
    truth, mean = sample.log_time[exact], prediction.mean[exact]
    error = truth - mean
    shift = float(np.median(error))
    low, high = prediction.interval_us()
    inside = (np.exp(truth) >= low[exact]) & (np.exp(truth) <= high[exact])
    return Quality(
        problem=sample.problem,
        family=sample.family,
        regret=regret_of_order(truth, np.argsort(mean, kind="stable")),
        rank_correlation=rank_correlation(truth, mean),
        error=float(np.sqrt(np.mean(np.square(error - shift)))),
        shift=shift,
        covered=float(inside.mean()),
    )


def impossible_share(
    model: CostModel,
    template: KernelTemplate,
    problems: Sequence[Problem],
    device: Device,
    seed: int,
    count: int = 2048,
) -> float:
    """Share of random configurations that are predicted to be faster than a kernel can be.

    The quality on recorded configurations does not tell it. Where a table holds kernels of a few kinds alone, a model
    may say anything of the others, and a search begins with those. The networks that learned from the tables of
    `grouped_gemm_sm90` of 2026-11-29, some 35 kernels a problem, said it of a fifth of six spaces; the first ten of the
    recorded ones were 0.5 % behind.

    Parameters
    ----------
    model
        A fitted model.
    template, problems, device
        Whose spaces are looked at.
    seed, count
        Of the draw, and how many configurations a problem; a smaller space is looked at as a whole.

    Raises
    ------
    SpaceError
        If the template can't tell the configurations of a problem.
    """
    generator = np.random.default_rng(seed)
    impossible = total = 0
    for problem in problems:
        space = template.space(problem, device)
        space = space.subset(space.sample(count, generator))
        predicted_us = np.exp(model.predict(space_features(space, template)).mean)
        impossible += int((predicted_us < Roofline.of(problem, device).least_us).sum())
        total += len(space)
    return impossible / total


def regret_of_order(truth: Floats, order: NDArray[np.int64]) -> dict[int, float]:
    """For each of `TOPS`: the fastest of the first configurations of an order over the fastest of all, less 1.

    Parameters
    ----------
    truth
        Log times of all configurations.
    order
        Indices, the first-ranked first; at least one, perhaps not all.
    """
    return {top: float(np.expm1(truth[order[:top]].min() - truth.min())) for top in TOPS}


def regret_of_groups(truth: Floats, groups: Sequence[NDArray[np.int64]]) -> dict[int, float]:
    """The same for an order of groups of configurations, each at its best; empty if there is no group."""
    if not groups:
        return {}
    best = np.array([truth[group].min() for group in groups])
    return {top: float(np.expm1(best[:top].min() - truth.min())) for top in TOPS}


def rank_correlation(truth: Floats, mean: Floats) -> float:
    """Spearman's rank correlation within the fastest `BEST_SHARE`; NaN for fewer than three, or all equal."""
    from scipy.stats import spearmanr

    best = np.argsort(truth, kind="stable")[: int(np.ceil(BEST_SHARE * len(truth)))]
    if len(best) < 3 or np.ptp(mean[best]) == 0 or np.ptp(truth[best]) == 0:
        return float("nan")
    return float(spearmanr(truth[best], mean[best]).statistic)


def median_interval(
    values: Sequence[float], seed: int = 0, draws: int = 10_000, labels: Sequence[str] | None = None
) -> Interval:
    """The median with a 95 % percentile-bootstrap interval over the values; NaNs are left out.

    Parameters
    ----------
    values
        The figure of each problem.
    seed, draws
        Of the resamples.
    labels
        Values of one label are drawn together, for what is known of one tells of the other; None if each is alone.
    """
    figures = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(figures)
    kept = figures[known]
    if not len(kept):
        return Interval(float("nan"), float("nan"), float("nan"))
    generator = np.random.default_rng(seed)
    if labels is None:
        medians = np.median(generator.choice(kept, size=(draws, len(kept))), axis=1)
    else:
        medians = _medians_of_groups(kept, np.asarray(labels)[known], generator, draws)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(float(np.median(kept)), float(low), float(high))


def _medians_of_groups(values: Floats, labels: NDArray[np.str_], generator: np.random.Generator, draws: int) -> Floats:
    """The medians of resamples of groups, of shape [draws]."""
    names, group = np.unique(labels, return_inverse=True)
    order = np.argsort(values, kind="stable")
    times = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    reached = np.cumsum(times[:, group[order]], axis=1)
    total = reached[:, -1:]
    lower, upper = ((reached >= place).argmax(axis=1) for place in ((total + 1) // 2, total // 2 + 1))
    found: Floats = (values[order][lower] + values[order][upper]) / 2
    return found


def summarise(qualities: Sequence[Quality], labels: Sequence[str] | None = None) -> dict[str, Interval]:
    """Medians over problems with confidence intervals, by the figure's name; see `median_interval` for `labels`."""
    figures = {f"regret_top{top}": [q.regret[top] for q in qualities] for top in TOPS}
    figures["rank_correlation"] = [q.rank_correlation for q in qualities]
    figures["error"] = [q.error for q in qualities]
    figures["shift"] = [abs(q.shift) for q in qualities]
    figures["covered"] = [q.covered for q in qualities]
    return {name: median_interval(values, labels=labels) for name, values in figures.items()}
