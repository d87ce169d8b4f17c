"""The part of a search space that a table has measurements of."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.measurement import Measurement
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import DeviceError, TableError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.texts import number_of


@dataclass(frozen=True, eq=False)
class RecordedSpace:
    """The configurations of a problem that a table has and that are still legal, failed ones too.

    Attributes
    ----------
    table
        The recorded measurements.
    space
        The configurations.
    rows
        The table's row of each configuration of `space`, of shape [configurations].
    dropped
        Rows that are left out because their configuration is no longer legal.
    """

    table: Table
    space: SearchSpace
    rows: NDArray[np.int64]
    dropped: int

    @classmethod
    def of(cls, table: Table, template: KernelTemplate, problem: Problem) -> "RecordedSpace":
        """The configurations of a problem; `template` is of the kernels that were measured.

        Raises
        ------
        TableError
            If the table is of another space or an unknown device, or holds nothing of the problem that is still legal.
        ProblemError, SpaceError
            If the template can no longer compute the problem, or not on this device.
        """
        table.check_space(template)
        rows = table.rows(problem)
        codes = table.codes(template.knobs, rows)
        space = template.space_of(codes, problem, recorded_device(table, template))
        if space is None:
            raise TableError(
                f"table {table.path}: none of its {number_of(len(rows), 'configuration')} for {problem} is legal in "
                f"{template.name} now; record it again"
            )
        found = space.find(codes)
        legal = found >= 0
        in_order = rows[legal][np.argsort(found[legal])]  # the order of `space`
        return cls(table, space, in_order, int(np.count_nonzero(~legal)))

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.space.problem

    @property
    def library_us(self) -> float:
        """The library's steady time on the problem, in µs, as it was recorded."""
        return self.table.card.baselines[self.problem].library_us

    @property
    def default(self) -> Configuration:
        """The recorded default: the configuration that is run without any search."""
        return self.table.card.baselines[self.problem].default

    def measurement(self, index: int) -> Measurement:
        """The recorded measurement of the configuration with this index in `space`."""
        return self.table.measurement(int(self.rows[index]))


def recorded_device(table: Table, template: KernelTemplate) -> Device:
    """The device that a table was recorded on.

    Raises
    ------
    TableError
        If it is unknown.
    """
    try:
        return template.device(table.card.device)
    except DeviceError as error:
        raise TableError(f"table {table.path}: recorded on an {error}") from error
