"""Matrix products of Dao-AILab/quack (package quack-kernels) as search spaces: Hopper, Blackwell, Blackwell GeForce.

The knobs are those arguments of ``quack.gemm.gemm`` of which each value needs a kernel of its own. The rules are those
of the kernels' constructors (``quack/gemm_sm90.py``) and, on Blackwell, the shapes that Quack's autotuner lists
(``quack/gemm_config.py``). One of Quack's three ways to split k is left out: its sums depend on which block comes
first, so that two runs differ in their last bits. Dynamic scheduling on Hopper is left out too, as Quack itself has it
off there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.libraries.quack_split import WORD, block_rows, scratch_bytes
from tilescout.spaces.libraries.template import Library, LibraryGemmTemplate
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import Built
from tilescout.spaces.tiling import Tiling, ceil_div, computed_extents

QUACK = Library("quack-kernels", "quack")

SCHEDULE = Knob("schedule", ("cooperative", "pingpong"), "whether the warp groups share a tile or take tiles in turn")
SWAP_AB = Knob("swap_ab", (0, 1), "whether D.T = B @ A.T is computed: tile_m then runs along n, and tile_n along m")
SPLIT_K = Knob("split_k", (1, 2, 4, 8, 16), "blocks that share a tile, each with a part of k")
SPLIT_MODE = Knob(
    "split_mode",
    ("serial", "separate"),
    "who adds up their sums, in a fixed order: the blocks themselves, one after the other, or another kernel",
)
TILE_N = Knob("tile_n", tuple(range(16, 257, 16)), "columns of the product that a block computes at a time")
TILE_K = Knob("tile_k", (32, 64, 128), "elements along k in one stage of the ring")
SWIZZLE = Knob("swizzle", (1, 2, 4, 8, 16), "width, in clusters, of the bands in which tiles are walked, at most")
RASTER = Knob("raster", ("auto", "m", "n"), "direction in which a band is walked; auto: Quack decides at the launch")
DYNAMIC = Knob("dynamic", (0, 1), "whether blocks ask the hardware for their next tile (cluster launch control)")

_MOST_ACCUMULATORS = 208  # a thread, with which Quack's own list ends (256x208 by two warp groups)
_MOST_BLOCKS = 4  # of a cluster, by the docstring of Quack's GemmSm90
_BARRIER_BYTES = 1024
_SHARES = 4  # a multiprocessor, to which Quack's autotuner splits tiles
_STEP = 64  # elements along k in a stage, where it is no knob
_LEAST_STAGES = 2  # of a share, likewise


def _tiles(columns: Columns, problem: GemmProblem, arch: str) -> tuple[Any, Any]:
    """Tiles along the rows and the columns of the product, as blocks compute them."""
    tile = block_rows(columns, arch), columns["tile_n"]
    along_m, along_n = (
        ceil_div(extent, size) for extent, size in zip(computed_extents(columns, problem), tile, strict=True)
    )
    return along_m, along_n


def _auto_along_m(columns: Columns, problem: GemmProblem, arch: str) -> Any:
    """Whether Quack would walk bands along m (``get_raster_order_from_option`` in ``quack/tile_scheduler.py``)."""
    one = np.ones(1, dtype=np.int64)
    bands = []
    for tiles, axis in zip(_tiles(columns, problem, arch), "mn", strict=True):
        clusters = ceil_div(tiles, columns.get(f"cluster_{axis}", one))
        bands.append(ceil_div(clusters, columns["swizzle"]))
    return bands[1] > bands[0]


def _raster_is_another(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    chosen = np.where(_auto_along_m(columns, problem, device.arch), "m", "n")
    return np.asarray((columns["raster"] == "auto") | (columns["raster"] != chosen))


def _raster_rule(*shape: str) -> Constraint[GemmProblem]:
    return Constraint(
        "raster", "auto walks tiles in that direction already", ("swap_ab", *shape, "swizzle", "raster"),
        _raster_is_another,
    )  # fmt: skip


def _is_split_as_quack_would(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    along_m, along_n = _tiles(columns, problem, device.arch)
    tiles, parts = along_m * along_n * problem.batch, columns["split_k"]
    steps = ceil_div(problem.k, columns.get("tile_k", np.full(1, _STEP)))
    starved = (tiles < device.sms) & (tiles * parts <= _SHARES * device.sms)
    return np.asarray((parts == 1) | (starved & (_LEAST_STAGES * parts <= steps)))


def _split_rules(*shape: str) -> tuple[Constraint[GemmProblem], ...]:
    return (
        Constraint(
            "split",
            "k is split where Quack's autotuner would: with fewer tiles than multiprocessors, to at most "
            f"{_SHARES} shares a multiprocessor of at least {_LEAST_STAGES} stages",
            ("swap_ab", *shape, "split_k"),
            _is_split_as_quack_would,
        ),
        Constraint(
            "split_mode",
            "nothing is to be added up where one block computes a tile",
            ("split_k", "split_mode"),
            lambda columns, problem, device: (columns["split_k"] > 1) | (columns["split_mode"] == "serial"),
        ),
    )


# Hopper


def warp_groups(tile_m: Any, tile_n: Any, pingpong: Any) -> Any:
    """Warp groups that compute a tile together: each holds 64 rows, or each of two holds half of the columns."""
    together = np.where(tile_m == 64, 1, np.where((tile_m == 192) & (tile_n <= 128), 3, 2))
    return np.where(pingpong, 1, together)


def accumulators(columns: Columns) -> Any:
    """Fp32 accumulators a thread. Of 8-bit products Quack holds the sums twice, to promote them, and they spill."""
    groups = warp_groups(columns["tile_m"], columns["tile_n"], columns["schedule"] == "pingpong")
    return columns["tile_m"] * columns["tile_n"] // (128 * groups)


def stages(columns: Columns, problem: Problem, shared_memory: int) -> Any:
    """Stages of the ring that fit beside the epilogue's tiles, as ``GemmSm90._compute_stages`` counts them."""
    tile_m, tile_n, pingpong = columns["tile_m"], columns["tile_n"], columns["schedule"] == "pingpong"
    tall = ~pingpong & ((tile_m % 128 == 0) | ((tile_m == 192) & (tile_n <= 128)))
    rows = np.where(tall, np.where(tile_m == 192, 192, 128), 64)
    wide = np.gcd(tile_n, 32)
    held = np.minimum(tile_m * tile_n // (rows * wide), np.where(wide <= 16, 4, 2))
    # What is added up by another kernel leaves this one in fp32.
    epilogue = rows * wide * held * np.where(columns["split_mode"] == "separate", WORD, problem.result.bytes)
    stage = (tile_m + tile_n) * columns["tile_k"] * problem.element.bytes
    return (shared_memory - _BARRIER_BYTES - epilogue) // stage


def _tile_is_computable(columns: Columns, problem: Problem, device: Device) -> Mask:
    tile_m, tile_n = columns["tile_m"], columns["tile_n"]
    widest = np.where(tile_m == 64, 256, np.where(tile_m == 128, 208, 128))
    turns = (tile_m <= 192) & (tile_n <= widest)
    together = ~np.isin(tile_m, (192, 320)) | ((tile_n % 32 == 0) & (tile_n <= np.where(tile_m == 192, 256, 160)))
    return np.where(columns["schedule"] == "pingpong", turns, together)


def _registers_suffice(columns: Columns, problem: Problem, device: Device) -> Mask:
    return np.asarray(accumulators(columns) <= _MOST_ACCUMULATORS)


def _ring_fits(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray(stages(columns, problem, device.shared_memory) >= 2)


def _cluster_is_small(columns: Columns, problem: Problem, device: Device) -> Mask:
    return np.asarray(columns["cluster_m"] * columns["cluster_n"] <= _MOST_BLOCKS)


TILE: Constraint[Problem] = Constraint(
    "tile",
    "the warp groups can't divide it: in turns tile_m is at most 192, and tile_n at most 256, 208 and 128 with "
    "tile_m 64, 128 and 192; together tile_n is a multiple of 32 with 192 and 320, and at most 160 with 320",
    ("schedule", "tile_m", "tile_n"),
    _tile_is_computable,
)
REGISTERS: Constraint[Problem] = Constraint(
    "registers",
    f"a thread would hold more than {_MOST_ACCUMULATORS} fp32 accumulators",
    ("schedule", "tile_m", "tile_n"),
    _registers_suffice,
)
CLUSTER: Constraint[Problem] = Constraint(
    "cluster",
    f"Quack's kernel takes clusters of at most {_MOST_BLOCKS} blocks",
    ("cluster_m", "cluster_n"),
    _cluster_is_small,
)


class QuackTemplate(LibraryGemmTemplate):
    """The base of the three templates."""

    library = QUACK
    sources = ("build.py", "quack_build.py", "quack_split.py")

    def warm_up(self) -> None:
        import tilescout.spaces.libraries.quack_build  # noqa: F401

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.libraries.quack_build import build_gemm

        return build_gemm(Configuration.of(configuration), GemmProblem.small(signature), arch, path)

    def scratch_bytes(self, configuration: Mapping[str, Value], problem: GemmProblem) -> int:
        return scratch_bytes(configuration, problem, self.archs[0])


class QuackSm90Template(QuackTemplate):
    """The template of ``quack_sm90``: ``GemmSm90``, persistent with a static schedule, as Quack runs it on Hopper."""

    name = "quack_sm90"
    summary = "matrix products on Hopper, by Quack's kernel"
    archs = ("sm_90a",)
    knobs = (
        SCHEDULE,
        SWAP_AB,
        Knob("tile_m", (64, 128, 192, 256, 320), "rows of the product that a block computes at a time"),
        TILE_N,
        TILE_K,
        Knob("cluster_m", (1, 2, 4), "blocks of a cluster along the rows of the product"),
        Knob("cluster_n", (1, 2, 4), "blocks of a cluster along its columns"),
        SPLIT_K,
        SPLIT_MODE,
        SWIZZLE,
        RASTER,
    )
    constraints = (
        TILE,
        REGISTERS,
        Constraint(
            "shared_memory",
            "fewer than two stages of the ring fit the shared memory of a block beside the epilogue's tiles",
            ("schedule", "tile_m", "tile_n", "tile_k", "split_mode"),
            _ring_fits,
        ),
        CLUSTER,
        *_split_rules("tile_m", "tile_n", "tile_k"),
        _raster_rule("tile_m", "tile_n", "cluster_m", "cluster_n"),
    )

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        """The answer of ``quack.gemm_config.default_config`` for Hopper, which is the same for every problem."""
        return self._configuration(
            schedule="pingpong",
            swap_ab=0,
            tile_m=128,
            tile_n=192,
            tile_k=64 if problem.element.bytes == 2 else 128,  # four instructions
            cluster_m=2,
            cluster_n=1,
            split_k=1,
            split_mode="serial",
            swizzle=8,
            raster="auto",
        )

    def tiling(self, columns: Columns, problem: GemmProblem) -> Tiling:
        tile_m, tile_n, pingpong = columns["tile_m"], columns["tile_n"], columns["schedule"] == "pingpong"
        swap = columns["swap_ab"] == 1
        raster, auto = columns["raster"], _auto_along_m(columns, problem, self.archs[0])
        along_m = np.where(raster == "auto", auto, raster == "m")
        available = find_device("h200").shared_memory  # the same on all devices that it builds for
        ring = stages(columns, problem, available)
        return Tiling(
            product=problem,
            rows=np.where(swap, tile_n, tile_m),
            columns=np.where(swap, tile_m, tile_n),
            depth=columns["tile_k"],
            cluster_m=np.where(swap, columns["cluster_n"], columns["cluster_m"]),
            cluster_n=np.where(swap, columns["cluster_m"], columns["cluster_n"]),
            split_k=columns["split_k"],
            stages=ring,
            swizzle=columns["swizzle"],
            along_m=np.asarray(along_m != swap),
            warp_groups=np.where(pingpong, 2, warp_groups(tile_m, tile_n, pingpong)),
            ping_pong=np.asarray(pingpong),
            mma_columns=tile_n,
            accumulators=accumulators(columns) * (2 if problem.element.bytes == 1 else 1),
            shared_memory=np.full_like(tile_m, available),  # what the ring leaves is given to the epilogue
            early_launch=np.ones(len(tile_m), dtype=np.bool_),
            swapped=np.asarray(swap),
            split_in_cluster=False,
        )


# Blackwell. Its tiles are those of two blocks where a cluster has two along m.


def _is_listed_sm100(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tile_m, tile_n, cluster_m, cluster_n = (columns[name] for name in ("tile_m", "tile_n", "cluster_m", "cluster_n"))
    wide = (tile_n < 512) | ((tile_m == 256) & (cluster_n == 1))
    return np.asarray(((tile_m == 128) | (cluster_m == 2)) & wide)


class QuackSm100Template(QuackTemplate):
    """The template of ``quack_sm100``: ``GemmSm100``, persistent."""

    name = "quack_sm100"
    summary = "matrix products on sm_100, by Quack's kernel"
    archs = ("sm_100a",)
    knobs = (
        SWAP_AB,
        Knob("tile_m", (128, 256), "rows of the product that a block, or two, compute at a time"),
        Knob("tile_n", (16, 32, 64, 128, 160, 192, 224, 256, 512), "columns that it computes at a time"),
        Knob("cluster_m", (1, 2), "blocks of a cluster along the rows of the product; two share a tile"),
        Knob("cluster_n", (1, 2), "blocks of a cluster along its columns"),
        DYNAMIC,
        SPLIT_K,
        SPLIT_MODE,
        SWIZZLE,
        RASTER,
    )
    constraints = (
        Constraint(
            "listed",
            "Quack lists tile_m 256 with cluster_m 2 only, and tile_n 512 with 256 rows and cluster_n 1 only",
            ("tile_m", "tile_n", "cluster_m", "cluster_n"),
            _is_listed_sm100,
        ),
        *_split_rules("tile_m", "tile_n", "cluster_m"),
        _raster_rule("tile_m", "tile_n", "cluster_m", "cluster_n"),
    )

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        """The answer of ``quack.gemm_config.default_config`` for Blackwell, the same for every problem."""
        return self._configuration(
            swap_ab=0,
            tile_m=256,
            tile_n=256,
            cluster_m=2,
            cluster_n=1,
            dynamic=1,
            split_k=1,
            split_mode="serial",
            swizzle=8,
            raster="auto",
        )


def _is_listed_sm120(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tile_m, tile_n = columns["tile_m"], columns["tile_n"]
    small = (tile_m == 128) | (tile_n == 128)
    return np.asarray(small & ((tile_n < 192) | (columns["schedule"] == "cooperative")))


class QuackSm120Template(QuackTemplate):
    """The template of ``quack_sm120``: ``GemmSm120``, persistent, for GPUs without tensor memory and clusters."""

    name = "quack_sm120"
    summary = "matrix products on sm_120, by Quack's kernel"
    archs = ("sm_120a",)
    knobs = (
        SCHEDULE,
        SWAP_AB,
        Knob("tile_m", (64, 128), "rows of the product that a block computes at a time"),
        Knob("tile_n", (64, 128, 160, 192), "columns of the product that a block computes at a time"),
        DYNAMIC,
        SPLIT_K,
        SPLIT_MODE,
        SWIZZLE,
        RASTER,
    )
    constraints = (
        Constraint(
            "listed",
            "Quack lists tile_m 64 with tile_n 128 only, and tile_n 192 for cooperative only",
            ("schedule", "tile_m", "tile_n"),
            _is_listed_sm120,
        ),
        *_split_rules("tile_m", "tile_n"),
        _raster_rule("tile_m", "tile_n"),
    )

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        """The answer of ``quack.gemm_config.default_config`` for these GPUs, the same for every problem."""
        return self._configuration(
            schedule="pingpong",
            swap_ab=0,
            tile_m=128,
            tile_n=128,
            dynamic=1,
            split_k=1,
            split_mode="serial",
            swizzle=8,
            raster="auto",
        )


SM90, SM100, SM120 = QuackSm90Template(), QuackSm100Template(), QuackSm120Template()
