"""A recorded table stands in for the GPU."""

import numpy as np

from tilescout.search.engines.evaluator import Dataset, Evaluator, Provenance
from tilescout.search.measure.measurement import Measurement
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import DeviceError, TableError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate


class ReplayEvaluator(Evaluator):
    """Answers from a table, at once, with the recorded measurement and the seconds that it cost then.

    Its space holds the configurations that the table has for the problem, failed ones too. Its capacity is 1: nothing
    is won by working ahead of a table, and so a sampler has seen every earlier outcome when it proposes the next
    configuration. The same seed then gives the same trials, on any machine.

    Parameters
    ----------
    table
        The recorded measurements.
    template
        The kernels that were measured.
    problem
        The problem to answer for.

    Attributes
    ----------
    table
        The recorded measurements.
    rows
        The table's row of each configuration of `space`, of shape [configurations].
    dropped
        Rows that are left out because their configuration is no longer legal.

    Raises
    ------
    TableError
        If the table is of another space or an unknown device, or holds nothing of the problem that is still legal.
    """

    capacity = 1

    def __init__(self, table: Table, template: KernelTemplate, problem: Problem) -> None:
        table.check_space(template)
        rows = table.rows(problem)
        try:
            self.device = template.device(table.card.device)
        except DeviceError as error:
            raise TableError(f"table {table.path}: recorded on an {error}") from error
        self.library = table.card.library
        whole = template.space(problem, self.device)
        found = whole.find(table.codes(whole.knobs)[rows])
        legal = found >= 0
        self.dropped = int(np.count_nonzero(~legal))
        if not legal.any():
            raise TableError(
                f"table {table.path}: none of its {len(rows)} configurations for {problem} is legal in "
                f"{template.name} now; record it again"
            )
        self.space = whole.subset(found[legal])
        self.rows = rows[legal][np.argsort(found[legal])]  # the order of `space`
        self.table = table
        self._problem = problem
        self._pending: int | None = None
        self.provenance = _provenance(table, template)

    def submit(self, index: int, incumbent: float | None = None) -> None:
        """Ask for the recorded measurement of the configuration with this index in `space`, however slow it is."""
        if self._pending is not None:
            raise RuntimeError("a replay takes one configuration at a time: wait for the last one first")
        if not 0 <= index < len(self.space):
            raise IndexError(f"no configuration {index}, the space holds {len(self.space)}")
        self._pending = index

    def wait(self) -> list[tuple[int, Measurement]]:
        """The outcome of the configuration that was submitted."""
        if self._pending is None:
            raise RuntimeError("there is nothing to wait for: submit a configuration first")
        index, self._pending = self._pending, None
        return [(index, self.table.measurement(int(self.rows[index])))]

    def library_us(self) -> float:
        """The library's steady time on the problem, in µs, as it was recorded."""
        return self.table.card.baselines[self._problem].library_us

    def close(self) -> None:
        """Forget a configuration that was submitted."""
        self._pending = None


def dataset_of(table: Table) -> Dataset:
    """A table as a tracker lists it."""
    columns = {column.name: str(column.type) for column in table.data.schema}
    return Dataset(table.path.name, str(table.path.absolute()), table.card.sha256, len(table), columns)


def _provenance(table: Table, template: KernelTemplate) -> Provenance:
    card = table.card
    origin = f"replayed from {table.path.name}, recorded on {card.product} on {card.recorded}; no GPU was used"
    stale = f"; the source of {template.name} has changed since" if table.stale_for(template) else ""
    return Provenance(
        kind="replay",
        description=origin + stale,
        versions={**card.versions, "driver": card.driver, "protocol": card.protocol},
        table=dataset_of(table),
    )
