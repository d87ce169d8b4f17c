"""Figures of measurements that were repeated, and a plot of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def spread_of(times: NDArray[np.float64]) -> dict[str, float]:
    """How well repeated measurements of several configurations agree.

    Parameters
    ----------
    times
        Of shape [rounds, configurations].

    Returns
    -------
    dict
        ``spread``: (largest - smallest) / median over the rounds, the median over the configurations.
        ``winner_within``: in what share of the rounds its fastest configuration is within 1 % of the one that is
        fastest by the mean of all rounds.
    """
    spread = (times.max(axis=0) - times.min(axis=0)) / np.median(times, axis=0)
    true = times.mean(axis=0)
    return {
        "spread": float(np.median(spread)),
        "winner_within": float((true[times.argmin(axis=1)] <= 1.01 * true.min()).mean()),
    }


def draw_spread(result: Mapping[str, Any], path: Path) -> None:
    """Draw the spread of each protocol on each problem of the study `measurement`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    problems = result["problems"]
    names = list(next(iter(problems.values()))["spread"])
    for at, name in enumerate(names):
        heights = [100 * problem["spread"][name]["spread"] for problem in problems.values()]
        places = np.arange(len(problems)) + (at - len(names) / 2) * 0.8 / len(names)
        axes.bar(places, heights, width=0.8 / len(names), label=name, align="edge")
    axes.set_xticks(range(len(problems)), list(problems), rotation=15)
    axes.set_ylabel("spread over re-measurements, %")
    axes.set_title(f"{result['device']}: the same configurations measured again", loc="left")
    axes.legend()
    figure.savefig(path)
