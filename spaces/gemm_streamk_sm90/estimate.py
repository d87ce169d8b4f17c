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


# Cycles for which the tensor cores rest at each step along k, while 8-bit products of 64 rows a warp group are added: a
# step of 128x144x128 took 853 instead of 576 (H200, 2026-11-23), and beside other warp groups one of 128x176x128 724
# instead of 704 (2026-12-01). Of halves it is guessed.
_RESTING = {"step": 280.0, "halves": 140.0, "beside": 20.0, "ahead": 0.0}
_KEPT_IN_L2 = 0.6  # the share of it that an operand may have, to be read from memory once
# What it costs, as a factor, that neighbours among tiles that are all computed at once share the smaller operand: 1.03
# and 1.06 on 433x3328x9600 (two H200s, 2026-11-23; `experiments/results/promotion.md`).
_FAR = 1.03


def resting(promotion: NDArray[np.str_], pieces: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cycles for which the tensor cores rest at each step along k of 8-bit products, of shape [n].

    Parameters
    ----------
    promotion
        How each configuration promotes, of shape [n].
    pieces
        How often a warp group computes 64 rows in a step, of shape [n].
    """
    return np.asarray(sum(pieces * cycles * (promotion == way) for way, cycles in _RESTING.items()))


def cycles(tiling: Tiling, device: Device, resting: NDArray[np.float64] | float = 0.0) -> NDArray[np.float64]:
    """Cycles that each row of a tiling takes, about; only for comparing them.

    Parameters
    ----------
    tiling
        Columns of n tilings of ``gemm_streamk_sm90``.
    device
        The device that runs them.
    resting
        Cycles for which the tensor cores rest at each step along k, of shape [n].

    Returns
    -------
    array
        Cycles, of shape [n].
    """
    t, problem = tiling, tiling.product
    size, result = problem.element.bytes, problem.result.bytes
    area, blocks = t.rows * t.columns, t.cluster_m * t.cluster_n
    along_m, along_n = ceil_div(problem.m, t.rows * t.cluster_m), ceil_div(problem.n, t.columns * t.cluster_n)
    tiles = along_m * along_n * problem.batch
    at_once = clusters_at_once(blocks, device)
    steps = ceil_div(problem.k, t.depth)
    evenly = np.asarray(t.shares_evenly)
    shared = evenly | (t.split_k > 1)
    waves = np.where(evenly, tiles / at_once, ceil_div(tiles * t.split_k, at_once))  # of a tile, or of a part of one
    multiplying = area * t.depth * size / (OPERATION_BYTES_A_CYCLE / 2)
    loading = (t.rows / t.cluster_n + t.columns / t.cluster_m) * t.depth * size / RATES.loading
    stage = np.maximum(np.maximum(multiplying + resting, loading), RATES.latency / t.stages)
    stored = area * result / RATES.storing + RATES.tile
    ending = np.where(t.ping_pong & (waves > 1), 0.5, 1.0) * np.where(shared, np.minimum(waves, 1.0), waves) * stored
    sums = np.where(shared, _SECOND_KERNEL + 2 * 4 * area * np.where(evenly, 1.0, waves) / _SUMS, 0.0)
    computing = (waves * ceil_div(steps, t.split_k) * stage + ending + sums) * np.where(shared, _SHARING, 1.0)
    # The operand that every band of tiles reads is read again by those that do not run at the same time.
    across = np.where(t.along_m, problem.m, problem.n) * problem.k * size
    bands = ceil_div(np.where(t.along_m, along_n, along_m), t.swizzle)
    again = np.where(across > _KEPT_IN_L2 * device.l2, np.minimum(bands, np.maximum(waves, 1.0)) - 1, 0.0)
    moved = (problem.m + problem.n) * problem.k * size + problem.m * problem.n * result + again * across
    memory = problem.batch * moved / (RATES.memory * device.bandwidth) * LOADED_CLOCK
    longer, shorter = np.maximum(computing, memory), np.minimum(computing, memory)
    shares_larger = np.where(t.along_m, problem.n >= problem.m, problem.m >= problem.n)
    order = np.where((waves > 1) | shares_larger, 1.0, _FAR)
    return np.asarray((longer + RATES.overlap * shorter) * order, dtype=np.float64)
