"""The search space of the grouped Hopper GEMM: its knobs, its rules with their reasons, and its default."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilescout.spaces import gemm_sm90
from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm_sm90.layout import (
    ALIGNMENT,
    MAX_ACCUMULATORS,
    MMA_ROWS,
    GemmShape,
    accumulators,
    groups_per_tile,
)
from tilescout.spaces.gemm_sm90.rules import ALIGNED, ROWS, TURNS, check_alignment, sharing_groups
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.layout import MOST_EXPERTS, shared_memory
from tilescout.spaces.grouped_tiling import GroupedTiling
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import Built, KernelTemplate
from tilescout.spaces.tiling import ceil_div

_STAGES = tuple(range(2, 9))
_PAIR = 256  # tokens of two tiles
_FILLED = 1.05  # rows of such pairs over the tokens, up to which they are full enough
_WIDER = 1.04  # columns of pairs of tiles over n, up to which they are full enough
_EMPTIER = 1.08  # columns of wide tiles over those of narrower ones, from which the wide ones are too empty
KNOBS = (
    Knob("schedule", ("cooperative", "pingpong"), "whether the warp groups share a tile or take tiles in turn"),
    Knob("warp_groups", (1, 2, 3), "consumer warp groups"),
    Knob("swap_ab", (0, 1), "whether D.T = B @ A.T is computed: tile_m then runs along n, and tile_n along the tokens"),
    Knob("tile_m", (64, 128, 192, 256), "rows of the product that a block computes at a time"),
    Knob("tile_n", tuple(range(16, 257, 16)), "columns of the product that a block computes at a time"),
    Knob("tile_k", (32, 64, 128), "elements along k in one stage of the ring"),
    Knob("cluster_m", (1, 2), "blocks of a cluster along the rows of the product; they share loads of its columns"),
    Knob("cluster_n", (1, 2), "blocks of a cluster along its columns; they share loads of its rows"),
    Knob("stages", _STAGES, "buffers of the ring between the warp group that loads and those that multiply"),
    Knob("swizzle", (1, 2, 4, 8), "width, in clusters, of the bands in which the tiles of an expert are walked"),
    Knob("raster", ("m", "n"), "direction in which a band is walked"),
    Knob("order", ("experts", "mixed"), "whether a band ends with an expert, or goes over the tokens of all experts"),
    Knob("trim", (0, 1), "whether a tile that its expert fills by half or less is multiplied as half a tile"),
)


def _registers_suffice(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    needed = accumulators(columns["tile_m"], columns["tile_n"], sharing_groups(columns))
    return np.asarray(needed <= np.array(MAX_ACCUMULATORS)[columns["warp_groups"]])


def _narrow_tiles_are_of_use(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    return np.asarray((columns["tile_n"] >= 32) | (columns["swap_ab"] == 1) | (problem.n <= 128))


def _tiles_are_filled(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    swapped = columns["swap_ab"] == 1
    rows, width = np.where(swapped, problem.n, problem.tokens), np.where(swapped, problem.tokens, problem.n)
    fits_m = (columns["tile_m"] * columns["cluster_m"] < 2 * rows) | (
        (columns["tile_m"] == MMA_ROWS) & (columns["cluster_m"] == 1)
    )
    smallest = (columns["tile_n"] <= 32) & (columns["cluster_n"] == 1)
    return np.asarray(fits_m & ((columns["tile_n"] * columns["cluster_n"] < 2 * width) | smallest))


def _halves_are_whole(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    by_rows = columns["tile_m"] % (2 * MMA_ROWS * sharing_groups(columns)) == 0
    halves = np.where(columns["swap_ab"] == 1, columns["tile_n"] % 32 == 0, by_rows)
    return np.asarray((columns["trim"] == 0) | halves)


def _shared_memory_suffices(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    needed = shared_memory(
        columns["tile_m"], columns["tile_n"], columns["tile_k"], columns["stages"], columns["warp_groups"],
        sharing_groups(columns), problem.element.bytes,
    )  # fmt: skip
    return np.asarray(needed <= device.shared_memory)


CONSTRAINTS = (
    TURNS,
    ROWS,
    Constraint(
        "narrow",
        "tiles of 16 columns are for swapped operands, or n of at most 128",
        ("swap_ab", "tile_n"),
        _narrow_tiles_are_of_use,
    ),
    Constraint(
        "registers",
        "a consumer thread holds tile_m * tile_n / (128 * the warp groups that share the tile) fp32 accumulators: at "
        "most "
        + ", ".join(f"{MAX_ACCUMULATORS[groups]} with {groups}" for groups in (1, 2, 3))
        + " warp groups a block; beyond, it spills or does not compile",
        ("schedule", "warp_groups", "tile_m", "tile_n"),
        _registers_suffice,
    ),
    ALIGNED,
    Constraint(
        "filled",
        "half of the tiles of a cluster or more would lie outside of D: they span less than twice its rows and its "
        "columns, or are the smallest",
        ("swap_ab", "tile_m", "tile_n", "cluster_m", "cluster_n"),
        _tiles_are_filled,
    ),
    Constraint(
        "halves",
        "half a tile is one: of its tokens, each warp group has whole 64-row WGMMA tiles, or with swapped operands a "
        "multiple of 16",
        ("schedule", "warp_groups", "swap_ab", "tile_m", "tile_n", "trim"),
        _halves_are_whole,
    ),
    Constraint(
        "shared_memory",
        "the ring, the epilogue's tiles, the table of groups and the barriers must fit the shared memory of a block",
        ("schedule", "warp_groups", "tile_m", "tile_n", "tile_k", "stages"),
        _shared_memory_suffices,
    ),
)

_SHARED = ("caching.py", "epilogue.py", "kernel.py", "layout.py", "mainloop.py", "scheduler.py")  # of gemm_sm90


class GroupedGemmSm90Template(KernelTemplate[GroupedProblem]):
    """The template of ``grouped_gemm_sm90``."""

    name = "grouped_gemm_sm90"
    summary = "products of experts on Hopper, by our kernel"
    package = "tilescout.spaces.grouped_gemm_sm90"
    sources: tuple[str, ...] = ("build.py", "epilogue.py", "groups.py", "kernel.py", "layout.py")
    workload = "tilescout.spaces.grouped:Grouped"
    archs = ("sm_90a",)
    knobs: tuple[Knob, ...] = KNOBS
    constraints: tuple[Constraint[GroupedProblem], ...] = CONSTRAINTS
    careful = True
    pairs = "tilescout.spaces.grouped_pair_sm90:TEMPLATE"

    def check(self, problem: GroupedProblem) -> None:
        step = ALIGNMENT // problem.element.bytes
        check_alignment(self.name, problem, dict.fromkeys("nk", step))
        if problem.experts > MOST_EXPERTS:
            raise ProblemError(f"{self.name}: problem {problem}: allowed are at most {MOST_EXPERTS} experts")

    def default(self, problem: GroupedProblem, device: Device) -> Configuration:
        """Return what the size of a token's group, in the mean over the tokens, asks for.

        With few tokens, narrow tiles of them and wide ones of the weights, which decide the time; with many, the tiles
        that were the best or near it on 12 problems (`experiments/results/grouped-products.md`), by which both the
        bounds and the tiles were chosen. Where groups nearly fill pairs of tiles, two blocks share the weights: that
        and its bounds were chosen on the recorded tables (`experiments/results/grouped-tables.md`). Where they do not,
        two blocks share the tokens if n nearly fills pairs of tiles. Tiles have 128 columns in place of 192 where those
        lie beyond n by a twelfth more: chosen on four problems of n of 640, 1,024 and 1,408, where 128 took 0.71 to
        0.89 of the time. To choose by the last round of tiles on the device, too, brought nothing on problems that were
        drawn for it (`experiments/results/grouped-products.md`).
        """
        size = sum(group * group for group in problem.groups) / problem.tokens
        narrow = next((width for width in (16, 32, 64) if size <= width), 0)
        if narrow and problem.n > MMA_ROWS:
            return _like(problem, device, tile=(128, narrow, 64), swap_ab=1, raster="n")
        if problem.n > 2 * MMA_ROWS:
            width = 128 if _spanned(problem.n, 192) >= _EMPTIER * _spanned(problem.n, 128) else 192
            if sum(_spanned(group, _PAIR) for group in problem.groups) <= _FILLED * problem.tokens:
                tile = (128, 128 if size < 2 * _PAIR else width, 64)
                return _like(problem, device, tile=tile, schedule="pingpong", cluster_m=2, swizzle=4, raster="n")
            # Two blocks then read the tokens' tile once: 1 to 8 % faster on 8 of 9 uneven problems, slower where
            # pairs of tiles exceed n by an eighth (experiments/results/grouped-products.md).
            pair = 1 + (_spanned(problem.n, 2 * width) <= _WIDER * problem.n)
            tile = (128, width, 64)
            return _like(problem, device, tile=tile, schedule="pingpong", cluster_n=pair, swizzle=4, raster="n")
        return _like(problem, device, tile=(MMA_ROWS, 16 if narrow else 32, 64), warp_groups=1, swap_ab=int(narrow > 0))

    def first_in(self, space: SearchSpace[GroupedProblem]) -> Sequence[int]:
        """Return those that were the fastest of a list, or near it, on some of two times 12 problems."""
        default = self.default(space.problem, space.device)
        known = self.known(space.problem, space.device)
        return [space.index(each) for each in known if each in space and each != default]

    def known(self, problem: GroupedProblem, device: Device) -> Sequence[Configuration]:
        """Return the configurations that `first_in` has, legal or not."""
        return (
            _like(problem, device, tile=(128, 192, 64), schedule="pingpong", swizzle=4, raster="n"),
            _like(problem, device, tile=(128, 192, 64), schedule="pingpong", swizzle=8, order="mixed"),
            _like(problem, device, tile=(128, 192, 64), swizzle=4, raster="n"),
            _like(problem, device, tile=(128, 16, 128), swap_ab=1),
            _like(problem, device, tile=(128, 32, 128), swap_ab=1),
            _like(problem, device, tile=(128, 64, 64), swap_ab=1, raster="n"),
            _like(problem, device, tile=(64, 32, 128), swap_ab=1, warp_groups=1),
            _like(problem, device, tile=(256, 128, 64), swap_ab=1),
            _like(problem, device, tile=(128, 128, 64), schedule="pingpong", cluster_m=2),
            *(
                _like(problem, device, tile=tile, schedule=schedule, cluster_n=2, swizzle=4, raster="n")
                for tile, schedule in (
                    ((128, 192, 64), "pingpong"),
                    ((128, 128, 64), "pingpong"),
                    ((128, 256, 64), "cooperative"),
                )
            ),
        )

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        return math.prod(int(configuration[name]) for name in ("cluster_m", "cluster_n"))

    def grouped_tiling(self, columns: Columns, problem: GroupedProblem) -> GroupedTiling:
        swap = columns["swap_ab"] == 1
        return GroupedTiling(
            problem=problem,
            rows=np.where(swap, columns["tile_n"], columns["tile_m"]),
            columns=np.where(swap, columns["tile_m"], columns["tile_n"]),
            depth=columns["tile_k"],
            cluster_rows=np.where(swap, columns["cluster_n"], columns["cluster_m"]),
            cluster_columns=np.where(swap, columns["cluster_m"], columns["cluster_n"]),
            stages=columns["stages"],
            trim=np.asarray(columns["trim"] == 1),
            saved=np.ones(len(swap)),
        )

    def warm_up(self) -> None:
        super().warm_up()
        import tilescout.spaces.grouped_gemm_sm90.build  # noqa: F401

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.grouped_gemm_sm90.build import build_object

        return build_object(
            shape_of(configuration),
            configuration["order"] == "mixed",
            configuration["trim"] == 1,
            GroupedProblem.small(signature),
            path,
        )

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources` and those that are shared with ``gemm_sm90``."""
        whole = hashlib.sha256(super().source_hash.encode())
        folder = Path(gemm_sm90.__file__).parent
        for name in _SHARED:
            whole.update(folder.joinpath(name).read_bytes())
        return whole.hexdigest()


