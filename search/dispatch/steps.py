"""How the time of a kernel grows with m: a staircase, whose steps are known before anything is measured.

A persistent grid computes tiles in rounds, the waves. A tile is computed whole, however few rows of it there are, and a
wave takes as long with one tile as with all. So a kernel's time rises where m fills another tile, and most where that
begins another wave. The library has such steps too, and others where it runs another kernel: its heuristic names that
for every m without a launch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.roofline import Roofline
from tilescout.search.dispatch.kernels import Kernels
from tilescout.search.engines.library_candidates import library_of
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.hardware import clusters_at_once
from tilescout.spaces.knobs import Configuration
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
            at_once = clusters_at_once(tiling.blocks, kernels.device)
            return np.stack([tiling.rows * tiling.cluster_m, across * tiling.parts_apart, at_once], axis=1)

        rows, across, at_once = kernels.of_each(found, kernels.problem.m).T
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


@dataclass(frozen=True)
class LibraryKernels:
    """The kernels that the library names for every m: what it runs of its own accord.

    Attributes
    ----------
    kernels
        Their configurations.
    starts, numbers
        The first m of every run of m with one kernel, in rising order from 1, and the number of that kernel.
    """

    kernels: tuple[Configuration, ...]
    starts: tuple[int, ...]
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, template: KernelTemplate, rows: Sequence[Sequence[int | str]]) -> "LibraryKernels":
        """The kernels of a library's template by the values of their knobs, which it named for 1, 2, … rows."""
        numbers: dict[tuple[int | str, ...], int] = {}
        which = np.array([numbers.setdefault(tuple(row), len(numbers)) for row in rows], dtype=np.int64)
        starts = np.flatnonzero(np.diff(which, prepend=-1))
        names = [knob.name for knob in template.knobs]
        kernels = tuple(Configuration(tuple(zip(names, row, strict=True))) for row in numbers)
        return cls(kernels, tuple((starts + 1).tolist()), tuple(which[starts].tolist()))

    def at(self, sizes: Integers) -> Integers:
        """The number of the kernel that the library runs at each of some m."""
        return np.array(self.numbers, dtype=np.int64)[np.searchsorted(self.starts, sizes, side="right") - 1]

    def check(self, most_rows: int) -> None:
        """Refuse runs that are in no rising order from 1, or of kernels that there are not.

        Raises
        ------
        ValueError
            If there is one.
        """
        rising = all(before < after for before, after in pairwise(self.starts))
        if not (self.starts and self.starts[0] == 1 and self.starts[-1] <= most_rows and rising):
            raise ValueError("the runs of the library's kernels are in no rising order from 1")
        if len(self.numbers) != len(self.starts) or not {*self.numbers} <= {*range(len(self.kernels))}:
            raise ValueError("a run is of a kernel of the library that is not there")

    def to_dict(self) -> dict[str, Any]:
        """A mapping as JSON has it, that `from_dict` reads back."""
        kernels = [dict(kernel) for kernel in self.kernels]
        return {"kernels": kernels, "starts": list(self.starts), "numbers": list(self.numbers)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "LibraryKernels":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is something else.
        """
        found = cls(tuple(map(Configuration.of, record["kernels"])), tuple(record["starts"]), tuple(record["numbers"]))
        if any(type(each) is not int for each in (*found.starts, *found.numbers)):
            raise TypeError("a run of the library's kernels has something else than whole numbers")
        return found


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
    library
        The number of the kernel that the library names, of shape [sizes]; None if it was not asked.
    library_work
        What the library's time grows with: the work of that kernel, or m, of shape [sizes].
    """

    sizes: Integers
    legal: NDArray[np.bool_]
    work: Floats
    floor: Floats
    library: Integers | None
    library_work: Floats

    @classmethod
    def of(cls, kernels: Kernels, most_rows: int, named: LibraryKernels | None = None) -> "Grid":
        """The grid of some kernels for 1 to `most_rows` rows, and what the library names there.

        Raises
        ------
        SpaceError
            If a template does not tell how its kernels divide the work, the library's are none of its template, or
            there is no kernel, as where large tiles are legal for none of so few rows.
        """
        if not len(kernels):
            raise SpaceError(f"no candidate is legal for 1 to {most_rows} rows: take more, or another space")
        sizes = np.arange(1, most_rows + 1)
        # Rules speak of tiles and clusters, which are multiples of 8 rows, and of halves of them: where one ends within
        # 8 rows, as of a tile of 24, the kernel is legal from there on, and is taken to be so from the next 8 on.
        groups, first, group = np.unique((sizes - 1) // _GRANULE, return_index=True, return_inverse=True)
        legal = np.stack([kernels.legal(int(m)) for m in sizes[first]], axis=1)
        assert len(groups) == legal.shape[1]
        one, two = (Roofline.of(kernels.at(m), kernels.device) for m in (1, 2))
        memory = one.memory_us + (sizes - 1) * (two.memory_us - one.memory_us)
        floor = np.log(np.maximum(one.compute_us * sizes, memory) / _FASTER)
        work = Steps.of(kernels).work(sizes)
        template = library_of(kernels.templates[0]) if named is not None else None
        if named is None or template is None:
            return cls(sizes, legal[:, group], work, floor, None, sizes.astype(np.float64))
        names = {knob.name for knob in template.knobs}
        if any({*each} != names for each in named.kernels):
            raise SpaceError(f"a kernel of the library has other knobs than {template.name}")
        which = named.at(sizes)
        theirs = Steps.of(Kernels.of(template, kernels.device, kernels.problem, named.kernels)).work(sizes)
        return cls(sizes, legal[:, group], work, floor, which, theirs[which, sizes - 1])

    def without_library(self) -> "Grid":
        """The same where nothing is known of which kernel the library runs."""
        return replace(self, library=None, library_work=self.sizes.astype(np.float64))

    def corners(self) -> list[int]:
        """The first and the last m that each kernel is legal for, in rising order."""
        legal = self.legal[self.legal.any(axis=1)]
        last = len(self.sizes) - 1 - legal[:, ::-1].argmax(axis=1)
        return sorted({int(m) for m in self.sizes[np.concatenate([legal.argmax(axis=1), last])]})

    def at(self, sizes: Integers) -> "Grid":
        """The grid at some m alone, in rising order."""
        places = np.searchsorted(self.sizes, sizes)
        return Grid(
            self.sizes[places],
            self.legal[:, places],
            self.work[:, places],
            self.floor[places],
            None if self.library is None else self.library[places],
            self.library_work[places],
        )

    def take(self, rows: Sequence[int]) -> "Grid":
        """The grid of some of the kernels."""
        kept = list(rows)
        return replace(self, legal=self.legal[kept], work=self.work[kept])
