"""The search space of the Hopper GEMM: its knobs, its rules with their reasons, and its defaults."""

import math
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.defaults import Defaults, shipped_defaults
from tilescout.spaces.gemm_sm90.layout import (
    MAX_ACCUMULATORS,
    GemmShape,
    held,
    shared_memory,
    steps,
)
from tilescout.spaces.gemm_sm90.ranking import features
from tilescout.spaces.gemm_sm90.rules import ALIGNED, ROWS, TURNS, check_alignment, sharing_groups
from tilescout.spaces.gemm_sm90.unmeasured import MARGIN, UNSURE_US, unmeasured
from tilescout.spaces.knobs import Configuration, Knob, Value, configurations_of
from tilescout.spaces.oblivious import ObliviousTrees
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.stocked import stocked
from tilescout.spaces.templates import Built, KernelTemplate, Unmeasured
from tilescout.spaces.tiling import Tiling, ceil_div, computed_extents

KNOBS = (
    Knob("schedule", ("cooperative", "pingpong"), "whether the warp groups share a tile or take tiles in turn"),
    Knob("warp_groups", (1, 2, 3, 4), "consumer warp groups"),
    Knob("swap_ab", (0, 1), "whether D.T = B @ A.T is computed: tile_m then runs along n, and tile_n along m"),
    Knob("tile_m", (64, 128, 192, 256), "rows of the product that a block computes at a time"),
    Knob("tile_n", tuple(range(16, 257, 16)), "columns of the product that a block computes at a time"),
    Knob("tile_k", (32, 64, 128), "elements along k in one stage of the ring"),
    Knob("split_k", (1, 2, 4, 8), "blocks of a cluster that split a product along k"),
    Knob("cluster_m", (1, 2, 4), "blocks of a cluster along the rows of the product; they share loads of its columns"),
    Knob("cluster_n", (1, 2, 4), "blocks of a cluster along its columns; they share loads of its rows"),
    Knob("stages", tuple(range(2, 9)), "buffers of the ring between the warp group that loads and those that multiply"),
    Knob("swizzle", (1, 2, 4, 8), "width, in clusters, of the bands in which tiles are walked"),
    Knob("raster", ("m", "n"), "direction in which a band is walked"),
)


