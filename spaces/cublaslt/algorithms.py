"""The algorithms that cuBLASLt has for a product: its heuristic's guesses, and all that it says are legal.

Which configurations are legal is in no document. The library is asked: which algorithms there are, what each can be
told, and of every combination whether it can compute this product.
"""

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product as grid
from typing import NamedTuple

from tilescout.spaces.cublaslt.abi import SETTABLE, Algorithm, Cap, Config, Found, LibraryError
from tilescout.spaces.cublaslt.operation import CONFIGURED, WORKSPACE, Operation
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.loaders import Listing

LIBRARY = "cuBLASLt"
"""The name of the library."""
SPLITS = (*range(2, 13), 16, 24, 32)
"""Splits of k that are asked about, where an algorithm can split at all; the heuristic may name others."""
REDUCTIONS = (1, 2, 4)
"""The reduction schemes of a split k: in place, in the type of the sums, in the type of the result."""
CLUSTERS = range(52)
INNER_SHAPES = range(1, 5)
"""The shapes that `cublasLt.h` 13.1 has names for; no capability lists those of an algorithm."""
_SEEDS = 8  # candidates of one algorithm: the heuristic of 13.1 has no more of the newest, whatever it is asked for
MOST_ASKED = 250_000
"""Configurations that the library is asked about at most; see `Listing.complete`."""
CENSUS = 1
"""Raise it where other configurations are asked about; see `Listing.census`."""

VALUES: dict[str, tuple[int, ...]] = {
    "guess": tuple(range(65)),
    "algorithm": tuple(range(128)),
    "tile": tuple(range(1024)),
    "stages": tuple(range(64)),
    "split_k": tuple(range(65)),
    "reduction": (0, *REDUCTIONS),
    "swizzle": tuple(range(8)),
    "inner_shape": tuple(range(8)),
    "cluster": tuple(range(64)),
    "custom_option": tuple(range(256)),
}
"""The values that knobs can have: some more than `cublasLt.h` 13.1 has names for, for the next versions of it."""

KNOBS = tuple(VALUES)

Row = tuple[int, ...]  # the values of `KNOBS`


class Setting(NamedTuple):
    """The configuration of an algorithm, by the names of `CONFIGURED`, in their order; by default k is whole."""

    tile: int
    stages: int
    split_k: int = 1
    reduction: int = 0
    swizzle: int = 0
    inner_shape: int = 0
    cluster: int = 0
    custom_option: int = 0


def guessed(operation: Operation, most: int) -> list[Row]:
    """The candidates of the library's heuristic; the knob `guess` is their rank from 1.

    Raises
    ------
    SpaceError
        If it has none.
    """
    library = operation.library
    rows: dict[Row, int] = {}
    for algorithm in operation.guesses(most):
        number = library.configured(algorithm, Config.ID)
        rows.setdefault((number, *_setting_of(operation, algorithm)), len(rows) + 1)
    if not rows:
        raise SpaceError(f"cuBLASLt {library.version} has no algorithm for this product")
    return [(guess, *row) for row, guess in rows.items()]


def _setting_of(operation: Operation, algorithm: Algorithm) -> Setting:
    return Setting(*(operation.library.configured(algorithm, attribute) for attribute in CONFIGURED.values()))


class _EnoughError(Exception):
    """As much was asked as may be."""


