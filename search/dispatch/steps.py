"""How the time of a kernel grows with m: a staircase, whose steps are known before anything is measured.

A persistent grid computes tiles in rounds, the waves. A tile is computed whole, however few rows of it there are, and a
wave takes as long with one tile as with all. So a kernel's time rises where m fills another tile, and most where that
begins another wave.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.roofline import Roofline
from tilescout.search.dispatch.kernels import Kernels
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.hardware import clusters_at_once
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.tiling import Integers, ceil_div

BY_WAVES = 0.5
"""The share of a kernel's time that grows wave by wave; the rest grows tile by tile, as fuller waves share the L2, the
memory and the power. Of two products of our suites at 110 random m on an H200, m that were left out were served with
least regret at 0.4 to 0.7; at 0 and 1 the regret was half as much again, and twice as much."""

_GRANULE = 8
_FASTER = 2.0  # a true time may be so many times below the vendor's figures: results stay in the L2


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of kernels of one product. Columns are of shape [kernels].

    Attributes
    ----------
    rows
        Rows of D that the blocks of a cluster compute together: the time rises at multiples of it.
    across
        Clusters along n, and over the batch; so many more of each where clusters split k among them.
    at_once
        Clusters that run at a time.
    """

    rows: Integers
    across: Integers
    at_once: Integers

    @classmethod
    def of(cls, kernels: Kernels) -> "Steps":
        """The steps of some kernels.

        Raises
        ------
        SpaceError
            If their template does not tell how they divide the work.
        """

        def found(template: KernelTemplate, space: SearchSpace[GemmProblem]) -> Integers:
            tiling, problem = template.tiling(space.columns, space.problem), space.problem
            if tiling is None:
                raise SpaceError(f"{template.name} does not say how its kernels tile a product: nothing is known of m")
            across = ceil_div(ceil_div(problem.n, tiling.columns), tiling.cluster_n) * problem.batch
            # Parts of a tile that no cluster shares are units of their own.
            parts = 1 if tiling.split_in_cluster else tiling.split_k
            blocks = tiling.cluster_m * tiling.cluster_n * (tiling.split_k if tiling.split_in_cluster else 1)
            at_once = clusters_at_once(blocks, kernels.device)
            return np.stack([tiling.rows * tiling.cluster_m, across * parts, at_once], axis=1)

        rows, across, at_once = kernels.spread(found, kernels.problem.m).T
        return cls(rows, across, at_once)

    def units(self, sizes: Integers) -> Integers:
        """Units of work, a tile for every block of a cluster, of shape [kernels, sizes]."""
        return np.asarray(ceil_div(sizes[None, :], self.rows[:, None]) * self.across[:, None])

    def waves(self, sizes: Integers) -> Integers:
        """Rounds of the grid, of shape [kernels, sizes]."""
        return np.asarray(ceil_div(self.units(sizes), self.at_once[:, None]))

    def work(self, sizes: Integers) -> Floats:
        """The measure that the time grows with, in waves, of shape [kernels, sizes]; see `BY_WAVES`."""
        shares = self.units(sizes) / self.at_once[:, None]
        return BY_WAVES * self.waves(sizes) + (1 - BY_WAVES) * shares


@dataclass(frozen=True, eq=False)
class Grid:
    """The facts of kernels at every m that are known before anything is measured.

    Attributes
    ----------
    sizes
        Every m that is served: 1, 2, …
    legal
        Where the template allows a kernel, of shape [kernels, sizes].
    work
        See `Steps.work`.
    floor
        Log of a time in µs that no kernel goes below, by the roofline, of shape [sizes].
    """

    sizes: Integers
    legal: NDArray[np.bool_]
    work: Floats
    floor: Floats

    @classmethod
    def of(cls, kernels: Kernels, most_rows: int) -> "Grid":
        """The grid of some kernels for 1 to `most_rows` rows."""
        sizes = np.arange(1, most_rows + 1)
        # Rules speak of tiles and clusters, whose halves are multiples of 8 rows.
        groups, first, group = np.unique((sizes - 1) // _GRANULE, return_index=True, return_inverse=True)
        legal = np.stack([kernels.legal(int(m)) for m in sizes[first]], axis=1)
        assert len(groups) == legal.shape[1]
        one, two = (Roofline.of(kernels.at(m), kernels.device) for m in (1, 2))
        memory = one.memory_us + (sizes - 1) * (two.memory_us - one.memory_us)
        floor = np.log(np.maximum(one.compute_us * sizes, memory) / _FASTER)
        return cls(sizes, legal[:, group], Steps.of(kernels).work(sizes), floor)

    def corners(self) -> list[int]:
        """The first and the last m that each kernel is legal for, in rising order."""
        legal = self.legal[self.legal.any(axis=1)]
        last = len(self.sizes) - 1 - legal[:, ::-1].argmax(axis=1)
        return sorted({int(m) for m in self.sizes[np.concatenate([legal.argmax(axis=1), last])]})

    def at(self, sizes: Integers) -> "Grid":
        """The grid at some m alone, in rising order."""
        places = np.searchsorted(self.sizes, sizes)
        return Grid(self.sizes[places], self.legal[:, places], self.work[:, places], self.floor[places])

    def take(self, rows: Sequence[int]) -> "Grid":
        """The grid of some of the kernels."""
        kept = list(rows)
        return Grid(self.sizes, self.legal[kept], self.work[kept], self.floor)
