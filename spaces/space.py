"""The finite set of legal configurations of a kernel, enumerated once as columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.description import Describes
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.faults import described
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.problems import P, P_co
from tilescout.spaces.texts import number_of

Indices = NDArray[np.int64]

_MOST = 1 << 26  # configurations that are laid out: each has two bytes a knob, and features have eight for each of many
_FEW, _TIMES = 1 << 16, 4
"""Combinations may be so many more than the rows that have them, or so many times as many: each takes a byte."""


class SearchSpace(Generic[P_co]):
    """The legal configurations of a kernel for a problem on a device.

    A configuration is named by its index, its row in `codes` and `columns`. A code is the position of a value among its
    knob's `values`. Rows are in lexicographic order of codes.

    Parameters
    ----------
    name
        The kernel's name.
    knobs
        The parameters, in the order of the columns.
    constraints
        The rules that a configuration must satisfy.
    problem, device
        The problem and the device, on which the rules may depend.
    codes
        Legal configurations, of shape [configurations, knobs], in lexicographic order; None enumerates them all.
    template
        The template that made the space, and knows what its configurations do; None if only the name is known.

    Raises
    ------
    SpaceError
        If a rule fails or no configuration obeys all, or there are too many to enumerate.
    """

    def __init__(
        self,
        name: str,
        knobs: Sequence[Knob],
        constraints: Sequence[Constraint[P_co]],
        problem: P_co,
        device: Device,
        codes: NDArray[np.int16] | None = None,
        template: Describes | None = None,
    ) -> None:
        self.name = name
        self.template = template
        self.knobs = tuple(knobs)
        self.constraints = tuple(constraints)
        self.problem = problem
        self.device = device
        self.shape = tuple(len(knob.values) for knob in self.knobs)
        if math.prod(self.shape) > np.iinfo(np.int64).max:
            raise SpaceError(f"{self.name}: the values of its {len(self.knobs)} knobs have 2**63 combinations or more")
        self.codes = self._enumerate() if codes is None else codes
        if len(self.codes) == 0:
            raise SpaceError(f"{self.name}: no legal configuration is left for {self.problem} on {self.device.name}")
        self.codes.setflags(write=False)
        # The place of each row in the full grid, ascending.
        self._positions = np.ravel_multi_index(tuple(self.codes.T.astype(np.int64)), self.shape)

    def _enumerate(self) -> NDArray[np.int16]:
        """The codes of all legal configurations: knob after knob, each rule applied once its knobs are there."""
        grid, names = _Grid([], 1), set[str]()
        waiting = list(self.constraints)
        for knob in self.knobs:
            grid, names = grid.wider(len(knob.values)), names | {knob.name}
            if len(grid) > _MOST:
                raise SpaceError(
                    f"{self.name}: the rules leave too many configurations to enumerate, {len(grid):,} of the first "
                    f"{len(names)} knobs: {_MOST:,} at most; knobs that rules exclude the most with come first"
                )
            ready = [rule for rule in waiting if names.issuperset(rule.knobs)]
            waiting = [rule for rule in waiting if rule not in ready]
            for rule in ready:
                grid = grid.take(self._kept(rule, grid))
        if waiting:
            unknown = sorted({name for rule in waiting for name in rule.knobs} - names)
            raise SpaceError(f"{self.name}: rule {waiting[0].name} looks at knobs that there are not: {unknown}")
        return grid.codes()

    def _kept(self, rule: Constraint[P_co], grid: "_Grid") -> Indices:
        """The rows of a grid of the first knobs that obey a rule.

        It is asked once for each combination of its knobs that there is: other knobs only repeat these.
        """
        axes = [axis for axis, knob in enumerate(self.knobs[: grid.axes]) if knob.name in rule.knobs]
        sizes = [self.shape[axis] for axis in axes]
        if not axes or math.prod(sizes) > _TIMES * len(grid) + _FEW:
            return self._kept_of_all(rule, grid)
        place = np.zeros(len(grid), dtype=np.int32)
        for axis, size in zip(axes, sizes, strict=True):
            place *= size
            place += grid.column(axis)
        allowed = np.zeros(math.prod(sizes), dtype=np.bool_)
        allowed[place] = True
        there = np.flatnonzero(allowed)
        codes = np.unravel_index(there, sizes)
        columns = {
            self.knobs[axis].name: np.array(self.knobs[axis].values)[of_knob]
            for axis, of_knob in zip(axes, codes, strict=True)
        }
        try:
            allowed[there] = self._holds(rule, columns, len(there))
        except SpaceError as error:
            if not isinstance(error.__cause__, KeyError):
                raise
            return self._kept_of_all(rule, grid)  # it looks at a knob that it does not name
        return np.flatnonzero(allowed[place])

    def _kept_of_all(self, rule: Constraint[P_co], grid: "_Grid") -> Indices:
        """The same, where the rule is asked for every row, with all knobs that there are."""
        return np.flatnonzero(self._holds(rule, self._columns(grid.codes()), len(grid)))

    def _holds(self, rule: Constraint[P_co], columns: Columns, count: int) -> Mask:
        """The mask of a rule, whose predicate may be code of others."""
        try:
            mask = np.asarray(rule.holds(columns, self.problem, self.device))
        except Exception as error:
            raise SpaceError(f"{self.name}: the rule {rule.name} failed: {described(error)}") from error
        if mask.shape != (count,) or mask.dtype != np.bool_:
            raise SpaceError(
                f"{self.name}: the rule {rule.name} gave {mask.dtype} of shape {mask.shape}, expected a mask: bool of "
                f"shape ({count},)"
            )
        return mask

    @staticmethod
    def of_codes(name: str, knobs: Sequence[Knob], codes: ArrayLike, problem: P, device: Device) -> "SearchSpace[P]":
        """The space of given configurations, of shape [configurations, knobs], with no rules and no grid enumerated.

        The rows are put in lexicographic order; equal ones count once.
        """
        rows = np.unique(np.asarray(codes, dtype=np.int16).reshape(-1, len(knobs)), axis=0)
        return SearchSpace(name, knobs, (), problem, device, rows)

    @staticmethod
    def codes_of(knobs: Sequence[Knob], rows: Sequence[Sequence[Value]]) -> NDArray[np.int16]:
        """The codes, of shape [rows, knobs], of rows of knob values.

        Raises
        ------
        SpaceError
            If a value is none of its knob's.
        """
        columns = []
        for knob, column in zip(knobs, zip(*rows, strict=True), strict=True):
            values, wanted = np.array(knob.values), np.array(column)
            order = np.argsort(values)
            codes = order[np.minimum(np.searchsorted(values, wanted, sorter=order), len(values) - 1)]
            if len(others := wanted[values[codes] != wanted]):
                raise knob.refusal(others[0])
            columns.append(codes)
        return np.stack(columns, axis=1).astype(np.int16)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> Configuration:
        codes = self.codes[index]
        return Configuration(
            tuple((knob.name, knob.values[code]) for knob, code in zip(self.knobs, codes, strict=True))
        )

    def __contains__(self, configuration: object) -> bool:
        try:
            return isinstance(configuration, Mapping) and self.find(self.code(configuration)) >= 0
        except SpaceError:
            return False

    def __repr__(self) -> str:
        return f"SearchSpace({self.name}, {self.problem}, {self.device.name}: {number_of(len(self), 'configuration')})"

    @cached_property
    def columns(self) -> Columns:
        """Knob values, each an array of shape [configurations]."""
        return self._columns(self.codes)

    @cached_property
    def features(self) -> NDArray[np.float64]:
        """Codes with each knob scaled to [0, 1], of shape [configurations, knobs]; distances are taken between them."""
        return self.scale(self.codes)

    def scale(self, codes: ArrayLike) -> NDArray[np.float64]:
        """Codes of shape [..., knobs] scaled to [0, 1]; a knob of one value becomes 0."""
        scaled: NDArray[np.float64] = np.asarray(codes, dtype=np.float64) / np.maximum(np.array(self.shape) - 1, 1)
        return scaled

    def code(self, configuration: Mapping[str, Value]) -> NDArray[np.int16]:
        """The codes of a configuration, of shape [knobs], legal or not.

        Raises
        ------
        SpaceError
            If a knob is unknown, missing or has a value that it can't have.
        """
        names = [knob.name for knob in self.knobs]
        unknown = sorted(set(configuration) - set(names))
        missing = [name for name in names if name not in configuration]
        if unknown or missing:
            fault = f"unknown knob {unknown[0]!r}" if unknown else f"knob {missing[0]} has no value"
            raise SpaceError(f"{self.name}: {fault}, the knobs are {', '.join(names)}")
        return np.array([knob.code(configuration[knob.name]) for knob in self.knobs], dtype=np.int16)

    def find(self, codes: ArrayLike) -> Any:
        """Indices of configurations given as codes [..., knobs]; -1 where a combination is not in the space."""
        codes = np.asarray(codes, dtype=np.int64)
        inside = ((codes >= 0) & (codes < np.array(self.shape))).all(axis=-1)
        position = np.ravel_multi_index(tuple(np.moveaxis(codes, -1, 0)), self.shape, mode="clip")
        row = np.searchsorted(self._positions, position)
        row = np.minimum(row, len(self._positions) - 1)
        return np.where(inside & (self._positions[row] == position), row, -1)

    def index(self, configuration: Mapping[str, Value]) -> int:
        """The index of a configuration.

        Raises
        ------
        SpaceError
            If it is not in the space, with the rules that it breaks and their reasons.
        """
        found = int(self.find(self.code(configuration)))
        if found < 0:
            broken = self.violations(configuration)
            why = "; ".join(f"{rule.name}: {rule.reason}" for rule in broken) or "it was left out of this subset"
            raise SpaceError(f"{self.name}: not a legal configuration ({why}): {Configuration.of(configuration)}")
        return found

    def violations(self, configuration: Mapping[str, Value]) -> tuple[Constraint[P_co], ...]:
        """The rules that a configuration breaks, in order."""
        columns = self._columns(self.code(configuration)[None])
        return tuple(rule for rule in self.constraints if not self._holds(rule, columns, 1)[0])

    def neighbours(self, index: int) -> Indices:
        """Indices of the legal configurations that differ from one in one knob by one step."""
        steps = np.concatenate([np.eye(len(self.knobs), dtype=np.int64), -np.eye(len(self.knobs), dtype=np.int64)])
        found: Indices = self.find(self.codes[index] + steps)
        return np.sort(found[found >= 0])

    def nearest(self, codes: ArrayLike, among: Indices) -> int:
        """The one of `among` closest to `codes` [knobs], by the sum of scaled distances; the first of equals."""
        distance = np.abs(self.features[among] - self.scale(codes)).sum(axis=1)
        return int(among[np.argmin(distance)])

    def sample(self, count: int, generator: np.random.Generator) -> Indices:
        """Indices of `count` different configurations, drawn uniformly; all of them if there are fewer."""
        return generator.permutation(len(self))[:count]

    def subset(self, indices: ArrayLike) -> "SearchSpace[P_co]":
        """The space that holds only the configurations with these indices.

        Raises
        ------
        SpaceError
            If there are none, or something else is given, such as a mask or the -1 by which `find` tells of a
            configuration that is not in the space.
        """
        given = np.asarray(indices)
        if given.size and not np.issubdtype(given.dtype, np.integer):
            advice = "; `numpy.flatnonzero(mask)` gives those of a mask" if given.dtype == np.bool_ else ""
            raise SpaceError(f"{self.name}: a subset takes indices, integers, not {given.dtype}{advice}")
        rows = np.unique(given).astype(np.int64)
        if len(wrong := rows[(rows < 0) | (rows >= len(self))]):
            last = len(self) - 1
            raise SpaceError(f"{self.name}: no configuration has the index {wrong[0]}, allowed are 0 to {last}")
        kept, what = self.codes[rows], (self.problem, self.device)
        return SearchSpace(self.name, self.knobs, self.constraints, *what, kept, self.template)

    def _columns(self, codes: NDArray[np.int16]) -> Columns:
        return {
            knob.name: np.array(knob.values)[codes[:, axis]] for axis, knob in enumerate(self.knobs[: codes.shape[1]])
        }


@dataclass(frozen=True)
class _Grid:
    """Codes of the first knobs of a space. Those of the last one are laid out once some rows are taken.

    Attributes
    ----------
    columns
        Of each knob that is laid out, of shape [rows].
    rows
        How many they are.
    last
        Values of one knob more, each of which every row has; 0 where there is none more.
    """

    columns: Sequence[NDArray[np.int16]]
    rows: int
    last: int = 0

    def __len__(self) -> int:
        return self.rows * (self.last or 1)

    @property
    def axes(self) -> int:
        """How many knobs there are."""
        return len(self.columns) + bool(self.last)

    def wider(self, size: int) -> "_Grid":
        """The grid with another knob, of so many values."""
        grid = self.take(np.arange(len(self))) if self.last else self
        return _Grid(grid.columns, grid.rows, size)

    def column(self, axis: int) -> NDArray[np.int16]:
        """The codes of a knob, of shape [rows * values of the last]."""
        if axis == len(self.columns):
            return np.tile(np.arange(self.last, dtype=np.int16), self.rows)
        return np.repeat(self.columns[axis], self.last) if self.last else self.columns[axis]

    def take(self, kept: Indices) -> "_Grid":
        """Some of its rows, laid out."""
        if not self.last:
            return _Grid([column[kept] for column in self.columns], len(kept))
        row, code = np.divmod(kept, self.last)
        return _Grid([*(column[row] for column in self.columns), code.astype(np.int16)], len(kept))

    def codes(self) -> NDArray[np.int16]:
        """All codes, of shape [rows, knobs]."""
        columns = [self.column(axis) for axis in range(self.axes)]
        return np.stack(columns, axis=1) if columns else np.zeros((1, 0), dtype=np.int16)
