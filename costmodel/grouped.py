"""Features of grouped products: what the hardware must do for a configuration, given how tokens are routed.

They stand beside the knobs. All are binary logarithms but ``fill`` and ``reached``:

======================  ========================================================================================
``n k experts tokens``  sizes of the problem
``group``               tokens of a token's group, in the mean over the tokens; ``largest`` of the largest group
``reached``             share of the experts that have tokens
``rows columns area``   the tile of D that a block computes: tokens, columns, both
``fill``                share of the multiplied rows that belong to the group
``units``               units of work (a tile for every block of a cluster) over clusters that run at once
``waves``               rounds of the grid, whole ones unless a thin last one is split; ``tail`` of them over ``units``
``steps``               stages that a block consumes for one tile; ``ring_bytes`` of all stages
``time_mma``            µs of the tensor cores, if all had work all the time; ``time_rounds`` with whole rounds
``time_l2``             µs of the way from the L2; ``time_memory`` of device memory, each operand once
``bound``               of the largest of the times
======================  ========================================================================================
"""

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.roofline import L2_BYTES_A_CYCLE, Roofline
from tilescout.spaces.devices import Device
from tilescout.spaces.grouped_tiling import GroupedTiling
from tilescout.spaces.hardware import clusters_at_once, rated_clock
from tilescout.spaces.tiling import ceil_div


def grouped_features(tiling: GroupedTiling, device: Device) -> dict[str, Floats]:
    """The features of a grouped product, by name; see the module's table."""
    t, problem = tiling, tiling.problem
    ones = np.ones(len(t.rows))
    sizes = np.array([draw.groups for draw in problem.draws], dtype=np.float64)
    walked, multiplied = t.token_tiles()
    across = ceil_div(problem.n, t.columns * t.cluster_columns)
    blocks = t.cluster_rows * t.cluster_columns
    at_once = clusters_at_once(blocks, device)
    units = walked / t.cluster_rows * across
    waves = t.rounds(units / at_once)
    steps = ceil_div(problem.k, t.depth)
    size, clock = problem.element.bytes, rated_clock(device) * 1e-6
    products = multiplied * t.rows * across * t.columns * t.cluster_columns * steps * t.depth
    mma_us = 2 * products / device.peak_of(problem.element) * 1e6
    tiles = walked * across * t.cluster_columns
    l2_bytes = tiles * steps * t.depth * (t.rows / t.cluster_columns + t.columns / t.cluster_rows) * size
    l2_us = l2_bytes / (L2_BYTES_A_CYCLE * clock * device.sms)
    memory_us = Roofline.of(problem, device).memory_us * ones
    busy = units / (waves * at_once)
    times = {"mma": mma_us, "rounds": mma_us / busy, "l2": l2_us, "memory": memory_us}
    logs = {
        "n": problem.n * ones,
        "k": problem.k * ones,
        "experts": problem.experts * ones,
        "tokens": problem.tokens * ones,
        "group": (sizes**2).sum(axis=1).mean() / problem.tokens * ones,
        "largest": sizes.max(axis=1).mean() * ones,
        "rows": t.rows,
        "columns": t.columns,
        "area": t.rows * t.columns,
        "units": units / at_once,
        "waves": waves,
        "tail": 1 / busy,
        "steps": steps,
        "ring_bytes": t.stages * (t.rows + t.columns) * t.depth * size,
        **{f"time_{name}": time for name, time in times.items()},
        "bound": np.max(np.stack(list(times.values())), axis=0),
    }
    found = {name: np.log2(np.asarray(column, dtype=np.float64)) for name, column in logs.items()}
    found["fill"] = problem.tokens / (multiplied * t.rows)
    found["reached"] = (sizes > 0).mean() * ones
    return found
