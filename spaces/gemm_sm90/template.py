"""The search space of the Hopper GEMM: its knobs, its rules with their reasons, and its defaults."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm_sm90.layout import MAX_ACCUMULATORS, MMA_ROWS, GemmShape, accumulators, shared_memory
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import Built, KernelTemplate
from tilescout.spaces.tiling import Tiling, column_or

KNOBS = (
    Knob("tile_m", (64, 128, 192, 256), "rows of D that a block computes at a time"),
    Knob("tile_n", tuple(range(32, 257, 32)), "columns of D that a block computes at a time"),
    Knob("tile_k", (32, 64, 128), "elements along k in one stage of the ring"),
    Knob("cluster_m", (1, 2, 4), "blocks of a cluster along m; they share loads of B"),
    Knob("cluster_n", (1, 2, 4), "blocks of a cluster along n; they share loads of A"),
    Knob("stages", tuple(range(2, 9)), "stages of the ring between producer and consumers"),
    Knob("swizzle", (1, 2, 4, 8), "width, in clusters, of the bands in which tiles are walked"),
    Knob("raster", ("m", "n"), "direction in which a band is walked"),
    Knob("warp_groups", (1, 2, 3, 4), "consumer warp groups, stacked along m"),
)


def _rows_divide(columns: Columns, problem: Problem, device: Device) -> Mask:
    return np.asarray(columns["tile_m"] % (MMA_ROWS * columns["warp_groups"]) == 0)


def _registers_suffice(columns: Columns, problem: Problem, device: Device) -> Mask:
    held = accumulators(columns["tile_m"], columns["tile_n"], columns["warp_groups"])
    return np.asarray(held <= np.array(MAX_ACCUMULATORS)[columns["warp_groups"]])


def _shared_memory_suffices(columns: Columns, problem: Problem, device: Device) -> Mask:
    needed = shared_memory(
        columns["tile_m"], columns["tile_n"], columns["tile_k"], columns["stages"], columns["warp_groups"],
        problem.element.bytes,
    )  # fmt: skip
    return np.asarray(needed <= device.shared_memory)


def _cluster_is_portable(columns: Columns, problem: Problem, device: Device) -> Mask:
    return np.asarray(columns["cluster_m"] * columns["cluster_n"] <= 8)


CONSTRAINTS = (
    Constraint(
        "rows", "each warp group computes whole 64-row WGMMA tiles: tile_m % (64 * warp_groups) == 0", _rows_divide
    ),
    Constraint(
        "registers",
        "a consumer thread holds tile_m * tile_n / (128 * warp_groups) fp32 accumulators, at most "
        + ", ".join(f"{limit} with {groups}" for groups, limit in enumerate(MAX_ACCUMULATORS) if groups)
        + " warp groups; beyond, it spills or does not compile",
        _registers_suffice,
    ),
    Constraint(
        "shared_memory",
        "the ring, the epilogue's tiles and the barriers must fit the shared memory of a block",
        _shared_memory_suffices,
    ),
    Constraint(
        "cluster", "clusters of more than 8 blocks are not portable: cluster_m * cluster_n <= 8", _cluster_is_portable
    ),
)


def _like(*values: Value) -> Configuration:
    return Configuration(tuple((knob.name, value) for knob, value in zip(KNOBS, values, strict=True)))


# What is run without a search, one a class of problems: the first whose tiles occupy the GPU, the largest tile first
# because it loads least for each product. Recorded on an H200 as torch.mm's time / its own (gemm_sm90-h200-bf16):
DEFAULTS = (
    _like(128, 256, 64, 2, 1, 4, 8, "n", 2),  # 8192^3 1.02, 4096^3 1.01, 2048^3 0.98, 8192x1024x8192 0.99
    _like(128, 192, 64, 1, 1, 4, 4, "m", 2),  # 2048x1536x7168 1.00, where the one above gets 0.79
    _like(128, 128, 64, 1, 1, 6, 1, "m", 2),  # 128x14336x4096 0.98, against 0.75
    _like(64, 128, 128, 1, 1, 4, 1, "m", 1),  # 1024^3 0.97, against 0.44; 256x4096x14336 0.64, against 0.32
    _like(64, 64, 128, 1, 1, 6, 1, "m", 1),  # 512^3 1.08, 64x8192x8192 0.99, 16x4096x4096 0.69: whatever is smaller
)
_OCCUPIED = 0.8  # of the SMs; 128x14336x4096 has 112 tiles of 128x128 for 132 SMs and is best with them


class GemmSm90Template(KernelTemplate):
    """The template of ``gemm_sm90``."""

    name = "gemm_sm90"
    package = "tilescout.spaces.gemm_sm90"
    sources = ("build.py", "kernel.py", "layout.py", "scheduler.py")
    workload = "gemm"
    archs = ("sm_90a",)
    knobs = KNOBS
    constraints = CONSTRAINTS

    def check(self, problem: Problem) -> None:
        for name in ("n", "k"):
            if getattr(problem, name) % 8:
                raise ProblemError(
                    f"{self.name}: {name} = {getattr(problem, name)} is not a multiple of 8; "
                    "TMA moves rows whose length is a multiple of 16 bytes"
                )

    def default(self, problem: Problem, device: Device) -> Configuration:
        for configuration in DEFAULTS:
            rows, columns = int(configuration["tile_m"]), int(configuration["tile_n"])
            tiles = problem.batch * math.ceil(problem.m / rows) * math.ceil(problem.n / columns)
            wasted_rows = problem.m <= rows // 2
            if tiles >= _OCCUPIED * device.sms and not wasted_rows:
                return configuration
        return DEFAULTS[-1]

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        return int(configuration["cluster_m"]) * int(configuration["cluster_n"])

    def tiling(self, columns: Columns, problem: Problem) -> Tiling:
        tile_m, tile_n, groups = columns["tile_m"], columns["tile_n"], columns["warp_groups"]
        swap, ping_pong = column_or(columns, "swap_ab", 0) == 1, column_or(columns, "schedule", "") == "pingpong"
        sharing = np.where(ping_pong, 1, groups)  # groups that hold one tile's accumulators
        return Tiling(
            rows=np.where(swap, tile_n, tile_m),
            columns=np.where(swap, tile_m, tile_n),
            depth=columns["tile_k"],
            cluster_m=np.where(swap, columns["cluster_n"], columns["cluster_m"]),
            cluster_n=np.where(swap, columns["cluster_m"], columns["cluster_n"]),
            split_k=column_or(columns, "split_k", 1),
            stages=columns["stages"],
            swizzle=columns["swizzle"],
            along_m=np.asarray((columns["raster"] == "m") != swap),
            warp_groups=groups,
            ping_pong=np.asarray(ping_pong),
            mma_columns=tile_n,
            accumulators=accumulators(tile_m, tile_n, sharing),
            shared_memory=shared_memory(
                tile_m, tile_n, columns["tile_k"], columns["stages"], groups, problem.element.bytes
            ),
            early_launch=np.asarray(column_or(columns, "pdl", 0) == 1),
        )

    def build(self, configuration: Mapping[str, Value], dtype: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.gemm_sm90.build import build_object

        return build_object(shape_of(configuration), dtype, path)


def shape_of(configuration: Mapping[str, Value]) -> GemmShape:
    """The kernel's compile-time parameters of a configuration."""
    values = {name: int(configuration[name]) for name in configuration if name != "raster"}
    return GemmShape(**values, raster_along_m=configuration["raster"] == "m")


TEMPLATE = GemmSm90Template()
