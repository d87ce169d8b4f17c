"""How sure a comparison is: bootstrap intervals and paired tests."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.compare.truth import Floats

CONFIDENCE = 0.95
RESAMPLES = 1000
FEWEST_PROBLEMS = 6
"""Problems from which a paired test can reject at 5 %: the smallest two-sided p of 5 pairs is 2 / 2**5 = 0.0625."""

Combine = Callable[[Floats], Floats]


def bootstrap(groups: Sequence[Floats], combine: Combine, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """A figure of several problems, and its confidence interval over what the seeds decided.

    Seeds are drawn anew, with replacement, within each problem; the problems stay. So the interval says how far another
    set of seeds would move the figure on these problems.

    Parameters
    ----------
    groups
        For each problem, what its searches gave, of shape [seeds, ...]; the seeds may differ in number.
    combine
        The figure, from the means over the seeds, of shape [problems, ...]; it works along the first axis.
    rng
        Draws the resamples.

    Returns
    -------
    tuple of arrays
        The figure and the lower and upper end of its 95 % interval, by percentiles.
    """
    point = combine(np.stack([group.mean(axis=0) for group in groups]))
    draws = [rng.integers(len(group), size=(RESAMPLES, len(group))) for group in groups]
    resampled = np.stack(
        [combine(np.stack([group[d[r]].mean(axis=0) for group, d in zip(groups, draws, strict=True)]))
         for r in range(RESAMPLES)]
    )  # fmt: skip
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return point, low, high


@dataclass(frozen=True)
class PairedTest:
    """Whether one strategy scored higher than another.

    Attributes
    ----------
    first, second
        The strategies.
    difference
        Median over the pairs of the first one's score less the second one's.
    wins
        Share of the pairs in which the first scored higher; ties count half.
    pairs, unit
        Number of pairs, and what a pair is: ``problem`` (the mean scores on a problem) or ``run`` (the scores of two
        searches of the same problem with the same seed).
    p
        Two-sided p-value of Wilcoxon's signed-rank test.
    p_corrected
        The same after Holm's correction for all pairs of strategies that were tested.
    """

    first: str
    second: str
    difference: float
    wins: float
    pairs: int
    unit: str
    p: float
    p_corrected: float


def paired_tests(scores: Mapping[str, Mapping[str, Mapping[int, float]]]) -> list[PairedTest]:
    """Test every two strategies against each other.

    With at least `FEWEST_PROBLEMS` problems a pair is a problem, and the test speaks of problems like these; with fewer
    it is a run, and the test speaks of these problems only.

    Parameters
    ----------
    scores
        Scores by strategy, problem and seed.
    """
    from scipy.stats import wilcoxon

    found = []
    for first, second in combinations(scores, 2):
        unit, differences = _differences(scores[first], scores[second])
        if not len(differences):
            continue
        p = float(wilcoxon(differences).pvalue) if np.any(differences) else 1.0
        wins = float(((differences > 0) + 0.5 * (differences == 0)).mean())
        found.append((first, second, float(np.median(differences)), wins, len(differences), unit, p))
    corrected = holm(np.array([test[-1] for test in found]))
    return [PairedTest(*test, p_corrected=float(p)) for test, p in zip(found, corrected, strict=True)]


def holm(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down correction: p-values of shape [tests] to corrected ones of the same shape.

    The smallest is multiplied by the number of tests, the next by one less, and so on; none gets smaller than a smaller
    one before it, and none larger than 1 (Holm, Scandinavian Journal of Statistics 6, 1979).
    """
    order = np.argsort(p, kind="stable")
    steps = p[order] * np.arange(len(p), 0, -1)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected


def _differences(
    first: Mapping[str, Mapping[int, float]], second: Mapping[str, Mapping[int, float]]
) -> tuple[str, Floats]:
    both = [problem for problem in first if problem in second]
    shared = [[s for s in first[problem] if s in second[problem]] for problem in both]
    paired = [
        np.array([first[problem][s] - second[problem][s] for s in seeds])
        for problem, seeds in zip(both, shared, strict=True)
        if seeds
    ]
    if len(paired) >= FEWEST_PROBLEMS:
        return "problem", np.array([differences.mean() for differences in paired])
    return "run", np.concatenate(paired) if paired else np.array([])
