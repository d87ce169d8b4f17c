"""A rough time of a configuration, good enough to say which ones a search should try first.

It adds to the limits of `tilescout.spaces.gemm_sm90.estimate` what sharing tiles costs: the second kernel, and the sums
that are written and read.
"""

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.devices import Device
from tilescout.spaces.gemm_sm90.estimate import RATES
from tilescout.spaces.hardware import LOADED_CLOCK, OPERATION_BYTES_A_CYCLE, clusters_at_once
from tilescout.spaces.tiling import Tiling, ceil_div

_SECOND_KERNEL = 4000.0  # cycles
_SUMS = 30.0  # bytes of them that a multiprocessor writes, and reads again, in a cycle
# What sharing costs beyond that, as a factor: clusters that share tiles are at different steps, so that fewer of their
# loads find the L2 warm. On eight problems that a default of gemm_sm90 does not split, the times of shared tiles over
# its time, measured and estimated, differ by 1.08 to 1.66 (H200, 2026-11-22).
_SHARING = 1.3


def cycles(tiling: Tiling, device: Device) -> NDArray[np.float64]:
    """Cycles that each row of a tiling takes, about; only for comparing them.

    Parameters
    ----------
    tiling
        Columns of n tilings of ``gemm_streamk_sm90``.
    device
        The device that runs them.

    Returns
    -------
    array
        Cycles, of shape [n].
    """
    t, problem = tiling, tiling.product
    size, result = problem.element.bytes, problem.result.bytes
    area, blocks = t.rows * t.columns, t.cluster_m * t.cluster_n
    tiles = ceil_div(problem.m, t.rows * t.cluster_m) * ceil_div(problem.n, t.columns * t.cluster_n) * problem.batch
    at_once = clusters_at_once(blocks, device)
    steps = ceil_div(problem.k, t.depth)
    evenly = np.asarray(t.shares_evenly)
    shared = evenly | (t.split_k > 1)
    waves = np.where(evenly, tiles / at_once, ceil_div(tiles * t.split_k, at_once))  # of a tile, or of a part of one
    multiplying = area * t.depth * size / (OPERATION_BYTES_A_CYCLE / 2)
    loading = (t.rows / t.cluster_n + t.columns / t.cluster_m) * t.depth * size / RATES.loading
    stage = np.maximum(np.maximum(multiplying, loading), RATES.latency / t.stages)
    stored = area * result / RATES.storing + RATES.tile
    ending = np.where(t.ping_pong & (waves > 1), 0.5, 1.0) * np.where(shared, np.minimum(waves, 1.0), waves) * stored
    sums = np.where(shared, _SECOND_KERNEL + 2 * 4 * area * np.where(evenly, 1.0, waves) / _SUMS, 0.0)
    computing = (waves * ceil_div(steps, t.split_k) * stage + ending + sums) * np.where(shared, _SHARING, 1.0)
    moved = (problem.m + problem.n) * problem.k * size + problem.m * problem.n * result
    memory = problem.batch * moved / (RATES.memory * device.bandwidth) * LOADED_CLOCK
    longer, shorter = np.maximum(computing, memory), np.minimum(computing, memory)
    return np.asarray(longer + RATES.overlap * shorter, dtype=np.float64)
