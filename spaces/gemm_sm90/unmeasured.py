"""The kernel of a matrix product, or the library, that should run where nothing may be measured.

Small trees expect of each kernel of a list, of ``gemm_sm90`` or its complement, the time over the library's. The kernel
that is expected to be the fastest runs if that is ahead of the library by a margin. The list and the trees are data,
`unmeasured.npz`: the study `default-rule` fits them to glances at both spaces and the library on random problems.

An answer is for compiled code to wait for, so that all is computed for the whole list at once, by few calls of NumPy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.archive import CardedArchive
from tilescout.spaces.constraints import Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.estimate import RATES
from tilescout.spaces.gemm_sm90.layout import steps
from tilescout.spaces.hardware import LOADED_CLOCK, OPERATION_BYTES_A_CYCLE, clusters_at_once
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.oblivious import ObliviousTrees
from tilescout.spaces.templates import Unmeasured, find_template

FORMAT = 1
MARGIN = 0.04
"""A kernel runs in the library's place where it is expected to be faster by so much, as a log, and by `UNSURE_US`."""
UNSURE_US = 0.7
"""The µs by which a kernel must be expected to be faster besides: what stands around a launch matters by as much."""
_FILE = CardedArchive("a rule for what nobody measured", 4_000_000)
WHOLE, SHARING = "gemm_sm90", "gemm_streamk_sm90"
_REMEMBERED = 65_536  # problems whose answer is remembered
_ALIKE = {"fp16": "bf16"}  # types whose products take as long as those of others that were timed
_BIG = 1 << 62
MOST_SWAPPED = {WHOLE: 128.0, SHARING: 4096.0}
"""Rows up to which operands are swapped here, by the space: the second one allows more, which no tree has seen."""
# Of the rules of both spaces: columns up to which tiles may be narrower than so many, and the smallest tile. Tests hold
# these to the rules.
_FEW_COLUMNS, _NARROW = 128.0, 32
_SMALLEST_M, _SMALLEST_N = 64.0, 16.0

_OF_SIZES = ("m", "n", "k", "outputs")
_OF_BOTH = (
    "padded_m", "padded_n", "tiles_m", "tiles_n", "units", "waves", "tail", "busy", "steps", "cycles", "more_cycles",
    "bound", "idle",
)  # fmt: skip
_OF_TILES = (
    "rows", "columns", "depth", "split", "cluster_m", "cluster_n", "stages", "groups", "swizzle", "mma_columns",
    "ping_pong", "along_m", "whole",
)  # fmt: skip
FEATURES = (*_OF_SIZES, *_OF_BOTH, *_OF_TILES)
"""The features that trees ask for, in the order of the rows of `features`."""

Kernel = tuple[str, Configuration]
"""The name of a space and a configuration of it."""


@dataclass(frozen=True, eq=False)
class Tiles:
    """The facts of kernels that hold for all sizes of a product. Each is of shape [kernels] unless it says otherwise.

    Attributes
    ----------
    rows, columns, depth, split, cluster_m, cluster_n
        As of `tilescout.spaces.tiling.Tiling`.
    parts
        Parts of a tile that are each a unit of work.
    at_once, blocks
        Clusters that run at a time, and blocks of a cluster.
    stage, ending
        Cycles of a stage, and of a tile's end, by `tilescout.spaces.gemm_sm90.estimate`.
    ping_pong
        Whether warp groups take turns.
    most_m, most_n, least_rows, least_columns, least_k, most_shared, least_units, least_tiles
        The limits within which a kernel is legal for a product, see `legal`.
    within
        Whether k is split within a cluster.
    fixed
        Logarithms of what does not depend on sizes, and flags: the last features, of shape [features, kernels].
    """

    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    depth: NDArray[np.float64]
    split: NDArray[np.float64]
    cluster_m: NDArray[np.float64]
    cluster_n: NDArray[np.float64]
    parts: NDArray[np.float64]
    at_once: NDArray[np.float64]
    blocks: NDArray[np.float64]
    stage: NDArray[np.float64]
    ending: NDArray[np.float64]
    ping_pong: Mask
    most_m: NDArray[np.float64]
    most_n: NDArray[np.float64]
    least_rows: NDArray[np.float64]
    least_columns: NDArray[np.float64]
    least_k: NDArray[np.float64]
    most_shared: NDArray[np.float64]
    least_units: NDArray[np.float64]
    least_tiles: NDArray[np.float64]
    within: Mask
    fixed: NDArray[np.float64]

    def take(self, numbers: Sequence[int] | NDArray[np.int64]) -> "Tiles":
        """Some of the kernels."""
        kept = np.asarray(numbers)
        return Tiles(**{each.name: getattr(self, each.name)[..., kept] for each in fields(self)})


