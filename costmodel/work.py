"""The work that a configuration of a tiled product is for the hardware: counts, before any rate makes times of them.

The order in which the kernel walks tiles says which part of A and B a round of blocks reads.
"""

from dataclasses import dataclass

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.spaces.devices import Device
from tilescout.spaces.hardware import (
    MMA_BYTES,
    MMA_ROWS,
    OPERATION_BYTES_A_CYCLE,
    SHARED_BYTES_A_CYCLE,
    clusters_at_once,
)
from tilescout.spaces.tiling import Tiling, ceil_div


@dataclass(frozen=True)
class Work:
    """The work of each configuration for the hardware; every field is of shape [configurations].

    Attributes
    ----------
    units, at_once, waves
        Units of work of the persistent grid, clusters that run at once, rounds.
    blocks
        Blocks a cluster.
    busy
        Multiprocessors that have work in the first round.
    steps
        Stages that a block consumes for one tile.
    mma_cycles, smem_cycles
        Cycles of a stage on the tensor cores, and cycles to read its operands from shared memory.
    stage_bytes, l2_bytes
        Bytes of a stage, and the bytes of it that this block itself reads from L2: blocks of a cluster share loads.
    tile_bytes
        Bytes of a tile of D.
    wave_bytes
        Bytes of distinct A and B that one round of blocks reads.
    memory_bytes
        Bytes through device memory, re-reads included.
    """

    units: Floats
    at_once: Floats
    waves: Floats
    blocks: Floats
    busy: Floats
    steps: Floats
    mma_cycles: Floats
    smem_cycles: Floats
    stage_bytes: Floats
    l2_bytes: Floats
    tile_bytes: Floats
    wave_bytes: Floats
    memory_bytes: Floats


def work_of(tiling: Tiling, device: Device) -> Work:
    """Count the work of configurations on a device."""
    t, problem = tiling, tiling.product
    size, result = problem.element.bytes, problem.result.bytes
    clusters_m = ceil_div(problem.m, t.rows * t.cluster_m)
    clusters_n = ceil_div(problem.n, t.columns * t.cluster_n)
    units = clusters_m * clusters_n * problem.batch * t.parts_apart
    blocks = t.blocks
    at_once = clusters_at_once(blocks, device)
    running = np.minimum(units, at_once)
    shared = np.asarray(t.shares_evenly)
    waves = np.where(shared, units / at_once, ceil_div(units, at_once))
    steps = ceil_div(ceil_div(problem.k, t.split_k), t.depth)

    instructions = t.rows * t.columns * t.depth * size / (MMA_ROWS * t.mma_columns * MMA_BYTES)
    cycles = 2 * MMA_ROWS * MMA_BYTES * t.mma_columns / OPERATION_BYTES_A_CYCLE
    operand_bytes = (MMA_ROWS + t.mma_columns) * MMA_BYTES
    l2_elements = t.depth * (t.rows / t.cluster_n + t.columns / t.cluster_m)

    # Distinct tiles of A and B that the clusters of one round touch, walking bands `swizzle` wide.
    along = np.where(t.along_m, clusters_m, clusters_n)
    across = np.where(t.along_m, clusters_n, clusters_m)
    width = np.minimum(t.swizzle, across)
    tiles = ceil_div(running, t.parts_apart)
    length = np.minimum(along, ceil_div(tiles, width))
    lanes = np.minimum(across, width * ceil_div(tiles, width * along))
    reach_m = np.where(t.along_m, length, lanes) * t.cluster_m * t.rows
    reach_n = np.where(t.along_m, lanes, length) * t.cluster_n * t.columns
    reach_m, reach_n = np.minimum(reach_m, problem.m), np.minimum(reach_n, problem.n)
    wave_bytes = (reach_m + reach_n) * float(problem.k) * size
    inputs = (problem.m + problem.n) * float(problem.k) * size * problem.batch
    # What exceeds the L2 is read again in every round; a round that fits finds the last one's tiles still there.
    evicted = np.clip(inputs / device.l2 - 0.5, 0.0, 1.0)
    read = inputs + evicted * np.maximum(wave_bytes * (units / at_once) - inputs, 0.0)
    written = float(problem.batch * problem.m * problem.n * result)
    return Work(
        units=units.astype(np.float64),
        at_once=at_once.astype(np.float64),
        waves=waves.astype(np.float64),
        blocks=blocks.astype(np.float64),
        busy=(np.where(shared, at_once, running) * blocks).astype(np.float64),
        steps=steps.astype(np.float64),
        mma_cycles=instructions * cycles,
        smem_cycles=instructions * operand_bytes / SHARED_BYTES_A_CYCLE,
        stage_bytes=np.asarray((t.rows + t.columns) * t.depth * size, dtype=np.float64),
        l2_bytes=l2_elements * float(size),
        tile_bytes=np.asarray(t.rows * t.columns * result, dtype=np.float64),
        wave_bytes=wave_bytes,
        memory_bytes=read + written,
    )
