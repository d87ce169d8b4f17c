"""A rough time of a tiling on Hopper, good enough to choose among a few defaults.

It knows five limits: the tensor cores, the transfer from the L2 to a multiprocessor, the latency that the ring of
stages hides, the fixed cost of a tile, and device memory. For all other purposes there are the models of
`tilescout.costmodel`.

The rates are fitted to recorded tables, each judged on problems that were left out of its fit.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.devices import Device
from tilescout.spaces.hardware import CLUSTERS_AT_ONCE, LOADED_CLOCK, OPERATION_BYTES_A_CYCLE
from tilescout.spaces.tiling import Tiling, ceil_div

_FEWER = CLUSTERS_AT_ONCE[4] * 4  # blocks that run at a time in clusters of four, and of eight: they don't fill the GPU


@dataclass(frozen=True)
class Rates:
    """The constants that were fitted to the tables of an H200 (24 problems in bf16, 12 in e4m3).

    Attributes
    ----------
    loading
        Bytes a cycle from the L2 to a multiprocessor.
    latency
        Cycles from asking for a stage to having it, while all others ask too.
    storing
        Bytes a cycle of a tile's results.
    tile
        Cycles that each tile costs besides.
    exchange
        Cycles more if blocks add up their shares of a tile.
    memory
        Share of the device memory's bandwidth that is reached.
    overlap
        Share of the shorter of computing and device memory that the longer does not hide.
    in_turn
        How much longer 8-bit products take where one warp group multiplies and promotes in turn.
    """

    loading: float = 59.0
    latency: float = 2700.0
    storing: float = 18.0
    tile: float = 2600.0
    exchange: float = 3900.0
    memory: float = 0.84
    overlap: float = 0.096
    in_turn: float = 1.1


RATES = Rates()


def cycles(tiling: Tiling, device: Device, rates: Rates = RATES) -> NDArray[np.float64]:
    """Cycles that each row of a tiling takes, about; only for comparing them.

    Parameters
    ----------
    tiling
        Columns of n tilings of ``gemm_sm90``.
    device
        The device that runs them.
    rates
        The measured constants.

    Returns
    -------
    array
        Cycles, of shape [n].
    """
    problem = tiling.product
    size, result = problem.element.bytes, problem.result.bytes
    tiles = problem.batch * ceil_div(problem.m, tiling.rows) * ceil_div(problem.n, tiling.columns)
    clusters = tiling.cluster_m * tiling.cluster_n * tiling.split_k
    waves = ceil_div(tiles * tiling.split_k, np.where(clusters >= 4, _FEWER, device.sms))
    multiplying = tiling.rows * tiling.columns * tiling.depth * size / (OPERATION_BYTES_A_CYCLE / 2)
    multiplying = multiplying * np.where((size == 1) & (tiling.warp_groups == 1), rates.in_turn, 1.0)
    loading = (tiling.rows / tiling.cluster_n + tiling.columns / tiling.cluster_m) * tiling.depth * size / rates.loading
    stage = np.maximum(np.maximum(multiplying, loading), rates.latency / tiling.stages)
    ending = tiling.rows * tiling.columns * result / rates.storing + rates.tile
    ending = ending * np.where(tiling.ping_pong & (waves > 1), 0.5, 1.0)  # the other group multiplies meanwhile
    ending = ending + rates.exchange * (tiling.split_k > 1)
    computing = waves * (ceil_div(problem.k, tiling.depth * tiling.split_k) * stage + ending)
    moved = (problem.m + problem.n) * problem.k * size + problem.m * problem.n * result
    memory = problem.batch * moved / (rates.memory * device.bandwidth) * LOADED_CLOCK
    longer, shorter = np.maximum(computing, memory), np.minimum(computing, memory)
    return np.asarray(longer + rates.overlap * shorter + rates.latency, dtype=np.float64)
