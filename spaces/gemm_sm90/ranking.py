"""The features by which a few configurations of ``gemm_sm90`` are ranked.

The features are logarithms of sizes, counts of work, and ratios. Those called ``more_*`` are relative to the least of
the configurations that are ranked together: which of them is fastest depends on how they differ. Without these the
regret on problems left out was 0.059 in place of 0.041 (72 problems in bf16 and 12 in e4m3, 42 features, six folds).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.devices import Device
from tilescout.spaces.gemm_sm90.estimate import cycles
from tilescout.spaces.hardware import clusters_at_once
from tilescout.spaces.tiling import Tiling, ceil_div

_MORE = ("cycles", "multiplied", "loaded", "waited", "traffic", "waves", "padded_m", "padded_n")
_HIDDEN = ("cycles", "multiplied", "loaded", "waited")  # of them only the differences are features

FEATURES = (
    "m", "n", "k", "outputs", "intensity", "rows", "columns", "depth", "area", "split", "cluster_m", "cluster_n",
    "stages", "groups", "swizzle", "mma_columns", "tiles_m", "tiles_n", "padded_m", "padded_n", "padded_k", "idle",
    "units", "waves", "tail", "busy", "steps", "refills", "ring", "traffic", "ping_pong", "along_m", "bytes",
    *(f"more_{name}" for name in _MORE),
)  # fmt: skip
"""The features, in the order of the columns of `features`."""


def features(tiling: Tiling, device: Device) -> NDArray[np.float32]:
    """The features of configurations that are ranked together.

    Parameters
    ----------
    tiling
        Columns of n tilings.
    device
        The device that runs them.

    Returns
    -------
    array
        Of shape [n, features].
    """
    t, problem = tiling, tiling.product
    size = problem.element.bytes
    k = float(problem.k * size)
    tiles_m, tiles_n = ceil_div(problem.m, t.rows), ceil_div(problem.n, t.columns)
    along_m, along_n = ceil_div(tiles_m, t.cluster_m), ceil_div(tiles_n, t.cluster_n)
    blocks = t.cluster_m * t.cluster_n * t.split_k
    at_once = clusters_at_once(blocks, device)
    units = along_m * along_n * problem.batch
    waves = ceil_div(units, at_once)
    steps = ceil_div(problem.k, t.depth * t.split_k)
    depth = np.asarray(t.depth * size, dtype=np.float64)  # whose bytes, of the largest problems, are more than 2**63
    stages = waves * steps * depth  # bytes along k of all stages that one block consumes
    area = t.rows * t.columns
    columns: dict[str, Any] = {
        "m": problem.m,
        "n": problem.n,
        "k": k,
        "outputs": float(problem.m * problem.n * problem.batch),
        "intensity": problem.flops / problem.bytes,
        "rows": t.rows,
        "columns": t.columns,
        "depth": depth,
        "area": area,
        "split": t.split_k,
        "cluster_m": t.cluster_m,
        "cluster_n": t.cluster_n,
        "stages": t.stages,
        "groups": t.warp_groups,
        "swizzle": t.swizzle,
        "mma_columns": t.mma_columns,
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "padded_m": tiles_m * t.rows / problem.m,
        "padded_n": tiles_n * t.columns / problem.n,
        "padded_k": steps * t.depth * t.split_k / problem.k,
        "idle": along_m * t.cluster_m * along_n * t.cluster_n / (tiles_m * tiles_n),
        "units": units / at_once,
        "waves": waves,
        "tail": waves * at_once / units,
        "busy": np.minimum(units, at_once) * blocks / device.sms,
        "steps": steps,
        "refills": steps / t.stages,
        "ring": t.stages * (t.rows + t.columns) * depth,
        "traffic": units * t.split_k * steps * depth * (t.rows * t.cluster_m + t.columns * t.cluster_n) / problem.bytes,
        "cycles": cycles(t, device),
        "multiplied": stages * area,
        "loaded": stages * (t.rows / t.cluster_n + t.columns / t.cluster_m),
        "waited": waves * (steps / t.stages + 2),
    }
    values = np.empty((len(columns), len(t)))
    for place, column in enumerate(columns.values()):
        values[place] = column
    logs = dict(zip(columns, np.log2(values), strict=True))
    more = [logs[name] - logs[name].min(initial=np.inf) for name in _MORE]
    own = [column for name, column in logs.items() if name not in _HIDDEN]
    flags = [t.ping_pong, t.along_m, np.full(len(t), size)]
    return np.stack([*own, *flags, *more], axis=1).astype(np.float32)
