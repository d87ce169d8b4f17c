"""Suggestions of NVIDIA's closed heuristics for matrix products, if the package nvidia-matmul-heuristics is installed.

The package chooses tiles and clusters, but not swizzle, raster or the layout of warp groups. It needs no GPU. It
crashes when the interpreter ends and when a query is unknown to it, so it runs in a process of its own: this module as
a program.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.errors import ModelError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.processes import module_command
from tilescout.spaces.tiling import Tiling

PACKAGE = "nvidia-matmul-heuristics"
GPUS = {"h100": "H100_SXM", "h100-pcie": "H100_PCIE", "h200": "H200_SXM", "b200": "B200"}
"""Devices by the names of its hardware descriptors."""

PRECISIONS = {"bf16": "TST", "fp16": "HSH"}
"""Operands, accumulators and result, in its letters: T bf16, H fp16, S fp32."""

LAYOUTS = {"kk": "NT_ROW_MAJOR", "kn": "NN_ROW_MAJOR", "mk": "TT_ROW_MAJOR", "mn": "TN_ROW_MAJOR"}
"""Along what A and B are contiguous, in its words: A [m, k] and B [k, n] are row-major, or transposed."""

_SECONDS = 60.0


@dataclass(frozen=True)
class Suggestion:
    """One suggested configuration; the fields are named as those of `tilescout.spaces.tiling.Tiling`.

    Attributes
    ----------
    rows, columns, depth, cluster_m, cluster_n, split_k, stages
        See there.
    time_us
        The time that it estimates, in µs.
    """

    rows: int
    columns: int
    depth: int
    cluster_m: int
    cluster_n: int
    split_k: int
    stages: int
    time_us: float


def is_installed() -> bool:
    """Whether the package is there."""
    return find_spec("nvMatmulHeuristics") is not None


def suggest(problem: GemmProblem, device: str, count: int = 64) -> list[Suggestion]:
    """The suggestions for a problem, the lowest estimated time first, each tile, cluster and split once.

    The package's own order is not that of its estimates, and it repeats suggestions that differ only in how warps share
    a tile.

    Parameters
    ----------
    problem
        The problem.
    device
        A key of `GPUS`.
    count
        Suggestions to ask for, repeats included.

    Raises
    ------
    ModelError
        If the package is not installed, does not know the device or the types, or crashed.
    """
    if not is_installed():
        raise ModelError(f"{PACKAGE} is not installed: pip install 'tilescout[heuristics]'")
    if device not in GPUS:
        raise ModelError(f"{PACKAGE} knows no {device}, only {', '.join(GPUS)}")
    if problem.dtype not in PRECISIONS:
        raise ModelError(f"{PACKAGE} is not asked for {problem.dtype}, only for {', '.join(PRECISIONS)}")
    request = {
        "sizes": [problem.m, problem.n, problem.k],
        "batch": problem.batch,
        "layout": LAYOUTS[problem.layout],
        "precision": PRECISIONS[problem.dtype],
        "gpu": GPUS[device],
        "count": count,
    }
    command = module_command("tilescout.costmodel.heuristics")
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        answer = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
        raise ModelError(f"{PACKAGE} gave no answer for {problem} on {device}: {one_line(error)}") from error
    if not answer:
        raise ModelError(f"{PACKAGE} gave no answer for {problem} on {device}: it suggests nothing")
    found = sorted((Suggestion(**record) for record in answer), key=lambda suggestion: suggestion.time_us)
    first = {(s.rows, s.columns, s.depth, s.cluster_m, s.cluster_n, s.split_k): s for s in reversed(found)}
    return sorted(first.values(), key=lambda suggestion: suggestion.time_us)


def matches(suggestion: Suggestion, tiling: Tiling) -> NDArray[np.int64]:
    """The configurations that have its tile, cluster and split, whatever their other knobs."""
    same = (tiling.rows == suggestion.rows) & (tiling.columns == suggestion.columns)
    same &= (tiling.depth == suggestion.depth) & (tiling.split_k == suggestion.split_k)
    same &= (tiling.cluster_m == suggestion.cluster_m) & (tiling.cluster_n == suggestion.cluster_n)
    return np.flatnonzero(same)


def _answer() -> None:
    """Read a request from standard input, write the suggestions to standard output, and leave without clearing up."""
    import nvMatmulHeuristics

    request = json.load(sys.stdin)
    interface = nvMatmulHeuristics.NvMatmulHeuristicsInterfaceEx(
        backend=nvMatmulHeuristics.NvMatmulHeuristicsTarget.CUTLASS3,
        flags=nvMatmulHeuristics.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
        gpu=nvMatmulHeuristics.NvMatmulHeuristicsNvidiaGpu[request["gpu"]],
    )
    layout = nvMatmulHeuristics.NvMatmulHeuristicsMatmulLayout[request["layout"]]
    problem = interface.makeNvMatmulHeuristicsProblem(*request["sizes"], layout, request["batch"])
    suggestions = []
    for found in interface.get(problem, request["count"], precision=request["precision"]):
        kernel = found["kernel"]
        suggestion = Suggestion(
            rows=kernel.cta_tile_m,
            columns=kernel.cta_tile_n,
            depth=kernel.cta_tile_k,
            cluster_m=kernel.cluster_m,
            cluster_n=kernel.cluster_n,
            split_k=kernel.split_k,
            stages=kernel.stages,
            time_us=found["runtime"] * 1e6,
        )
        suggestions.append(asdict(suggestion))
    sys.stdout.write("\n" + json.dumps(suggestions) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _answer()
