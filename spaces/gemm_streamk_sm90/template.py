"""The search space of the stream-K Hopper GEMM: its default, and what is tried first."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from platform import machine
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces import gemm_sm90
from tilescout.spaces.constraints import Columns, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.estimate import cycles as cycles_of_a_cluster
from tilescout.spaces.gemm_sm90.layout import MMA_ROWS
from tilescout.spaces.gemm_sm90.rules import sharing_groups
from tilescout.spaces.gemm_sm90.template import KNOBS as KNOBS_OF_A_CLUSTER
from tilescout.spaces.gemm_sm90.template import MOST_PROMOTING
from tilescout.spaces.gemm_sm90.template import legal as legal_of_a_cluster
from tilescout.spaces.gemm_sm90.template import shape_of as whole_shape_of
from tilescout.spaces.gemm_streamk_sm90.estimate import cycles, resting
from tilescout.spaces.gemm_streamk_sm90.launch import LaunchedShape, launch_number, relaunched
from tilescout.spaces.gemm_streamk_sm90.rules import (
    CONSTRAINTS,
    DIRECTIONS,
    KNOBS,
    MOST_ROWS_SWAPPED,
    TWO_BY_TWO,
    held_of,
    most_stages,
    promotion_of,
    shared_bytes,
    together,
    whole,
    workspace_bytes,
)
from tilescout.spaces.knobs import Configuration, Value, configurations_of
from tilescout.spaces.launched import Launched
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.stocked import stocked
from tilescout.spaces.templates import Built, KernelTemplate
from tilescout.spaces.tiling import Tiling

# A gain that is smaller than this, relative, is not worth a search: so much of either estimate is guessed.
_MARGIN = 0.05
# Of the portfolio: rows for which its kernels are legal, the least width of a tile, and the most blocks of a cluster.
_MANY_ROWS = (512, 4096, MOST_ROWS_SWAPPED)
_WIDE, _SMALL_CLUSTER = 96, 2

_REMEMBERED = 65_536  # problems whose default is remembered
_PLAIN: dict[str, Any] = {"schedule": "cooperative", "swizzle": 1, "raster": "m"}  # where clusters take no turns
_ORDER = {"swizzle", "raster"}  # knobs of the order in which tiles are walked
# Blocks that are launched two by two are another kernel, and so are those that have whole tiles. Other processors'
# instructions do not have immediate operands in one piece.
_BANDS, _SPLITS = (next(knob.values for knob in KNOBS if knob.name == name) for name in ("swizzle", "split"))
_WAYS = tuple((split, int(split == 1)) for split in _SPLITS)  # of `_SHARING`: evenly, then by each number of parts
_SHARING = ("split", "stream_k")
_OF_A_LAUNCH: Launched = {"swizzle": _BANDS, "raster": DIRECTIONS, _SHARING: _WAYS}
_TRIED_BANDS = (1, 4, 8)  # their widths; none of 2 was clearly the best (`experiments/results/promotion.md`)
# What is estimated to be slower by more is not begun with. Orders that differ by less were the fastest, in both
# directions of a wave; where tiles are many, slower ones were much slower, and so was one warp group where two were
# estimated to be 1.9 times as fast (`experiments/results/promotion.md`).
_SLOWER, _MUCH_SLOWER = 1.05, 1.25
_OF_A_TILE = {knob.name for knob in KNOBS} - {"split", "stream_k", *_PLAIN}


class GemmStreamKSm90Template(KernelTemplate[GemmProblem]):
    """The template of ``gemm_streamk_sm90``."""

    name = "gemm_streamk_sm90"
    summary = "matrix products on Hopper, by our kernel that splits work along k evenly (stream-K)"
    package = "tilescout.spaces.gemm_streamk_sm90"
    sources = (
        "build.py",
        "kernel.py",
        "launch.py",
        "layout.py",
        "mainloop.py",
        "partition.py",
        "parts.py",
        "promoting.py",
        "scheduler.py",
        "sums.py",
    )
    workload = "tilescout.spaces.gemm:Gemm"
    archs = ("sm_90a",)
    knobs = KNOBS
    constraints = CONSTRAINTS
    launched = _OF_A_LAUNCH if machine() in ("x86_64", "AMD64") else {}

    def check(self, problem: GemmProblem) -> None:
        gemm_sm90.TEMPLATE.check(problem)

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        """Return the default of ``gemm_sm90``, or where sharing is estimated to gain the shortest such estimate.

        The estimate is of the default configurations of ``gemm_sm90``, shared in every way.
        """
        return _default(problem, device)

    def portfolio(self, problem: GemmProblem, device: Device) -> Sequence[Configuration]:
        """Whole tiles of every size in small clusters: many rows are divided by what the other space lacks, too."""
        return configurations_of(KNOBS, _tiles_of_many_rows(problem, device))

    def stock(self, problem: GemmProblem, device: Device) -> Sequence[Configuration]:
        """Those that were chosen on recorded and random problems, together with those of ``gemm_sm90``."""
        return stocked(Path(__file__).parent, problem.element.bytes)

    def complements(self, problem: GemmProblem, device: Device) -> bool:
        """Return True: on most products a kernel of this space is the fastest, whatever their rows.

        Of 108 products that were recorded in both spaces the fastest kernel is of this one on 80, and by more than 1 %
        on 71. It is slower by more than that on 20, and on ten of these a cluster of ``gemm_sm90`` splits k (H100,
        `experiments/results/stream-k.md`).
        """
        return True

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        blocks = int(configuration["cluster_m"]) * int(configuration["cluster_n"])
        return blocks * int(together(_columns(configuration))[0])

    def scratch_bytes(self, configuration: Mapping[str, Value], problem: GemmProblem) -> int:
        return int(workspace_bytes(_columns(configuration), problem)[0])

    def like(self, space: SearchSpace[GemmProblem], other: Tiling) -> Sequence[int]:
        """Return what is estimated to be the fastest with its tile and split, by each number of warp groups.

        Of each there is one with its cluster. Where it splits k, there is also one with its cluster turned, which was
        the faster on 2263x256x12288 by 6 % (H200, 2026-11-23). Elsewhere, there are some without a cluster, which walk
        the tiles in different orders: which one of those that are estimated alike is the fastest on a GPU, no estimate
        knows. What is estimated to be clearly slower is left out.
        """
        mine = self.tiling(space.columns, space.problem)
        split = (space.columns["split"] == other.split_k) & (space.columns["stream_k"] == 0)
        same = np.flatnonzero(split & (mine.rows == other.rows) & (mine.columns == other.columns))
        columns = {name: column[same] for name, column in space.columns.items()}
        estimates = estimated_cycles(columns, space.problem, space.device)
        order = np.lexsort((-columns["stages"], estimates))
        order = order[columns["schedule"][order] == columns["schedule"][order[:1]]]
        alone = ((mine.cluster_m * mine.cluster_n == 1) & (mine.split_k == 1))[same]
        clustered = ((mine.cluster_m == other.cluster_m) & (mine.cluster_n == other.cluster_n))[same]
        turned = ((mine.cluster_m == other.cluster_n) & (mine.cluster_n == other.cluster_m) & (mine.split_k > 1))[same]

        def fastest(kind: Mask) -> NDArray[np.int64]:
            those = order[kind[order]]
            _, at = np.unique(columns["warp_groups"][those], return_index=True)
            each = those[np.sort(at)]
            return np.asarray(each[estimates[each] <= _MUCH_SLOWER * estimates[each[:1]]])

        found = [*fastest(alone), *fastest(clustered), *fastest(turned)]
        orders = np.concatenate([_in_other_orders(columns, estimates, at) for at in fastest(alone)] or [order[:0]])
        found += [*orders[np.lexsort((estimates[orders], columns["swizzle"][orders] > 1))]]
        return [int(same[at]) for at in dict.fromkeys(found)]

    def tiling(self, columns: Columns, problem: GemmProblem) -> Tiling:
        return replace(
            gemm_sm90.TEMPLATE.tiling(whole(columns), problem),
            split_k=columns["split"],
            split_in_cluster=False,
            shares_evenly=np.asarray(columns["stream_k"] == 1),
            accumulators=held_of(columns, problem),
            shared_memory=shared_bytes(columns, problem),
            together=together(columns),
        )

    def warm_up(self) -> None:
        gemm_sm90.TEMPLATE.warm_up()

    @property
    def warmed_like(self) -> str:
        return gemm_sm90.TEMPLATE.name

    def warm_up_beside(self) -> None:
        """Compile a small kernel that shares k, so that the kernel's source is parsed once, not by every compiler.

        A kernel then takes 0.95 instead of 1.03 CPU seconds (16 drawn ones, `experiments/results/wall-time.md`).
        """
        self.build_for_practice(_SMALL, GemmProblem(64, 64, 64).signature)

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.gemm_streamk_sm90.build import build_object

        problem = GemmProblem.small(signature)
        shares = configuration["split"] != 1 or configuration["stream_k"] == 1
        return build_object(shape_of(configuration, problem), shares, launch_number(configuration), problem, path)

    def relaunch(self, binary: bytes, configuration: Mapping[str, Value], signature: str) -> bytes:
        compiled = self.compiled_as(Configuration.of(configuration))
        return relaunched(binary, launch_number(compiled), launch_number(configuration))

    @property
    def source_hash(self) -> str:
        """SHA-256 over the files in `sources`, those of ``gemm_sm90`` that they import, and a number of another one."""
        whole = hashlib.sha256(super().source_hash.encode())
        whole.update(f"{gemm_sm90.TEMPLATE.source_hash} {MOST_PROMOTING}".encode())
        whole.update(Path(gemm_sm90.__file__).with_name("caching.py").read_bytes())
        return whole.hexdigest()


_SMALL = Configuration.of(
    {
        "schedule": "cooperative", "warp_groups": 1, "swap_ab": 0, "tile_m": 64, "tile_n": 32, "tile_k": 32,
        "cluster_m": 1, "cluster_n": 1, "stages": 2, "swizzle": 1, "raster": "m", "split": 1, "stream_k": 1,
    }
)  # fmt: skip


def _candidates(problem: GemmProblem, device: Device) -> Columns:
    """The default configurations of ``gemm_sm90``, each in its order or in the plain one, shared in every way."""
    given = gemm_sm90.TEMPLATE.portfolio(problem, device)
    ways = [*((split, 0) for split in KNOBS[-2].values), (1, 1)]
    each, plain = np.divmod(np.arange(len(given) * len(ways) * 2), 2)
    at, way = np.divmod(each, len(ways))
    columns = {knob.name: np.array([one[knob.name] for one in given])[at] for knob in KNOBS[:-2]}
    for name, value in _PLAIN.items():
        columns[name] = np.where(plain, value, columns[name])
    columns["split"], columns["stream_k"] = np.array(ways)[way].T
    return columns


def _estimated(problem: GemmProblem, device: Device) -> tuple[Columns, NDArray[np.float64]]:
    """The legal ones of `_candidates`, and the estimate of each."""
    legal = _legal(_candidates(problem, device), problem, device)
    return legal, estimated_cycles(legal, problem, device)


def estimated_cycles(columns: Columns, problem: GemmProblem, device: Device) -> NDArray[np.float64]:
    """Cycles that each of some configurations takes, about, of shape [configurations]."""
    pieces = columns["tile_m"] // (MMA_ROWS * sharing_groups(columns))
    rests = resting(promotion_of(columns, problem), pieces) if problem.element.bytes == 1 else 0.0
    return cycles(TEMPLATE.tiling(columns, problem), device, rests)


@lru_cache(maxsize=_REMEMBERED)
def _default(problem: GemmProblem, device: Device) -> Configuration:
    legal, estimates = _estimated(problem, device)
    left = np.arange(len(estimates))
    if not _shares_gain(problem, device) and len(whole := _whole_default(legal, problem, device)):
        left = whole  # trees that learned from tables tell whole tiles apart better than the estimate does
    best = int(left[estimates[left].argmin()])
    return Configuration(tuple((knob.name, legal[knob.name][best].item()) for knob in KNOBS))


def _whole_default(legal: Columns, problem: GemmProblem, device: Device) -> NDArray[np.int64]:
    """The rows among legal candidates that are the default of ``gemm_sm90``; none if that splits k."""
    given = gemm_sm90.TEMPLATE.default(problem, device)
    if given["split_k"] != 1:
        return np.empty(0, dtype=np.int64)
    kept = (legal["split"] == 1) & (legal["stream_k"] == 0)
    same = np.logical_and.reduce([kept, *(legal[name] == given[name] for name in given if name in _OF_A_TILE)])
    exact = np.logical_and.reduce([same, *(legal[name] == given[name] for name in _PLAIN)])
    return np.flatnonzero(exact if exact.any() else same)


def _shares_gain(problem: GemmProblem, device: Device) -> bool:
    """Whether a configuration that shares tiles is estimated to be the fastest, by a margin."""
    legal, estimates = _estimated(problem, device)
    shared = (legal["split"] > 1) | (legal["stream_k"] > 0)
    given = gemm_sm90.TEMPLATE.portfolio(problem, device)
    columns = {knob.name: np.array([one[knob.name] for one in given]) for knob in KNOBS_OF_A_CLUSTER}
    left = legal_of_a_cluster(columns, problem, device)
    within = cycles_of_a_cluster(gemm_sm90.TEMPLATE.tiling(left, problem), device)  # a cluster may split k, too
    others = min(estimates[~shared].min(initial=np.inf), within.min(initial=np.inf))
    return bool(estimates[shared].min(initial=np.inf) < (1 - _MARGIN) * others)


def _tiles_of_many_rows(problem: GemmProblem, device: Device) -> Columns:
    """Tiles of warp groups that take turns, in clusters of one or two; each is legal for some rows."""
    values = {knob.name: knob.values for knob in KNOBS}
    swept: dict[str, Sequence[Value]] = {name: values[name] for name in ("swap_ab", "tile_m", "tile_n")}
    swept |= {"raster": DIRECTIONS, "cluster_m": (1, 2), "cluster_n": (1, 2)}
    columns = _whole_grid(swept, {"schedule": "pingpong", "warp_groups": 2}, problem, device)
    wide = (columns["tile_m"] > MMA_ROWS) & (columns["tile_n"] >= _WIDE)
    few = columns["cluster_m"] * columns["cluster_n"] <= _SMALL_CLUSTER
    sizes = [replace(problem, m=m) for m in _MANY_ROWS]
    legal = np.logical_or.reduce([_allowed(columns, each, device) for each in sizes])
    return {name: column[wide & few & legal] for name, column in columns.items()}


def _whole_grid(
    swept: Mapping[str, Sequence[Value]], fixed: Mapping[str, Value], problem: GemmProblem, device: Device
) -> Columns:
    """All combinations of some values, whole and in the plain order, with the deepest ring that fits."""
    grid = np.indices([len(each) for each in swept.values()]).reshape(len(swept), -1)
    columns = {name: np.array(each)[at] for (name, each), at in zip(swept.items(), grid, strict=True)}
    whole: dict[str, Value] = {"swizzle": 1, "split": 1, "stream_k": 0}
    columns |= {name: np.full(grid.shape[1], value) for name, value in {**fixed, **whole}.items()}
    columns["tile_k"] = np.full(grid.shape[1], 128 // problem.element.bytes)  # as much as the widest swizzle has
    columns["stages"] = most_stages(columns, problem, device)
    return columns


def _legal(columns: Columns, problem: GemmProblem, device: Device) -> Columns:
    """The legal ones among configurations, which are given and returned as columns."""
    kept = _allowed(columns, problem, device)
    return {name: column[kept] for name, column in columns.items()}


def _allowed(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
    known = np.logical_and.reduce([np.isin(columns[knob.name], knob.values) for knob in KNOBS])
    return np.asarray(known & np.logical_and.reduce([rule.holds(columns, problem, device) for rule in CONSTRAINTS]))


def _in_other_orders(columns: Columns, estimates: NDArray[np.float64], at: int) -> NDArray[np.int64]:
    """The rows that differ from one only in how they walk the tiles, but for those that are estimated to be slower."""
    kept = [column == column[at] for name, column in columns.items() if name not in _ORDER]
    kept += [np.isin(columns["swizzle"], _TRIED_BANDS), estimates <= _SLOWER * estimates[at]]
    return np.flatnonzero(np.logical_and.reduce(kept))


def _columns(configuration: Mapping[str, Value]) -> Columns:
    return {name: np.array([value]) for name, value in configuration.items()}


def shape_of(configuration: Mapping[str, Value], problem: GemmProblem) -> LaunchedShape:
    """The compile-time parameters that the kernel shares with that of ``gemm_sm90``, and its own, none `launched`."""
    own = ("split", "stream_k")
    kept = {name: configuration[name] for name in configuration if name not in own}
    whole = whole_shape_of({"split_k": 1, **kept, "swizzle": 1, "raster": "m"})
    promoted = str(promotion_of(_columns(configuration), problem)[0])
    pairs, narrow = configuration["raster"] == TWO_BY_TWO, problem.result.bytes == 2
    return LaunchedShape(**asdict(whole), promotion=promoted, pairs=pairs, narrow=narrow)


TEMPLATE = GemmStreamKSm90Template()