class Census:
    """Asks the library about configurations, and counts the questions.

    Parameters
    ----------
    operation
        What the algorithms are to compute.
    most
        Questions at most.
    """

    def __init__(self, operation: Operation, most: int) -> None:
        self.operation, self.most, self.asked = operation, most, 0

    def algorithms(self) -> Iterator[Row]:
        """All legal configurations, the newest algorithms first, without their rank; ends early after `most`.

        Only of algorithms that the heuristic has a candidate of when it is asked for that one alone. Those of other
        GPUs are listed for the types too, and have most of the combinations: on an H200, 13.1 has 20 algorithms for
        bf16, of which 7 can run, and one that can't has 600 million combinations.
        """
        library, types = self.operation.library, self.operation.product.types
        try:
            for identifier in reversed(library.identifiers(types, len(VALUES["algorithm"]))):
                with suppress(LibraryError):  # it has no candidate, or is refused when it is made or looked at
                    seeds = [_setting_of(self.operation, each) for each in self.operation.guesses(_SEEDS, identifier)]
                    algorithm = library.algorithm(types, identifier)
                    yield from ((0, identifier, *setting) for setting in self._settings(algorithm, seeds))
        except _EnoughError:
            return

    def _settings(self, algorithm: Algorithm, seeds: Sequence[Setting]) -> Iterator[Setting]:
        """The legal configurations of one algorithm, some of which are known.

        A cluster is tried if one of these may have it. All combinations of tile, stages, cluster and custom option are
        asked about first, with everything else as it is by default. All else that the algorithm can be told is tried
        on what was legal.
        """
        library, legal = self.operation.library, self._judge(algorithm)
        tiles = library.capabilities(algorithm, Cap.TILES)
        stages = sorted({*library.capabilities(algorithm, Cap.STAGES), *(seed.stages for seed in seeds)})
        options = range(min(library.capability(algorithm, Cap.CUSTOM_OPTION), VALUES["custom_option"][-1]) + 1)
        swizzles = range(library.capability(algorithm, Cap.SWIZZLE) + 1)
        mask = library.capability(algorithm, Cap.REDUCTIONS)
        can_split = library.capability(algorithm, Cap.SPLIT_K) != 0
        splits = [(parts, scheme) for parts in SPLITS for scheme in REDUCTIONS if can_split and mask & scheme]

        clusters = [each for each in CLUSTERS if any(legal(seed._replace(cluster=each)) for seed in seeds)]
        if len(clusters) == len(CLUSTERS):
            clusters = [0]  # it has none, and does not look at what it is told
        asked = grid(tiles, stages, clusters, options)
        plain = (Setting(tile, stage, cluster=each, custom_option=option) for tile, stage, each, option in asked)
        found = [setting for setting in plain if legal(setting)]
        yield from found
        for tile, stage, *_, cluster, option in found:
            for swizzle, (parts, scheme) in grid(swizzles, [(1, 0), *splits]):
                changed = Setting(tile, stage, parts, scheme, swizzle, 0, cluster, option)
                if (swizzle or parts > 1) and legal(changed):
                    yield changed
        shapes = [shape for shape in INNER_SHAPES if found and legal(found[0]._replace(inner_shape=shape))]
        for each, shape in grid(found, shapes):
            if legal(changed := each._replace(inner_shape=shape)):
                yield changed

    def _judge(self, algorithm: Algorithm) -> Callable[[Setting], bool]:
        """Whether an algorithm is legal with a setting; only what differs from the last one is set anew."""
        operation, library = self.operation, self.operation.library
        tell = library.function(SETTABLE[Config])
        found, told = Found(), ctypes.byref(algorithm)
        held = [attribute.kind() for attribute in CONFIGURED.values()]
        ways = [
            (attribute.number, value, ctypes.byref(value), ctypes.sizeof(value))
            for attribute, value in zip(CONFIGURED.values(), held, strict=True)
        ]
        check, arguments = operation.question(algorithm, found)
        current: list[int | None] = [None] * len(held)

        def legal(setting: Setting) -> bool:
            if self.asked == self.most:
                raise _EnoughError
            self.asked += 1
            for place, value in enumerate(setting):
                if current[place] != value:
                    number, cell, address, size = ways[place]
                    cell.value = value
                    current[place] = value if tell(told, number, address, size) == 0 else None
                    if current[place] is None:
                        return False
            return check(*arguments) == 0 and found.workspace <= WORKSPACE

        return legal


_RANGES = [frozenset(values) for values in VALUES.values()]


def listing(operation: Operation, guesses: int | None, most: int = MOST_ASKED) -> Listing:
    """The algorithms for a product, the heuristic's guesses first; see `tilescout.spaces.loaders.Loader.listing`.

    Raises
    ------
    SpaceError
        If there are none.
    """
    started = time.perf_counter()
    found = guessed(operation, VALUES["guess"][-1] if guesses is None else guesses)
    census = Census(operation, most)
    if guesses is None:
        known = {row[1:] for row in found}
        found += [row for row in dict.fromkeys(census.algorithms()) if row[1:] not in known]
    rows = [row for row in found if all(value in values for value, values in zip(row, _RANGES, strict=True))]
    if not rows:
        raise SpaceError(f"cuBLASLt {operation.library.version} has algorithms whose numbers no knob here can have")
    return Listing(
        rows=rows,
        library=LIBRARY,
        version=operation.library.version,
        asked=census.asked,
        complete=census.asked < most and len(rows) == len(found),
        seconds=time.perf_counter() - started,
        census=CENSUS,
    )
