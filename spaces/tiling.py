"""How a configuration of a tiled matrix product divides the work, as cost models need to know it.

A template of such kernels describes its configurations by `KernelTemplate.tiling`. Models and features then do not
depend on the names of its knobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.constraints import Mask
from tilescout.spaces.gemm import GemmProblem

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Tiling:
    """The division of D[m, n] = A[m, k] @ B[n, k].T over blocks. Each fact is a column of shape [configurations].

    Attributes
    ----------
    product
        The matrix product that is computed.
    rows, columns
        Size along m and n of the tile of D that a block computes at a time, in elements.
    depth
        Elements along k in one stage of the ring.
    cluster_m, cluster_n
        Blocks of a cluster along m and n: they share loads of B and of A.
    split_k
        Blocks that share one tile of D, each with a part of k.
    stages
        Stages of the ring between loading and multiplying.
    swizzle
        Width, in clusters, of the bands in which tiles are walked.
    along_m
        Whether bands run along m.
    warp_groups
        Groups of 128 threads that multiply; with `ping_pong` each computes a tile of its own.
    ping_pong
        Whether one group multiplies while another stores.
    mma_columns
        Width of one matrix instruction in elements; its height is 64 on Hopper.
    accumulators
        Fp32 accumulators a thread.
    shared_memory
        Bytes of shared memory a block.
    early_launch
        Whether the next kernel's prologue may overlap this one's end (programmatic dependent launch).
    split_in_cluster
        Whether the blocks that share a tile are in one cluster, in all configurations. Otherwise each of them is a unit
        of work of its own.
    shares_evenly
        Whether all clusters share the tiles of the last round evenly along k (stream-K), so that it is full.
    swapped
        Whether an instruction computes D transposed, so that its width is along m.
    together
        Clusters that are launched side by side, and share no loads.
    """

    product: GemmProblem
    rows: Integers
    columns: Integers
    depth: Integers
    cluster_m: Integers
    cluster_n: Integers
    split_k: Integers
    stages: Integers
    swizzle: Integers
    along_m: Mask
    warp_groups: Integers
    ping_pong: Mask
    mma_columns: Integers
    accumulators: Integers
    shared_memory: Integers
    early_launch: Mask
    split_in_cluster: bool = True
    shares_evenly: Mask | bool = False
    swapped: Mask | bool = False
    together: Integers | int = 1

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def blocks(self) -> Integers:
        """Blocks of a cluster, those that share a tile in it included."""
        return self.cluster_m * self.cluster_n * (self.split_k if self.split_in_cluster else 1)

    @property
    def parts_apart(self) -> Integers | int:
        """Parts along k of a tile that no cluster shares: each is a unit of work of its own."""
        return 1 if self.split_in_cluster else self.split_k


def ceil_div(extent: Any, step: Any) -> Any:
    """How many steps cover an extent; integers or columns of them."""
    return -(-extent // step)


def computed_extents(knobs: Mapping[str, Any], problem: GemmProblem) -> tuple[Any, Any]:
    """Rows and columns of the product that is computed: of D or, where ``swap_ab`` is 1, of its transpose."""
    swapped = knobs["swap_ab"] == 1
    return np.where(swapped, problem.n, problem.m), np.where(swapped, problem.m, problem.n)
