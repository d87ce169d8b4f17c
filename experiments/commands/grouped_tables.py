"""Tables of grouped products, as what chooses among their kernels takes them."""

import numpy as np

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.dispatch.grouped import GroupedTimes
from tilescout.search.dispatch.grouped_bundling import Source, grouped_dispatched
from tilescout.search.export.from_studies import GroupedDispatched
from tilescout.search.export.grouped.dispatch import any_tokens
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.gated import GatedProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import NONE_NAMED, Named


def grouped_times(table: Table) -> list[GroupedTimes]:
    """The times of each product of a table, in the order in which it has them.

    Raises
    ------
    TableError
        If a problem of it is no grouped product alone, or a product has no times.
    """
    products: dict[GroupedProblem, list[GroupedProblem]] = {}
    for problem in table.problems:
        if not isinstance(problem, GroupedProblem) or isinstance(problem, GatedProblem):
            raise TableError(f"table {table.path}: {problem} is no grouped product alone: nothing exports it yet")
        products.setdefault(any_tokens(problem), []).append(problem)
    return [_times_of(table, problems) for problems in products.values()]


def _times_of(table: Table, problems: list[GroupedProblem]) -> GroupedTimes:
    numbers: dict[Configuration, int] = {}
    timed: list[tuple[int, int, float, float]] = []
    for at, problem in enumerate(problems):
        for row in map(int, table.rows(problem)):
            measured, library_us = table.measurement(row), table.card.baselines[problem].library_us
            number = numbers.setdefault(table.configuration(row), len(numbers))
            if measured.timing is not None:
                timed.append((number, at, measured.timing.ratio, measured.timing.ratio_high))
            elif measured.pilot_us is not None:  # too slow to be timed: a rough time, which proves nothing
                timed.append((number, at, measured.pilot_us / library_us, np.inf))
    missing = set(range(len(problems))) - {at for _, at, _, high in timed if high < np.inf}
    if missing:
        raise TableError(f"table {table.path}: no kernel of {problems[min(missing)]} was timed")
    ratio = np.full((len(numbers), len(problems)), np.inf)
    high = ratio.copy()
    for number, at, value, end in timed:
        ratio[number, at], high[number, at] = value, end
    return GroupedTimes(tuple(problems), tuple(numbers), ratio, high)


def grouped_of_table(table: Table, store: ArtifactStore, named: Named = NONE_NAMED) -> list[GroupedDispatched]:
    """The ranges of tokens of each product of a table, with their kernels.

    Raises
    ------
    TableError
        If the table is of something else.
    ExportError
        If the kernels can't be exported.
    StoreError, ArtifactError
        If an artifact can't be written or is damaged.
    """
    card = table.card
    source = Source(
        name=table.path.name,
        space=card.space,
        space_hash=card.source_hash,
        device=card.device,
        measured_by=card.product,
        versions=card.versions,
    )
    return grouped_dispatched(source, grouped_times(table), store, named)
