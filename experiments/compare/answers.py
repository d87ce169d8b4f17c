"""The answers that searches hand out, by what their users ask of them (flashinfer's RFC 3920).

How much slower than the best is the answer, how often is it slower than running the default without a search, does
another process get another answer, and what did it cost?
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from tilescout.experiments.compare.play import Case, Trace
from tilescout.experiments.compare.truth import Floats, Truth

APART = 0.01
"""How far two answers are apart, relative, to count as a flip."""


def answers_of(traces: Sequence[Trace], truths: Mapping[Case, Truth], trials: int) -> dict[str, float]:
    """The figures of a strategy's answers; each is the fastest configuration that a search tried.

    Times are those of the table's rows, as a replay tells them to a search, and not those of its races: the fastest
    rows are a little flattered, as what is the fastest of many measurements is.

    Returns
    -------
    dict
        ``regret`` (mean over the searches of how much slower the answer is than the best, relative), ``regret_p90``,
        ``slower_than_default`` and ``flips`` (shares of the searches and of the pairs of searches of one problem with
        two seeds; NaN where nothing can be said), ``over_library`` and ``over_library_best`` (geometric means of the
        answers' speeds over the library's function and over the fastest of its candidates, over the problems of which
        these are known; NaN where none is), and means a search: ``kernels`` that were compiled, ``gpu_seconds`` and
        ``compile_seconds`` over the searches of problems of which they were recorded (NaN if of none), and
        ``own_seconds``, which the strategy took itself.
    """
    found = [(trace, truths[trace.run.case], np.array(trace.indices[:trials])) for trace in traces if trace.indices]
    if not found:
        return {}
    times = np.array([truth.times_us[tried].min() for _, truth, tried in found])
    regret = times / np.array([truth.best_us for _, truth, _ in found]) - 1
    defaults = np.array([truth.default_us for _, truth, _ in found])
    known = ~np.isnan(defaults)
    by_case: dict[Case, list[float]] = {}
    for (trace, _, _), time in zip(found, times, strict=True):
        by_case.setdefault(trace.run.case, []).append(float(time))
    pairs = [max(a, b) / min(a, b) - 1 > APART for own in by_case.values() for a, b in combinations(own, 2)]
    return {
        "regret": float(regret.mean()),
        "regret_p90": float(np.quantile(regret, 0.9)),
        "slower_than_default": float((times > defaults)[known].mean()) if known.any() else float("nan"),
        "flips": float(np.mean(pairs)) if pairs else float("nan"),
        "over_library": _speed(times, [truth.library_us for _, truth, _ in found]),
        "over_library_best": _speed(times, [truth.library_best_us for _, truth, _ in found]),
        "kernels": float(np.mean([len(tried) for _, _, tried in found])),
        "gpu_seconds": _mean([truth.gpu_seconds[tried].sum() for _, truth, tried in found if truth.has_gpu_seconds]),
        "compile_seconds": _mean(
            [
                truth.compile_seconds[tried].sum()
                for _, truth, tried in found
                if truth.has_gpu_seconds or truth.compile_seconds.any()  # a library's own kernels take none to compile
            ]
        ),
        "own_seconds": float(np.mean([trace.seconds for trace, _, _ in found])),
    }


def _mean(known: Sequence[float]) -> float:
    """The mean of what is known; NaN if nothing is."""
    return float(np.mean(known)) if known else float("nan")


def _speed(times: Floats, theirs: Sequence[float]) -> float:
    """The geometric mean of speeds over times that may not be known, as NaN; NaN if none is."""
    logs = np.log(np.array(theirs) / times)
    known = logs[~np.isnan(logs)]
    return float(np.exp(known.mean())) if known.size else float("nan")
