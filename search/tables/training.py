"""From recorded tables to what a cost model learns from."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.blend import BlendModel, BlendOptions
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import binary_features, space_features
from tilescout.costmodel.persistence import ModelCard, TrainingTable
from tilescout.search.measure.protocol import Objective
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device, siblings
from tilescout.spaces.errors import TableError
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.templates import KernelTemplate

BINARY = ("registers", "spill_bytes", "instructions")
"""Columns of a table that `tilescout.costmodel.features.binary_features` takes."""


def samples_of(
    table: Table, template: KernelTemplate, without: Collection[Problem] = (), binaries: bool = False
) -> list[Sample]:
    """The measurements of a table, a sample a problem.

    Rows that failed teach nothing of times and are left out, as are configurations that are no longer legal, and
    problems for which all failed. A pruned row is censored: what is known is the time that its verifying launch
    suggests.

    Parameters
    ----------
    table
        The table.
    template
        The kernels that were measured; says how configurations divide the work.
    without
        Problems to leave out.
    binaries
        Add the features of the compiled kernels, and leave out rows that do not have all of `BINARY`. A model of such
        samples predicts compiled configurations only.

    Raises
    ------
    TableError
        If the table is of another space, or nothing of it ran, or no row says what its binary holds.
    """
    known = np.isfinite(_known_us(table, slice(None))[0])
    if binaries:
        known &= np.isfinite(np.sum(_binary(table), axis=0))
    ran = [problem for problem in table.problems if known[table.rows(problem)].any()]
    if not ran:
        raise TableError(f"table {table.path}: nothing of it ran, so that there is no time to learn from")
    problems = [problem for problem in ran if problem not in without]
    return [problem_sample(table, template, problem, binaries) for problem in problems]


def train_model(
    table: Table, template: KernelTemplate, without: Collection[Problem] = (), options: BlendOptions | None = None
) -> BlendModel:
    """The learned model of a table, of a few seconds a problem; see `samples_of`.

    To judge a search on a problem, give it a model that was trained without it.

    Raises
    ------
    TableError, ModelError
        If the table is of another space, or nothing in it can be learned from.
    """
    return BlendModel(options).fit(samples_of(table, template, without))


def card_of(tables: Sequence[Table], samples: Sequence[Sample]) -> ModelCard:
    """The card of a model that learned from samples of tables: where it comes from.

    Parameters
    ----------
    tables
        Tables of one space, recorded on devices of one architecture: features hold how these differ. The model is of
        the first one's device.
    samples
        What of them it learns from.

    Raises
    ------
    TableError
        If the tables are of several spaces or architectures.
    """
    first = tables[0].card
    alike = {first.device, *siblings(first.device)}
    for table in tables[1:]:
        if table.card.space != first.space or table.card.device not in alike:
            raise TableError(
                f"table {table.path} is of {table.card.space} on {table.card.device}, and {tables[0].path} of "
                f"{first.space} on {first.device}; a model learns from one space, on devices of one architecture"
            )
    return ModelCard(
        space=first.space,
        device=first.device,
        problems=tuple(dict.fromkeys(sample.problem for sample in samples)),
        tables=tuple(TrainingTable(t.path.name, t.card.sha256, str(t.card.objective)) for t in tables),
        rows=sum(map(len, samples)),
    )


def _known_us(table: Table, rows: Indices | slice) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Of rows, what is known of the time in µs, not finite where nothing is, and whether they were pruned: then it is
    what the one launch suggests.
    """
    pruned = table.pruned[rows]
    return np.where(pruned, table.pilots_us[rows], table.times_us[rows]), pruned


def problem_sample(table: Table, template: KernelTemplate, problem: Problem, binaries: bool = False) -> Sample:
    """The measurements of one problem, in the order of `problem_space`; see `samples_of`.

    Raises
    ------
    TableError
        If the table is of another space, or lacks the problem.
    """
    part, kept, known, pruned = _ran(table, template, problem, binaries)
    features = space_features(part, template)
    if binaries:
        rows = table.rows(problem)[kept]
        features = features.beside(binary_features(*(column[rows] for column in _binary(table))))
    among_others = table.card.objective is Objective.SANDWICH
    return Sample(str(problem), features, np.log(known[kept]), pruned[kept], problem.family, among_others)


def problem_space(table: Table, template: KernelTemplate, problem: Problem, binaries: bool = False) -> SearchSpace:
    """The configurations of a problem that ran; with `binaries` those whose binary was read.

    Raises
    ------
    TableError
        If the table is of another space, or lacks the problem.
    """
    return _ran(table, template, problem, binaries)[0]


def _binary(table: Table) -> list[NDArray[np.float64]]:
    """The columns `BINARY` of a table, each of shape [rows], NaN where they are not known.

    Raises
    ------
    TableError
        If no row has all of them.
    """
    held = [name for name in BINARY if name in table.data.column_names]
    columns = [np.asarray(table.data[name].to_numpy(), dtype=np.float64) for name in held]
    if len(held) < len(BINARY) or not np.isfinite(np.sum(columns, axis=0)).any():
        raise TableError(
            f"table {table.path} does not say how many instructions its kernels have; "
            "they are to be counted in the artifacts of its kernels first"
        )
    return columns


def _ran(
    table: Table, template: KernelTemplate, problem: Problem, binaries: bool
) -> tuple[SearchSpace, Indices, NDArray[np.float64], NDArray[np.bool_]]:
    """The configurations that ran, their positions among the problem's rows, and of all rows what is known of the time
    and whether they were pruned.
    """
    table.check_space(template)
    rows = table.rows(problem)
    codes = table.codes(template.knobs, rows)
    whole = template.space_of(codes, problem, find_device(table.card.device))
    if whole is None:
        raise TableError(
            f"table {table.path}: none of its configurations for {problem} is legal in {template.name} now"
        )
    indices = whole.find(codes)
    known, pruned = _known_us(table, rows)
    usable = (indices >= 0) & np.isfinite(known)
    if binaries:
        usable &= np.isfinite(np.sum(_binary(table), axis=0)[rows])
    kept = np.flatnonzero(usable)
    if not len(kept):
        raise TableError(f"table {table.path}: nothing that is legal in {template.name} now ran for {problem}")
    kept = kept[np.argsort(indices[kept])]
    return whole.subset(indices[kept]), kept, known, pruned
