"""The finite set of legal configurations of a kernel, enumerated once as columns."""

from collections.abc import Mapping, Sequence
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

Indices = NDArray[np.int64]


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
        self.codes = self._enumerate() if codes is None else codes
        if len(self.codes) == 0:
            raise SpaceError(f"{self.name}: no legal configuration is left for {self.problem} on {self.device.name}")
        self.codes.setflags(write=False)
        # The place of each row in the full grid, ascending.
        self._positions = np.ravel_multi_index(tuple(self.codes.T.astype(np.int64)), self.shape)

    def _enumerate(self) -> NDArray[np.int16]:
        """The codes of all legal configurations: knob after knob, each rule applied once its knobs are there."""
        codes = np.zeros((1, 0), dtype=np.int16)
        waiting = list(self.constraints)
        for count, size in enumerate(self.shape, start=1):
            wider = np.empty((len(codes), size, count), dtype=np.int16)
            wider[:, :, :-1] = codes[:, None]
            wider[:, :, -1] = np.arange(size)
            codes = wider.reshape(-1, count)
            names = {knob.name for knob in self.knobs[:count]}
            ready = [rule for rule in waiting if names.issuperset(rule.knobs)]
            if not ready:
                continue
            waiting = [rule for rule in waiting if rule not in ready]
            columns = self._columns(codes)
            legal = np.ones(len(codes), dtype=np.bool_)
            for rule in ready:
                legal &= self._holds(rule, columns, len(codes))
            codes = codes[legal]
        if waiting:
            unknown = sorted({name for rule in waiting for name in rule.knobs} - names)
            raise SpaceError(f"{self.name}: rule {waiting[0].name} looks at knobs that there are not: {unknown}")
        return codes

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
        """The codes, of shape [rows, knobs], of rows of knob values that the knobs can have."""
        columns = []
        for knob, column in zip(knobs, zip(*rows, strict=True), strict=True):
            values = np.array(knob.values)
            order = np.argsort(values)
            columns.append(order[np.searchsorted(values, np.array(column), sorter=order)])
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
        return f"SearchSpace({self.name}, {self.problem}, {self.device.name}: {len(self):,} configurations)"

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
        """The space that holds only the given configurations."""
        rows = np.unique(np.asarray(indices, dtype=np.int64))
        kept, what = self.codes[rows], (self.problem, self.device)
        return SearchSpace(self.name, self.knobs, self.constraints, *what, kept, self.template)

    def _columns(self, codes: NDArray[np.int16]) -> Columns:
        return {
            knob.name: np.array(knob.values)[codes[:, axis]] for axis, knob in enumerate(self.knobs[: codes.shape[1]])
        }
