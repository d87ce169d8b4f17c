"""Tables of grouped products, as what chooses among their kernels takes them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.dispatch.grouped_bundling import MeasuredTable, grouped_dispatched
from tilescout.search.dispatch.grouped_times import GroupedTimes
from tilescout.search.export.from_studies import GroupedDispatched
from tilescout.search.export.grouped.dispatch import any_tokens
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TableError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90 import TEMPLATE as NARROW
from tilescout.spaces.grouped_streamk_sm90 import TEMPLATE as WIDE
from tilescout.spaces.grouped_streamk_sm90 import widened
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import NONE_NAMED, Named, find_template


def grouped_times(table: Table, named: Named = NONE_NAMED) -> list[GroupedTimes]:
    """The times of each product of a table, in the order in which it has them.

    Raises
    ------
    TableError
        If a problem of it is no grouped product, or a product has no times.
    """
    products: dict[GroupedProblem, list[GroupedProblem]] = {}
    for problem in table.problems:
        if not isinstance(problem, GroupedProblem):
            raise TableError(f"table {table.path}: {problem} is no grouped product")
        products.setdefault(any_tokens(problem), []).append(problem)
    return [_times_of(table, problems, named) for problems in products.values()]


def _times_of(table: Table, problems: list[GroupedProblem], named: Named) -> GroupedTimes:
    numbers: dict[Configuration, int] = {}
    timed: list[tuple[int, int, float, float]] = []
    for at, problem in enumerate(problems):
        for row in map(int, table.rows(problem)):
            measured, beside_us = table.measurement(row), table.card.baselines[problem].library_us
            number = numbers.setdefault(table.configuration(row), len(numbers))
            if measured.timing is not None:
                timed.append((number, at, measured.timing.ratio, measured.timing.ratio_high))
            elif measured.pilot_us is not None:  # too slow to be timed: a rough time, which proves nothing
                timed.append((number, at, measured.pilot_us / beside_us, np.inf))
    missing = set(range(len(problems))) - {at for _, at, _, high in timed if high < np.inf}
    if missing:
        raise TableError(f"table {table.path}: no kernel of {problems[min(missing)]} was timed")
    ratio = np.full((len(numbers), len(problems)), np.inf)
    high = ratio.copy()
    for number, at, value, end in timed:
        ratio[number, at], high[number, at] = value, end
    library_us = np.array([table.card.baselines[problem].library_us for problem in problems])
    template, device = find_template(table.card.space, named), find_device(table.card.device)
    return GroupedTimes(template, device, tuple(problems), library_us, tuple(numbers), ratio, high)


def joined(products: Sequence[GroupedTimes]) -> list[GroupedTimes]:
    """The same times, those of one product beside each other, in the order in which products come first.

    Kernels of ``grouped_gemm_sm90`` become those of ``grouped_streamk_sm90``, which has them too, if any are of that.

    Raises
    ------
    SpaceError
        If two have a product in common, but not the space.
    """
    wide = any(each.template.name == WIDE.name for each in products)
    found: dict[GroupedProblem, GroupedTimes] = {}
    for each in map(_widened, products) if wide else products:
        found[each.product] = found[each.product].beside(each) if each.product in found else each
    return list(found.values())


def _widened(times: GroupedTimes) -> GroupedTimes:
    if times.template.name != NARROW.name:
        return times
    return replace(times, template=find_template(WIDE.name), configurations=tuple(map(widened, times.configurations)))


def grouped_of_tables(
    tables: Sequence[Table],
    store: ArtifactStore,
    named: Named = NONE_NAMED,
    standby: bool = CompileOptions.standby,
) -> list[GroupedDispatched]:
    """The ranges of tokens of each product of some tables, with their kernels; tables may share products and problems.

    Raises
    ------
    TableError
        If a table is of something else, or a product was measured in two ways.
    ExportError
        If the kernels can't be exported.
    StoreError, ArtifactError
        If an artifact can't be written or is damaged.
    """
    wide = any(table.card.space == WIDE.name for table in tables)
    sources: dict[GroupedProblem, MeasuredTable] = {}
    measured = [(table, times) for table in tables for times in grouped_times(table, named)]
    for table, times in measured:
        source, before = _source(table, wide), sources.get(times.product)
        if before is not None:
            if replace(before, name=source.name) != source:
                raise TableError(
                    f"table {table.path}: {times.product} was measured {_differing(source, before)} than in "
                    f"{before.name}: leave one of them out, or record it again"
                )
            source = replace(source, name=f"{before.name}, {source.name}")
        sources[times.product] = source
    products = joined([times for _, times in measured])
    return grouped_dispatched([(sources[times.product], times) for times in products], store, named, standby)


def _differing(source: MeasuredTable, before: MeasuredTable) -> str:
    """In which way two tables of a product differ, in words."""
    if (source.device, source.measured_by) != (before.device, before.measured_by):
        return "on another GPU"
    if source.space != before.space:
        return f"in another space, {source.space},"
    return "from other kernel sources" if source.space_hash != before.space_hash else "with other versions"


def _source(table: Table, wide: bool) -> MeasuredTable:
    card = table.card
    space, space_hash = card.space, card.source_hash
    if wide and (space, space_hash) == (NARROW.name, NARROW.source_hash):
        space, space_hash = WIDE.name, WIDE.source_hash
    return MeasuredTable(
        name=table.path.name,
        space=space,
        space_hash=space_hash,
        device=card.device,
        measured_by=card.product,
        versions=card.versions,
    )
