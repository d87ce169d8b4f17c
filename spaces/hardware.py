"""Facts of a Hopper multiprocessor (compute capability 9.0) that every model of a time shares.

Datasheet figures of a whole GPU are in `tilescout.spaces.devices`. Figures that a model fits to measurements, such as
its latencies, stand with that model.
"""

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.devices import Device

OPERATION_BYTES_A_CYCLE = 8192
"""Operations of a multiprocessor in a cycle times the bytes of an element: 4096 of 16 bits, 8192 of 8 bits.

NVIDIA H100 Tensor Core GPU Architecture, 2022.
"""

SHARED_BYTES_A_CYCLE = 128
"""Bytes that a multiprocessor reads of its shared memory in a cycle (CUDA C++ programming guide)."""

MMA_ROWS, MMA_BYTES = 64, 32
"""Rows of one matrix instruction (m64nNk16), and the bytes along k of each row."""

LOADED_CLOCK = 1.755e9
"""Clock of an H100 and an H200 under load, in Hz."""

CLUSTERS_AT_ONCE = {1: 132, 2: 66, 4: 30, 8: 15}
"""Blocks of a cluster to the clusters that run at a time on the 132 multiprocessors of an H200.

A cluster stays within one of the GPU's processing clusters. These differ in how many multiprocessors are enabled, so
that large clusters leave some unused (cuOccupancyMaxActiveClusters, one card, 2026-11).
"""

_COUNTED_ON = 132  # multiprocessors of the card that `CLUSTERS_AT_ONCE` was counted on


def rated_clock(device: Device) -> float:
    """The clock at which the datasheet's peak rate of a device holds, in Hz."""
    return device.peak / (device.sms * OPERATION_BYTES_A_CYCLE / 2)


def clusters_at_once(size: NDArray[np.int64], device: Device) -> NDArray[np.int64]:
    """How many clusters of `size` blocks run at a time, one block a multiprocessor, of the shape of `size`.

    Of other devices than an H200 the same share of the multiprocessors is taken to be usable, and of clusters that are
    larger than any that was counted the share of the largest.
    """
    sizes = sorted(CLUSTERS_AT_ONCE)
    usable = np.array([CLUSTERS_AT_ONCE[blocks] * blocks / _COUNTED_ON for blocks in sizes])
    share = usable[np.minimum(np.searchsorted(sizes, size), len(sizes) - 1)]
    return np.asarray(np.maximum(np.floor(share * device.sms / size + 1e-9), 1), dtype=np.int64)
