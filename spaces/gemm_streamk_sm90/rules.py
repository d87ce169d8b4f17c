"""The knobs of the stream-K Hopper GEMM, and its rules with their reasons."""

from dataclasses import replace
from typing import Any

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.layout import MAX_ACCUMULATORS, MMA_ROWS
from tilescout.spaces.gemm_sm90.rules import sharing_groups
from tilescout.spaces.gemm_sm90.template import CONSTRAINTS as OF_A_CLUSTER
from tilescout.spaces.gemm_sm90.template import KNOBS as KNOBS_OF_A_CLUSTER
from tilescout.spaces.gemm_sm90.template import MOST_PROMOTING
from tilescout.spaces.gemm_streamk_sm90 import layout
from tilescout.spaces.gemm_streamk_sm90.layout import MOST_AHEAD, STEP, held, shared_memory, stage_rows, workspace
from tilescout.spaces.gemm_streamk_sm90.promoting import promotion
from tilescout.spaces.hardware import clusters_at_once
from tilescout.spaces.knobs import Knob
from tilescout.spaces.tiling import ceil_div, computed_extents

# Of the knobs of gemm_sm90, the values with which one of its 24 + 48 best configurations in bf16 was seen
# (`experiments/results/best-of-gemm.md`).
_KEPT = {"warp_groups": (1, 2, 3), "tile_k": (64, 128), "tile_n": tuple(range(16, 257, STEP))}
# A third way to walk the tiles: along n, and neighbours are launched two by two, as clusters that share no loads. They
# then run on multiprocessors next to one another: at 257x21504x3072 and 433x3328x9600 1.02 and 1.06 times as fast in a
# chain, 1.04 and 1.23 in a sandwich (H200, 2026-11-23; `experiments/results/promotion.md`).
TWO_BY_TWO = "pairs"
DIRECTIONS = next(knob.values for knob in KNOBS_OF_A_CLUSTER if knob.name == "raster")
KNOBS = (
    *(
        replace(knob, values=_KEPT.get(knob.name, knob.values))
        for knob in KNOBS_OF_A_CLUSTER
        if knob.name not in ("split_k", "raster")
    ),
    Knob(
        "raster",
        (*DIRECTIONS, TWO_BY_TWO),
        "direction in which a band is walked; pairs: along n, by two blocks at a time",
    ),
    Knob(
        "split", (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32), "parts of each tile along k, each for another cluster"
    ),
    Knob("stream_k", (0, 1), "whether all clusters share the last wave of tiles evenly"),
)


def whole(columns: Columns) -> Columns:
    """The columns of ``gemm_sm90``: within a cluster, k is not split."""
    return {**columns, "split_k": np.ones(len(next(iter(columns.values()))), dtype=np.int64)}


