"""Dispatchers of times that were recorded on an H200, judged at recorded m that they were not given."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilescout.search.dispatch.building import DispatchOptions, measure_dispatcher
from tilescout.search.dispatch.points import Point
from tilescout.search.dispatch.recorded import Recorded, read_sweep
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

SWEEP = Path(__file__).parents[3] / "experiments/results/dispatch-2026-11-22/sweep-development.json.gz"


def regret(point: Point, number: int | None) -> float:
    """The share by which a kernel, or the library, is slower than the best that was timed."""
    known = {**point.slower, **{at: each.value for at, each in point.ratios.items()}}
    return (1.0 if number is None else known[number]) / min([1.0, *known.values()]) - 1


@pytest.mark.parametrize("product", ["6144x4096", "4096x14336"])
def test_a_dispatcher_of_half_of_the_recorded_m_serves_the_other_half(product: str) -> None:
    whole, _ = read_sweep(SWEEP, GemmProblem.parse(f"1x{product}"), find_template("gemm_sm90"))
    found, alone, kernels = [], [], list(whole.kernels.configurations)
    for seed in range(3):
        sizes = sorted(whole.points)
        kept = {*np.random.default_rng(seed).permutation(sizes)[: len(sizes) // 2].tolist(), sizes[0], sizes[-1]}
        half = Recorded(whole.kernels, {m: point for m, point in whole.points.items() if m in kept})
        options = replace(DispatchOptions(), most_rows=sizes[-1])
        made = measure_dispatcher(half, options, "replayed", {})
        assert len(made.kernels) <= options.kernels
        for m in set(sizes) - kept:
            number = made.find(m)
            found.append(regret(whole.points[m], None if number is None else kernels.index(made.kernels[number])))
            alone.append(regret(whole.points[m], None))
    assert np.mean(found) < 0.006
    assert np.mean(found) < np.mean(alone) / 2
    assert np.quantile(found, 0.95) < 0.03