def tiles_of(kernels: Sequence[Kernel], signature: str, device: Device) -> Tiles:
    """The facts of kernels of products of some types on a device."""
    spaces = list(dict.fromkeys(space for space, _ in kernels))
    numbers = [[at for at, (space, _) in enumerate(kernels) if space == each] for each in spaces]
    parts = [
        _tiles(space, [kernels[number][1] for number in some], signature, device)
        for space, some in zip(spaces, numbers, strict=True)
    ]
    whole = Tiles(
        **{each.name: np.concatenate([getattr(part, each.name) for part in parts], axis=-1) for each in fields(Tiles)}
    )
    return whole.take(np.argsort([number for some in numbers for number in some]))


def _tiles(space: str, configurations: Sequence[Configuration], signature: str, device: Device) -> Tiles:
    template, problem = find_template(space), GemmProblem.small(signature)
    knobs = {name: np.array([each[name] for each in configurations]) for name in configurations[0]}
    t = template.tiling(knobs, problem)
    assert t is not None, "both spaces tile a product"
    size, within = problem.element.bytes, t.split_in_cluster
    swap, whole = knobs["swap_ab"] == 1, t.split_k == 1
    clusters = t.cluster_m * t.cluster_n * (t.split_k if within else 1)
    at_once = clusters_at_once(clusters, device)
    multiplying = t.rows * t.columns * t.depth * size / (OPERATION_BYTES_A_CYCLE / 2)
    loading = (t.rows / t.cluster_n + t.columns / t.cluster_m) * t.depth * size / RATES.loading
    stored = t.rows * t.columns * problem.result.bytes / RATES.storing + RATES.tile
    in_order = (knobs["swizzle"] == 1) & (knobs["raster"] == "m")
    deep = t.split_k * t.depth * 2 if within else t.depth * (t.split_k * 4 - 1) + 1
    sizes = (
        t.rows, t.columns, t.depth, t.split_k, t.cluster_m, t.cluster_n, t.stages, t.warp_groups, t.swizzle,
        t.mma_columns,
    )  # fmt: skip
    flags = (t.ping_pong, t.along_m, np.full(len(t), within))
    return Tiles(
        rows=t.rows.astype(np.float64),
        columns=t.columns.astype(np.float64),
        depth=t.depth.astype(np.float64),
        split=t.split_k.astype(np.float64),
        cluster_m=t.cluster_m.astype(np.float64),
        cluster_n=t.cluster_n.astype(np.float64),
        parts=np.where(within, 1.0, t.split_k),
        at_once=at_once.astype(np.float64),
        blocks=clusters.astype(np.float64),
        stage=np.maximum(np.maximum(multiplying, loading), RATES.latency / t.stages),
        ending=stored + RATES.exchange * ~whole,
        ping_pong=t.ping_pong,
        most_m=np.where(swap, MOST_SWAPPED[space], _BIG),
        most_n=np.where(~swap & (knobs["tile_n"] < _NARROW), _FEW_COLUMNS, _BIG),
        least_rows=np.where(swap, _SMALLEST_N, _SMALLEST_M),
        least_columns=np.where(swap, _SMALLEST_M, _SMALLEST_N),
        least_k=np.where(whole, 0.0, deep),
        most_shared=np.where(whole, _BIG, 2.0 * (device.sms if within else at_once)),
        least_units=np.where(t.ping_pong & (not within), at_once + 1.0, 0.0),
        least_tiles=np.where(~in_order & (not within), at_once + 1.0, 0.0),
        within=np.full(len(t), within),
        fixed=np.stack([*np.log2(sizes), *flags]).astype(np.float64),
    )