def _of_a_cluster(rule: Constraint[GemmProblem]) -> Constraint[GemmProblem]:
    """A rule of ``gemm_sm90`` for clusters that do not split k."""

    def holds(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
        return rule.holds(whole(columns), problem, device)

    return replace(rule, knobs=tuple(name for name in rule.knobs if name != "split_k"), holds=holds)


def _work(columns: Columns, problem: GemmProblem) -> tuple[Any, Any, Any]:
    """Tiles, each of every block of a cluster, steps along k of a tile, and blocks of a cluster."""
    tiles, blocks = _units(columns, problem)
    return tiles, ceil_div(problem.k, columns["tile_k"]), blocks


def _units(columns: Columns, problem: GemmProblem) -> tuple[Any, Any]:
    """Tiles, each of every block of a cluster, and blocks of a cluster."""
    along_m, along_n = _tiles(columns, problem)
    return problem.batch * along_m * along_n, columns["cluster_m"] * columns["cluster_n"]


def _tiles(columns: Columns, problem: GemmProblem) -> tuple[Any, Any]:
    """Tiles along the rows and the columns of the product, each of every block of a cluster."""
    rows, width = computed_extents(columns, problem)
    along_m = ceil_div(rows, columns["tile_m"] * columns["cluster_m"])
    return along_m, ceil_div(width, columns["tile_n"] * columns["cluster_n"])


def promotion_of(columns: Columns, problem: GemmProblem) -> Any:
    """When each of some configurations adds 8-bit products, of shape [configurations]; see `promotion`."""
    return promotion(*_tile_of(columns), problem.element.bytes)


def _tile_of(columns: Columns) -> tuple[Any, Any, Any, Any]:
    """Rows and columns of a tile, warp groups, and whether these take turns."""
    return columns["tile_m"], columns["tile_n"], columns["warp_groups"], columns["schedule"] == "pingpong"


def _alone(columns: Columns, problem: GemmProblem) -> Any:
    """The same, had each warp group a tile for itself: as much is held beside others, and this takes less time."""
    return layout.promotion(*_tile_of(columns), problem.element.bytes)


def held_of(columns: Columns, problem: GemmProblem) -> Any:
    """Fp32 registers that a consumer thread of each configuration needs for sums and 8-bit products."""
    tile, groups = (columns["tile_m"], columns["tile_n"]), sharing_groups(columns)
    return held(*tile, groups, _alone(columns, problem), problem.element.bytes)


def _registers_suffice(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    most = np.array(MAX_ACCUMULATORS)[columns["warp_groups"]]
    many = columns["tile_m"] > 2 * MMA_ROWS * sharing_groups(columns)
    fewer = ((columns["schedule"] == "pingpong") | many) & (problem.element.bytes == 1)
    fits = held_of(columns, problem) <= np.where(fewer, np.minimum(most, MOST_PROMOTING), most)
    asked = np.isin(_alone(columns, problem), ("ahead", "halves"))  # by what they hold
    return np.asarray(fits | asked)


def _fine_columns_are_k_major(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    along_m, along_n = (major == "k" for major in problem.layout)
    k_major = np.where(columns["swap_ab"] == 1, along_m, along_n)
    return np.asarray((columns["tile_n"] % (2 * STEP) == 0) | k_major)


def _stage_is_deep(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray((columns["tile_k"] == max(_KEPT["tile_k"])) | (problem.element.bytes > 1))


def _shared_memory_suffices(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray(shared_bytes(columns, problem) <= device.shared_memory)


def shared_bytes(columns: Columns, problem: GemmProblem) -> Any:
    """Bytes of shared memory that a block of each configuration needs."""
    tile = (columns["tile_m"], columns["tile_n"], columns["tile_k"])
    return shared_memory(*tile, columns["stages"], columns["warp_groups"], problem.element.bytes, problem.result.bytes)


def _swap_is_of_use(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray((columns["swap_ab"] == 0) | (problem.m <= MOST_ROWS_SWAPPED))


def _one_way_to_share(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray((columns["split"] == 1) | (columns["stream_k"] == 0))


def _split_fills_the_gpu(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tiles, steps, blocks = _work(columns, problem)
    deep = columns["split"] * _FEWEST_STEPS <= steps
    fills = tiles * columns["split"] <= 2 * clusters_at_once(blocks, device)
    return np.asarray((columns["split"] == 1) | (deep & fills))


def _waves_are_uneven(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tiles, steps, blocks = _work(columns, problem)
    at_once = clusters_at_once(blocks, device)
    deep = tiles * steps >= _FEWEST_STEPS * at_once
    uneven = (tiles % at_once != 0) & (tiles <= _MOST_WAVES * at_once)
    return np.asarray((columns["stream_k"] == 0) | (deep & uneven))


def _turns_are_taken(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tiles, blocks = _units(columns, problem)
    several = tiles * columns["split"] > clusters_at_once(blocks, device)
    return np.asarray((columns["schedule"] == "cooperative") | several)


def _order_matters(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tiles, blocks = _units(columns, problem)
    along_m, along_n = _tiles(columns, problem)
    narrow = columns["swizzle"] < np.where(columns["raster"] == "m", along_n, along_m)
    return np.asarray((columns["swizzle"] == 1) | narrow | (tiles > clusters_at_once(blocks, device)))


def together(columns: Columns) -> Any:
    """Clusters that are launched side by side, in each configuration."""
    return np.where(columns["raster"] == TWO_BY_TWO, 2, 1)


def _pairs_share(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    tiles, blocks = _units(columns, problem)
    _, along_n = _tiles(columns, problem)
    alone = (blocks == 1) & (columns["split"] == 1) & (columns["stream_k"] == 0)
    share = (columns["swizzle"] == 1) & (along_n > 1)
    return np.asarray(
        (columns["raster"] != TWO_BY_TWO) | (alone & share & (2 * tiles > clusters_at_once(blocks, device)))
    )


def _ring_is_deep(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray(columns["stages"] >= most_stages(columns, problem, device) - _FEWER_STAGES)


def most_stages(columns: Columns, problem: GemmProblem, device: Device) -> Any:
    """Stages of the deepest ring that fits, whatever each configuration has."""
    empty = shared_bytes({**columns, "stages": np.zeros_like(columns["tile_k"])}, problem)
    stage = (columns["tile_m"] + stage_rows(columns["tile_n"])) * columns["tile_k"] * problem.element.bytes
    return np.minimum((device.shared_memory - empty) // stage, max(_STAGES))


def workspace_bytes(columns: Columns, problem: GemmProblem) -> Any:
    """Bytes of memory in which the blocks of each configuration leave sums."""
    tiles, steps, blocks = _work(columns, problem)
    return workspace(columns["tile_m"], columns["tile_n"], blocks, columns["split"], columns["stream_k"], tiles, steps)


def _workspace_is_small(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    return np.asarray(workspace_bytes(columns, problem) <= _MOST_BYTES)


# Tiles of swapped operands follow the rows of D in steps of 8: some fill the last wave where no others do. On three
# products of 8,192 rows the fastest kernel that was tried swaps (H200, `experiments/results/promotion.md`). With more
# rows than this there are more waves, and the last one counts for little.
MOST_ROWS_SWAPPED = 16384
_FEWEST_STEPS = 4
# Longer rings than the knob has were 0.997 times as fast for few rows (H100, `experiments/results/stream-k.md`).
_FEWER_STAGES = 2
_STAGES = next(knob.values for knob in KNOBS_OF_A_CLUSTER if knob.name == "stages")
_MOST_WAVES = 16
_MOST_BYTES = 64 << 20
_NOT_SHARED = ("swap", "split", "registers", "shared_memory")  # rules of gemm_sm90 that are others here

CONSTRAINTS = (
    *(_of_a_cluster(rule) for rule in OF_A_CLUSTER if rule.name not in _NOT_SHARED),
    Constraint(
        "swap",
        f"swapping the operands lets tiles follow m in steps of {STEP}, which counts where m is at most "
        f"{MOST_ROWS_SWAPPED}",
        ("swap_ab",),
        _swap_is_of_use,
    ),
    Constraint(
        "registers",
        "a consumer thread holds its fp32 accumulators, and of 8-bit products those of 64 rows again, twice if that "
        "fits: at most "
        + ", ".join(f"{limit} with {groups}" for groups, limit in enumerate(MAX_ACCUMULATORS) if groups)
        + f" warp groups a block ({MOST_PROMOTING} in fp8 for pingpong and for many rows; with two products of 64 rows "
        + f"{', '.join(map(str, MOST_AHEAD[1:]))})",
        ("schedule", "warp_groups", "tile_m", "tile_n"),
        _registers_suffice,
    ),
    Constraint(
        "shared_memory",
        "the ring, the epilogue's tiles and the barriers must fit the shared memory of a block",
        ("warp_groups", "tile_m", "tile_n", "tile_k", "stages"),
        _shared_memory_suffices,
    ),
    Constraint(
        "fine",
        f"tiles whose columns are an odd multiple of {STEP} need a right operand that is contiguous along k",
        ("swap_ab", "tile_n"),
        _fine_columns_are_k_major,
    ),
    Constraint(
        "deep", "8-bit stages have 128 elements along k: 64 were never the best", ("tile_k",), _stage_is_deep
    ),
    Constraint(
        "share", "a tile has a fixed number of parts, or is shared evenly", ("split", "stream_k"), _one_way_to_share
    ),
    Constraint(
        "split",
        f"k is split to fill the GPU: at most two parts for each cluster that runs at once, of {_FEWEST_STEPS} steps "
        "or more",
        ("swap_ab", "tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "split"),
        _split_fills_the_gpu,
    ),
    Constraint(
        "waves",
        f"the last of at most {_MOST_WAVES} waves is shared if it is not full, with {_FEWEST_STEPS} steps or more for "
        "each cluster",
        ("swap_ab", "tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "stream_k"),
        _waves_are_uneven,
    ),
    Constraint(
        "taken",
        "warp groups take turns where a cluster has more than one tile, or part of one",
        ("schedule", "swap_ab", "tile_m", "tile_n", "cluster_m", "cluster_n", "split"),
        _turns_are_taken,
    ),
    Constraint(
        "order",
        "of tiles that are all computed at once, a band has some: where it has all, it is that of the other raster",
        ("swap_ab", "tile_m", "tile_n", "cluster_m", "cluster_n", "swizzle", "raster"),
        _order_matters,
    ),
    Constraint(
        "pairs",
        "blocks are launched two by two where each has whole tiles, neighbours load the same rows, and more than half "
        "of the multiprocessors have a tile",
        ("swap_ab", "tile_m", "tile_n", "cluster_m", "cluster_n", "swizzle", "raster", "split", "stream_k"),
        _pairs_share,
    ),
    Constraint(
        "ring",
        f"a block has a multiprocessor for itself: its ring is no more than {_FEWER_STAGES} stages shorter than fits",
        ("schedule", "warp_groups", "tile_m", "tile_n", "tile_k", "stages"),
        _ring_is_deep,
    ),
    Constraint(
        "workspace",
        f"the sums that clusters leave in memory are at most {_MOST_BYTES >> 20} MiB",
        ("swap_ab", "tile_m", "tile_n", "tile_k", "cluster_m", "cluster_n", "split", "stream_k"),
        _workspace_is_small,
    ),
)  # fmt: skip