def _spanned(size: int, width: int) -> int:
    """Rows or columns of the tiles of a width that cover a size."""
    return int(ceil_div(size, width) * width)


def _like(problem: GroupedProblem, device: Device, tile: tuple[int, int, int], **others: Value) -> Configuration:
    """A configuration of two warp groups that share a tile, unless told otherwise, with the deepest ring that fits."""
    values: dict[str, Value] = {
        "warp_groups": 2,
        **dict(zip(("tile_m", "tile_n", "tile_k"), tile, strict=True)),
        **others,
    }
    whole = {knob.name: values.get(knob.name, knob.values[0]) for knob in KNOBS}
    groups = int(whole["warp_groups"])
    together = int(groups_per_tile(groups, whole["schedule"] == "pingpong"))
    fits = (
        stages
        for stages in reversed(_STAGES)
        if shared_memory(*tile, stages, groups, together, problem.element.bytes) <= device.shared_memory
    )
    return Configuration(tuple({**whole, "stages": next(fits)}.items()))


def shape_of(configuration: Mapping[str, Value]) -> GemmShape:
    """The kernel's compile-time parameters of a configuration."""
    flags = ("order", "raster", "schedule", "swap_ab", "trim")
    return GemmShape(
        **{knob.name: int(configuration[knob.name]) for knob in KNOBS if knob.name not in flags},
        split_k=1,
        raster_along_m=configuration["raster"] == "m",
        pingpong=configuration["schedule"] == "pingpong",
        swap_ab=configuration["swap_ab"] == 1,
    )


TEMPLATE = GroupedGemmSm90Template()


class GroupedEpilogueTemplate(GroupedGemmSm90Template):
    """A template of the same kernel with more in its epilogue, which nobody pairs."""

    pairs = ""

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, and over those of ``grouped_gemm_sm90``."""
        return hashlib.sha256((super().source_hash + TEMPLATE.source_hash).encode()).hexdigest()
