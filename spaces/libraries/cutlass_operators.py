"""Matrix products of CUTLASS's Operator API (package nvidia-cutlass-operators) as search spaces: Hopper and Blackwell.

These are the kernels among which TorchInductor's NVGEMM backend chooses. The knobs are the properties in which
operators differ. On Hopper the order in which tiles are walked is a knob too: the kernel takes it, although no operator
sets it.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.libraries.template import Library, LibraryGemmTemplate
from tilescout.spaces.templates import Built
from tilescout.spaces.tiling import Tiling

OPERATORS = Library("nvidia-cutlass-operators", "operators")

_MOST_BLOCKS = 16  # of a cluster: Sm100DesignMetadata.max_cluster_size
_BARRIER_BYTES = 1024  # of shared memory
_STAGED = 4, 32  # tiles of the result that are on their way to memory, and their columns


class OperatorsTemplate(LibraryGemmTemplate):
    """The base of the two templates.

    The default is the operator that ``cutlass.operators.get_operators`` lists first; the library's own examples take
    that one. The list is no ranking: on Hopper the library ranks no operators, and on Blackwell it does so only with
    nvidia-matmul-heuristics and when asked to.
    """

    library = OPERATORS
    sources = ("build.py", "cutlass_operators_build.py")
    fast_sums = True
    first: Mapping[str, Value]  #: the first operator

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        return self._configuration(**self.first)

    def warm_up(self) -> None:
        import tilescout.spaces.libraries.cutlass_operators_build  # noqa: F401

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.libraries.cutlass_operators_build import build_gemm

        return build_gemm(Configuration.of(configuration), GemmProblem.small(signature), arch, path)


class OperatorsSm90Template(OperatorsTemplate):
    """The template of ``cutlass_operators``: ``Sm90StaticPersistentGemmOperator``."""

    name = "cutlass_operators"
    summary = "matrix products on Hopper, by the kernels that CUTLASS ships"
    archs = ("sm_90a",)
    knobs = (
        Knob("tile_m", (64, 128), "rows of the product that a block computes at a time"),
        Knob("tile_n", (64, 128, 256), "columns of the product that a block computes at a time"),
        Knob("cluster_m", (1, 2), "blocks of a cluster along the rows of the product"),
        Knob("cluster_n", (1, 2), "blocks of a cluster along its columns"),
        Knob("swizzle", (1, 2, 4, 8), "width, in clusters, of the bands in which tiles are walked"),
        Knob("raster", ("m", "n"), "direction in which a band is walked"),
    )
    constraints = ()
    first: Mapping[str, Value] = {
        "tile_m": 64, "tile_n": 64, "cluster_m": 1, "cluster_n": 1, "swizzle": 1, "raster": "m",
    }  # fmt: skip

    def tiling(self, columns: Columns, problem: GemmProblem) -> Tiling:
        tile_k = np.full_like(columns["tile_m"], 128 // problem.element.bytes)  # four instructions
        available = find_device("h200").shared_memory  # the same on all devices that it builds for
        return divided_sm90({**columns, "tile_k": tile_k}, problem, available)


def divided_sm90(columns: Columns, problem: GemmProblem, shared_memory: int) -> Tiling:
    """How ``Sm90StaticPersistentGemmOperator`` divides a product: its stages and warp groups were read in version 0.3.

    Parameters
    ----------
    columns
        The knobs, and the depth of a stage as ``tile_k``, each of shape [configurations].
    problem
        The product.
    shared_memory
        Bytes of shared memory that a block may have.
    """
    tile_m, tile_n, tile_k = columns["tile_m"], columns["tile_n"], columns["tile_k"]
    groups = np.where((tile_m > 64) & (tile_n > 128), 2, 1)
    tiles, width = _STAGED
    staging = tiles * np.where(groups == 2, 128, 64) * width * problem.result.bytes
    stage = (tile_m + tile_n) * tile_k * problem.element.bytes
    stages = np.maximum((shared_memory - _BARRIER_BYTES - staging) // stage, 1)
    return Tiling(
        product=problem,
        rows=tile_m,
        columns=tile_n,
        depth=tile_k,
        cluster_m=columns["cluster_m"],
        cluster_n=columns["cluster_n"],
        split_k=np.ones_like(tile_m),
        stages=stages,
        swizzle=columns["swizzle"],
        along_m=np.asarray(columns["raster"] == "m"),
        warp_groups=groups,
        ping_pong=np.zeros(len(tile_m), dtype=np.bool_),
        mma_columns=tile_n,
        accumulators=tile_m * tile_n // (128 * groups),
        shared_memory=_BARRIER_BYTES + staging + stages * stage,
        early_launch=np.zeros(len(tile_m), dtype=np.bool_),
    )


def _blocks_fit_the_instruction(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    two = columns["mma_blocks"] == 2
    return np.asarray(np.where(two, columns["tile_m"] >= 128, columns["tile_m"] <= 128))


def _pairs_fill_the_cluster(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray((columns["mma_blocks"] == 1) | (columns["cluster_m"] % 2 == 0))


def _cluster_is_small(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray(columns["cluster_m"] * columns["cluster_n"] <= _MOST_BLOCKS)


class OperatorsSm100Template(OperatorsTemplate):
    """The template of ``cutlass_operators_sm100``: ``PersistentDenseGemmOperator``."""

    name = "cutlass_operators_sm100"
    summary = "matrix products on sm_100, by the kernels that CUTLASS ships"
    archs = ("sm_100a",)
    knobs = (
        Knob("mma_blocks", (1, 2), "blocks that share a matrix instruction, and its tile"),
        Knob("tile_m", (64, 128, 256), "rows of the product that they compute at a time"),
        Knob("tile_n", (32, 64, 128, 256), "columns of the product that they compute at a time"),
        Knob("cluster_m", (1, 2, 4, 8, 16), "blocks of a cluster along the rows of the product"),
        Knob("cluster_n", (1, 2, 4, 8, 16), "blocks of a cluster along its columns"),
        Knob("scheduler", ("dynamic", "static"), "whether blocks ask the hardware for their next tile"),
    )
    constraints = (
        Constraint(
            "instruction",
            "one block's matrix instruction has 64 or 128 rows, that of two 128 or 256",
            ("mma_blocks", "tile_m"),
            _blocks_fit_the_instruction,
        ),
        Constraint(
            "pairs",
            "two blocks that share an instruction lie side by side along m: cluster_m is even",
            ("mma_blocks", "cluster_m"),
            _pairs_fill_the_cluster,
        ),
        Constraint(
            "cluster", f"a cluster has at most {_MOST_BLOCKS} blocks", ("cluster_m", "cluster_n"), _cluster_is_small
        ),
    )
    first: Mapping[str, Value] = {
        "mma_blocks": 2, "tile_m": 128, "tile_n": 32, "cluster_m": 2, "cluster_n": 1, "scheduler": "dynamic",
    }  # fmt: skip


SM90, SM100 = OperatorsSm90Template(), OperatorsSm100Template()