def features(
    tiles: Tiles, problem: GemmProblem, device: Device
) -> tuple[NDArray[np.float32], Mask, NDArray[np.float64]]:
    """The features of kernels on a problem, which of them are legal for it, and about how long each takes.

    Where a rule of their spaces speaks of sizes it is asked here anew: to ask all rules of one space alone takes longer
    than the whole answer. Tests hold that just those are called legal that their spaces allow, within `MOST_SWAPPED`.

    Returns
    -------
    features
        Of shape [features, kernels].
    legal
        Of shape [kernels].
    times_us
        An estimate, of shape [kernels].
    """
    t, m, n, k = tiles, problem.m, problem.n, problem.k
    tiles_m, tiles_n = np.ceil(m / t.rows), np.ceil(n / t.columns)
    along_m, along_n = np.ceil(tiles_m / t.cluster_m), np.ceil(tiles_n / t.cluster_n)
    clusters, whole = along_m * along_n, tiles_m * tiles_n
    units = clusters * t.parts
    waves, deep = np.ceil(units / t.at_once), np.ceil(k / (t.depth * t.split))
    legal = (
        (m <= t.most_m) & (n <= t.most_n) & (k >= t.least_k) & (units >= t.least_units) & (clusters >= t.least_tiles)
        & ((t.rows < 2 * m) | (t.rows == t.least_rows)) & ((t.columns < 2 * n) | (t.columns == t.least_columns))
        & (t.cluster_m < 2 * tiles_m) & (t.cluster_n < 2 * tiles_n)
        & (np.where(t.within, whole, clusters) * t.split <= t.most_shared)
    )  # fmt: skip
    ends = np.where(t.ping_pong & (waves > 1), 0.5, 1.0) * t.ending
    size = problem.element.bytes
    moved = (m + n) * k * size + m * n * problem.result.bytes
    memory = moved / (RATES.memory * device.bandwidth) * LOADED_CLOCK
    computing = waves * (deep * t.stage + ends)
    cycles = np.maximum(computing, memory) + RATES.overlap * np.minimum(computing, memory) + RATES.latency
    ideal = max(m * n * k * size / (device.sms * OPERATION_BYTES_A_CYCLE), memory)
    least = cycles[legal].min() if legal.any() else 1.0
    values = np.empty((len(FEATURES), len(t.rows)))
    values[0], values[1], values[2], values[3] = m, n, k * size, m * n
    values[4], values[5], values[6], values[7] = tiles_m * t.rows / m, tiles_n * t.columns / n, tiles_m, tiles_n
    values[8], values[9], values[10] = units, waves, waves * t.at_once / units
    values[11], values[12] = np.minimum(units, t.at_once) * t.blocks / device.sms, deep
    values[13], values[14], values[15] = cycles / ideal, cycles / least, computing / memory
    values[16] = along_m * t.cluster_m * along_n * t.cluster_n / whole
    changing = len(_OF_SIZES) + len(_OF_BOTH)
    np.log2(values[:changing], out=values[:changing])
    values[changing:] = t.fixed
    return values.astype(np.float32), legal, cycles * (1e6 / LOADED_CLOCK)


@dataclass(frozen=True)
class Expected:
    """The kernel that is expected to be the fastest on a problem.

    Attributes
    ----------
    number
        Its number in the list.
    log
        Log of its time over the library's.
    margin
        Log of the lead over the library with which it runs.
    """

    number: int
    log: float
    margin: float

    @property
    def runs(self) -> bool:
        """Whether it should run, and not the library."""
        return self.log < -self.margin