def _registers_suffice(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    needed = held(columns["tile_m"], columns["tile_n"], sharing_groups(columns), problem.element.bytes)
    most = np.array(MAX_ACCUMULATORS)[columns["warp_groups"]]
    sends = (columns["split_k"] > 1) & (columns["warp_groups"] == 1)
    promotes = (columns["schedule"] == "pingpong") & (problem.element.bytes == 1)
    most = np.where(sends, np.minimum(most, _MOST_SENDING), np.where(promotes, np.minimum(most, MOST_PROMOTING), most))
    return np.asarray(needed <= most)


# These kernels need registers for other things too, so that fewer are left for the sums. On sm_90a two were seen to
# spill: one warp group that sends 160 accumulators to other blocks (256x80: 80 bytes of stack), and pingpong with 192
# accumulators in fp8 (192x96: 112 bytes).
_MOST_SENDING = 144
MOST_PROMOTING = 176


def _tiles_are_filled(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    rows, columns_ = computed_extents(columns, problem)
    smallest_m, smallest_n = (min(knob.values) for knob in KNOBS if knob.name in ("tile_m", "tile_n"))
    fits_m = (columns["tile_m"] < 2 * rows) | (columns["tile_m"] == smallest_m)
    return np.asarray(fits_m & ((columns["tile_n"] < 2 * columns_) | (columns["tile_n"] == smallest_n)))


def _clusters_are_filled(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tiles_m, tiles_n = _tiles(columns, problem)
    return np.asarray((columns["cluster_m"] < 2 * tiles_m) & (columns["cluster_n"] < 2 * tiles_n))


def _shared_memory_suffices(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    needed = shared_memory(
        columns["tile_m"], columns["tile_n"], columns["tile_k"], columns["stages"], columns["warp_groups"],
        sharing_groups(columns), columns["split_k"], problem.element.bytes, problem.result.bytes,
    )  # fmt: skip
    return np.asarray(needed <= device.shared_memory)


def _cluster_is_portable(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray(columns["cluster_m"] * columns["cluster_n"] * columns["split_k"] <= 8)


def _split_fills_the_gpu(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tiles_m, tiles_n = _tiles(columns, problem)
    blocks = problem.batch * tiles_m * tiles_n * columns["split_k"]
    whole = columns["split_k"] == 1
    deep = columns["split_k"] * columns["tile_k"] * 2 <= problem.k
    turns = columns["schedule"] == "cooperative"
    return np.asarray(whole | (deep & turns & (blocks <= 2 * device.sms)))


def _tiles(columns: Columns, problem: GemmProblem) -> tuple[Any, Any]:
    """Tiles along the rows and columns of the product."""
    rows, columns_ = computed_extents(columns, problem)
    return ceil_div(rows, columns["tile_m"]), ceil_div(columns_, columns["tile_n"])


def _swap_is_of_use(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray((columns["swap_ab"] == 0) | (problem.m <= SKINNY))


def _narrow_tiles_are_of_use(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray((columns["tile_n"] >= 32) | (columns["swap_ab"] == 1) | (problem.n <= SKINNY))


_REMEMBERED = 65_536  # problems whose default is remembered
# With more rows of D, both orders of the operands fill the 64 rows of a tensor core instruction. Tiles of swapped ones
# still follow m in finer steps, which `gemm_streamk_sm90` has. Here the limit stays: tables, sweeps and the portfolio's
# trees were made with it, and would hold legal kernels that nobody has measured.
SKINNY = 128

CONSTRAINTS = (
    TURNS,
    Constraint(
        "swap",
        f"swapping the operands fills the tensor cores' rows where m is at most {SKINNY}; above, both orders do",
        ("swap_ab",),
        _swap_is_of_use,
    ),
    ROWS,
    Constraint(
        "narrow",
        f"tiles of 16 columns are for swapped operands, or n of at most {SKINNY}",
        ("swap_ab", "tile_n"),
        _narrow_tiles_are_of_use,
    ),
    Constraint(
        "registers",
        "a consumer thread holds tile_m * tile_n / (128 * the warp groups that share the tile) fp32 accumulators, and "
        "of 8-bit products 64 rows twice: at most "
        + ", ".join(f"{limit} with {groups}" for groups, limit in enumerate(MAX_ACCUMULATORS) if groups)
        + f" warp groups a block ({_MOST_SENDING} for one that splits k, {MOST_PROMOTING} for pingpong in fp8); "
        "beyond, it spills or does not compile",
        ("schedule", "warp_groups", "tile_m", "tile_n", "split_k"),
        _registers_suffice,
    ),
    ALIGNED,
    Constraint(
        "filled",
        "half of a tile or more would lie outside of D: tile_m < 2 * rows and tile_n < 2 * columns, or the smallest",
        ("swap_ab", "tile_m", "tile_n"),
        _tiles_are_filled,
    ),
    Constraint(
        "split",
        "k is split to fill the GPU: at most two blocks an SM, at least two stages for each, and no turns to take",
        ("schedule", "swap_ab", "tile_m", "tile_n", "tile_k", "split_k"),
        _split_fills_the_gpu,
    ),
    Constraint(
        "cluster",
        "clusters of more than 8 blocks are not portable: cluster_m * cluster_n * split_k <= 8",
        ("split_k", "cluster_m", "cluster_n"),
        _cluster_is_portable,
    ),
    Constraint(
        "idle",
        "half of a cluster's blocks or more would have no tile: cluster_m < 2 * tiles along the rows, cluster_n too",
        ("swap_ab", "tile_m", "tile_n", "cluster_m", "cluster_n"),
        _clusters_are_filled,
    ),
    Constraint(
        "shared_memory",
        "the ring, the epilogue's tiles, the exchange and the barriers must fit the shared memory of a block",
        ("schedule", "warp_groups", "tile_m", "tile_n", "tile_k", "split_k", "stages"),
        _shared_memory_suffices,
    ),
)  # fmt: skip


def _like(
    tile: tuple[int, int, int], cluster: tuple[int, int, int], stages: int, warp_groups: int, **others: Value
) -> Configuration:
    values: dict[str, Value] = dict(zip(("tile_m", "tile_n", "tile_k"), tile, strict=True))
    values |= dict(zip(("cluster_m", "cluster_n", "split_k"), cluster, strict=True))
    values |= {"stages": stages, "warp_groups": warp_groups, **others}
    return Configuration(tuple((knob.name, values.get(knob.name, knob.values[0])) for knob in KNOBS))


# Of these one is legal for every problem: 16 columns where n is at most 128, and 32 beyond. They join every portfolio.
ALWAYS = tuple(_like((64, tile_n, 128), (1, 1, 1), 8, 1) for tile_n in (16, 32))


class GemmSm90Template(KernelTemplate[GemmProblem]):
    """The template of ``gemm_sm90``."""

    name = "gemm_sm90"
    summary = "matrix products on Hopper, by our kernel"
    package = "tilescout.spaces.gemm_sm90"
    sources = ("build.py", "epilogue.py", "exchange.py", "kernel.py", "layout.py", "mainloop.py", "scheduler.py")
    workload = "tilescout.spaces.gemm:Gemm"
    archs = ("sm_90a",)
    knobs = KNOBS
    constraints = CONSTRAINTS
    complement = "gemm_streamk_sm90"
    margin = f"{MARGIN:.0%} and {UNSURE_US:g} µs besides"

    def check(self, problem: GemmProblem) -> None:
        check_alignment(self.name, problem, steps(problem))

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        return _default(problem, device)

    def default_or_library(self, problem: GemmProblem, device: Device) -> Unmeasured | None:
        """The kernel to run where nothing may be measured, of this space or its complement; None for the library."""
        return unmeasured(problem, device)

    def portfolio(self, problem: GemmProblem, device: Device) -> Sequence[Configuration]:
        columns = _candidates(problem.element.bytes, problem.result.bytes, device)
        return configurations_of(KNOBS, columns)

    def stock(self, problem: GemmProblem, device: Device) -> Sequence[Configuration]:
        """Those that defaults are taken from, and what was chosen beside them together with the other space's.

        A search begins with the default. For the types that kernels were chosen for, the second list holds the first.
        """
        chosen = stocked(Path(__file__).parent, problem.element.bytes)
        return tuple(dict.fromkeys((*self.portfolio(problem, device), *chosen)))

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        return math.prod(int(configuration[name]) for name in ("cluster_m", "cluster_n", "split_k"))

    def like(self, space: SearchSpace[GemmProblem], other: Tiling) -> Sequence[int]:
        """Return what the shipped trees expect to be the fastest with its tile, its split and its cluster, if any."""
        mine = self.tiling(space.columns, space.problem)
        parts = ("rows", "columns", "split_k", "cluster_m", "cluster_n")
        same = np.flatnonzero(np.logical_and.reduce([getattr(mine, part) == getattr(other, part) for part in parts]))
        if not len(same):
            return ()
        columns = {name: column[same] for name, column in space.columns.items()}
        return (int(same[expected_logs(columns, space.problem, space.device).argmin()]),)

    def tiling(self, columns: Columns, problem: GemmProblem) -> Tiling:
        tile_m, tile_n, groups = columns["tile_m"], columns["tile_n"], columns["warp_groups"]
        swap, sharing, split_k = columns["swap_ab"] == 1, sharing_groups(columns), columns["split_k"]
        return Tiling(
            product=problem,
            rows=np.where(swap, tile_n, tile_m),
            columns=np.where(swap, tile_m, tile_n),
            depth=columns["tile_k"],
            cluster_m=np.where(swap, columns["cluster_n"], columns["cluster_m"]),
            cluster_n=np.where(swap, columns["cluster_m"], columns["cluster_n"]),
            split_k=split_k,
            stages=columns["stages"],
            swizzle=columns["swizzle"],
            along_m=np.asarray((columns["raster"] == "m") != swap),
            warp_groups=groups,
            ping_pong=np.asarray(columns["schedule"] == "pingpong"),
            mma_columns=tile_n,
            accumulators=held(tile_m, tile_n, sharing, problem.element.bytes),
            shared_memory=shared_memory(
                tile_m,
                tile_n,
                columns["tile_k"],
                columns["stages"],
                groups,
                sharing,
                split_k,
                problem.element.bytes,
                problem.result.bytes,
            ),
            early_launch=np.ones(len(tile_m), dtype=np.bool_),
            swapped=np.asarray(swap),
        )

    def warm_up(self) -> None:
        """Compile a small kernel: what is imported and set up for the first, every fork would set up for its own.

        That takes 0.4 s, and a kernel behind it 0.47 s instead of 0.59 s (2 cores, 6 kernels drawn with a fixed seed,
        2026-11-22). Whether this one compiles does not matter: whoever wants it hears of it.
        """
        super().warm_up()
        self.build_for_practice(_SMALL, GemmProblem(64, 64, 64).signature)

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.gemm_sm90.build import build_object

        return build_object(shape_of(configuration), GemmProblem.small(signature), path)


_SMALL = Configuration.of(
    {
        "schedule": "cooperative", "warp_groups": 1, "swap_ab": 0, "tile_m": 64, "tile_n": 32, "tile_k": 32,
        "split_k": 1, "cluster_m": 1, "cluster_n": 1, "stages": 2, "swizzle": 1, "raster": "m",
    }
)  # fmt: skip


@cache
def _defaults() -> Defaults:
    return shipped_defaults(KNOBS)


@cache
def _candidates(element_bytes: int, result_bytes: int, device: Device) -> Columns:
    return _defaults().columns(KNOBS, element_bytes, result_bytes, device, ALWAYS)


@lru_cache(maxsize=_REMEMBERED)
def _default(problem: GemmProblem, device: Device) -> Configuration:
    columns = _candidates(problem.element.bytes, problem.result.bytes, device)
    return fastest(columns, problem, device, _defaults().trees)


def legal(columns: Columns, problem: GemmProblem, device: Device) -> Columns:
    """The legal ones among configurations, which are given and returned as columns."""
    kept = np.logical_and.reduce([rule.holds(columns, problem, device) for rule in CONSTRAINTS])
    return {name: column[kept] for name, column in columns.items()}


def expected_logs(columns: Columns, problem: GemmProblem, device: Device) -> NDArray[np.float32]:
    """The logs that the shipped trees expect of the times of legal configurations over the best, of shape [n]."""
    return _defaults().trees.predict(features(TEMPLATE.tiling(columns, problem), device))


def fastest(columns: Columns, problem: GemmProblem, device: Device, trees: ObliviousTrees) -> Configuration:
    """The configuration that trees expect to be the fastest of the legal ones among `columns`; one must be legal."""
    left = legal(columns, problem, device)
    at = int(trees.predict(features(TEMPLATE.tiling(left, problem), device)).argmin())
    return Configuration(tuple((knob.name, left[knob.name][at].item()) for knob in KNOBS))


def shape_of(configuration: Mapping[str, Value]) -> GemmShape:
    """The kernel's compile-time parameters of a configuration."""
    flags = ("raster", "schedule", "swap_ab")
    return GemmShape(
        **{name: int(configuration[name]) for name in configuration if name not in flags},
        raster_along_m=configuration["raster"] == "m",
        pingpong=configuration["schedule"] == "pingpong",
        swap_ab=configuration["swap_ab"] == 1,
    )


TEMPLATE = GemmSm90Template()
