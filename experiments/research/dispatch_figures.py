"""Figures of the m at which dispatchers were judged: the mean and the worst regret, and where regrets are largest."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MEASURED = "measured"
"""The name of a dispatcher that was measured, not predicted."""


def figures(points: Sequence[Mapping[str, Any]], name: str, start: str = "") -> dict[str, float]:
    """The figures of one dispatcher over all m that were judged; `start` is that of the keys of a state."""
    regret = np.array([point[name][f"{start}regret"] for point in points], dtype=np.float64)
    ratio = np.array([point[name][f"{start}ratio"] for point in points], dtype=np.float64)
    known = np.isfinite(regret)
    regret, ratio = regret[known], ratio[known]
    return {
        "sizes": int(known.sum()),
        "unknown": int((~known).sum()),
        "mean": float(regret.mean()),
        "worst": float(regret.max()),
        "worst_at": int([point["m"] for point, good in zip(points, known, strict=True) if good][int(regret.argmax())]),
        "over_2": float((regret > 0.02).mean()),
        "over_5": float((regret > 0.05).mean()),
        "speed": float(np.exp(-np.log(ratio).mean())),
        "slowest": float(ratio.max()),
    }


def again_slowest(points: Sequence[Mapping[str, Any]], start: str = "") -> float:
    """The longest time over the library's at a measured m that was raced again; NaN without one."""
    return max((point[MEASURED].get(f"{start}ratio", math.nan) for point in points), default=math.nan)


def largest(points: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Of the m that were judged those at which the regret is largest, the largest first."""
    known = [point for point in points if point[MEASURED]["regret"] > 0]
    return sorted(known, key=lambda point: -float(point[MEASURED]["regret"]))[:count]