@dataclass(frozen=True, eq=False)
class Rule:
    """Kernels for products of some types, and trees that expect their time over the library's.

    Attributes
    ----------
    kernels
        The list.
    trees
        They predict the log of the time over the library's from `features`.
    """

    kernels: tuple[Kernel, ...]
    trees: ObliviousTrees

    def best(self, tiles: Tiles, problem: GemmProblem, device: Device) -> Expected | None:
        """The kernel that is expected to be the fastest of those that are legal; None if none is."""
        values, legal, times_us = features(tiles, problem, device)
        numbers = np.flatnonzero(legal)
        if not len(numbers):
            return None
        logs = self.trees.predict(values[:, numbers].T)
        at = int(logs.argmin())
        number = int(numbers[at])
        return Expected(number, float(logs[at]), MARGIN + UNSURE_US / float(times_us[number]))


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules that are known, by the signature of the products that they are for, and what they were fitted to."""

    rules: Mapping[str, Rule]
    source: Mapping[str, str]


@lru_cache(maxsize=_REMEMBERED)
def unmeasured(problem: GemmProblem, device: Device) -> Unmeasured | None:
    """The kernel to run on a problem where nothing may be measured; None for the library.

    Of types, layouts and epilogues that nobody timed nothing is expected: the library runs. So it does at sizes that
    our kernels can't have.
    """
    signature = _ALIKE.get(problem.signature, problem.signature)
    rule = shipped_rules().rules.get(signature)
    aligned = all(getattr(problem, name) % step == 0 for name, step in steps(problem).items())
    if rule is None or problem.batch > 1 or not aligned:
        return None
    found = rule.best(_shipped_tiles(signature, device), problem, device)
    if found is None or not found.runs:
        return None
    space, configuration = rule.kernels[found.number]
    return Unmeasured(space, configuration, -found.log)


@cache
def _shipped_tiles(signature: str, device: Device) -> Tiles:
    return tiles_of(shipped_rules().rules[signature].kernels, signature, device)


@cache
def shipped_rules() -> Rules:
    """The rules that come with the package."""
    with as_file(files("tilescout.spaces.gemm_sm90").joinpath("unmeasured.npz")) as path:
        return read_rules(path)


_ARRAYS = ("feature", "threshold", "leaf")


def write_rules(path: Path, rules: Rules) -> None:
    """Write a file that `read_rules` reads; one that is there is replaced.

    Raises
    ------
    SpaceError
        If the file can't be written, or is something else.
    """
    listed = {
        name: {"base": rule.trees.base, "kernels": [[space, dict(each)] for space, each in rule.kernels]}
        for name, rule in rules.rules.items()
    }
    arrays = {f"{name}.{each}": getattr(rule.trees, each) for name, rule in rules.rules.items() for each in _ARRAYS}
    card = {"format": FORMAT, "features": FEATURES, "rules": listed, "source": dict(rules.source)}
    _FILE.write(path, card, arrays)


def read_rules(path: Path) -> Rules:
    """Read the file of rules, and check it.

    Raises
    ------
    SpaceError
        If it is missing or damaged, or was made for other features.
    """
    with _FILE.read(path) as (card, arrays):
        if (card["format"], tuple(card["features"])) != (FORMAT, FEATURES):
            raise SpaceError(f"{path} was made for another format or other features: make it anew")
        rules = {}
        for name, told in card["rules"].items():
            feature, threshold, leaf = (arrays[f"{name}.{each}"] for each in _ARRAYS)
            trees = ObliviousTrees(feature, threshold, leaf, float(told["base"]))
            trees.check(len(FEATURES))
            rules[str(name)] = Rule(tuple(_kernel(*each) for each in told["kernels"]), trees)
        return Rules(rules, dict(card["source"]))


def _kernel(space: str, values: Mapping[str, int | str]) -> Kernel:
    """A kernel as a file names it; its space must have its values."""
    knobs = find_template(space).knobs
    if values.keys() != {knob.name for knob in knobs} or any(values[knob.name] not in knob.values for knob in knobs):
        raise ValueError(f"{space} has no such kernel")
    return space, Configuration(tuple((knob.name, values[knob.name]) for knob in knobs))
