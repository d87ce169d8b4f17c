"""From recorded tables to what a cost model learns from."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import space_features
from tilescout.costmodel.learned import ForestModel, ForestOptions
from tilescout.search.evaluate.measurement import Status
from tilescout.search.evaluate.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.templates import KernelTemplate


def samples_of(table: Table, template: KernelTemplate, without: Collection[Problem] = ()) -> list[Sample]:
    """The measurements of a table, a sample a problem.

    Rows that failed teach nothing of times and are left out, as are configurations that are no longer legal. A pruned
    row is censored: what is known is the time that its verifying launch suggests.

    Parameters
    ----------
    table
        The table.
    template
        The kernels that were measured; says how configurations divide the work.
    without
        Problems to leave out.

    Raises
    ------
    TableError
        If the table is of another space.
    """
    return [problem_sample(table, template, problem) for problem in table.problems if problem not in without]


def train_model(
    table: Table, template: KernelTemplate, without: Collection[Problem] = (), options: ForestOptions | None = None
) -> ForestModel:
    """The learned model of a table, of a few seconds a problem; see `samples_of`.

    To judge a search on a problem, give it a model that was trained without it.

    Raises
    ------
    TableError, ModelError
        If the table is of another space, or nothing in it can be learned from.
    """
    return ForestModel(options).fit(samples_of(table, template, without))


def problem_sample(table: Table, template: KernelTemplate, problem: Problem) -> Sample:
    """The measurements of one problem, in the order of `problem_space`.

    Raises
    ------
    TableError
        If the table is of another space, or lacks the problem.
    """
    part, kept, known, pruned = _ran(table, template, problem)
    return Sample(str(problem), space_features(part, template), np.log(known[kept]), pruned[kept])


def problem_space(table: Table, template: KernelTemplate, problem: Problem) -> SearchSpace:
    """The configurations of a problem that ran.

    Raises
    ------
    TableError
        If the table is of another space, or lacks the problem.
    """
    return _ran(table, template, problem)[0]


def _ran(
    table: Table, template: KernelTemplate, problem: Problem
) -> tuple[SearchSpace, Indices, NDArray[np.float64], NDArray[np.bool_]]:
    """The configurations that ran, their positions among the problem's rows, and of all rows what is known of the time
    and whether they were pruned.
    """
    table.check_space(template)
    rows = table.rows(problem)
    whole = template.space(problem, find_device(table.card.device))
    indices = whole.find(table.codes(whole.knobs)[rows])
    pruned = np.asarray(table.data["status"].to_numpy()[rows] == Status.PRUNED)
    pilots = np.asarray(table.data["pilot_us"].to_numpy()[rows], dtype=np.float64)
    known = np.where(pruned, pilots, table.times_us[rows])
    kept = np.flatnonzero((indices >= 0) & np.isfinite(known))
    kept = kept[np.argsort(indices[kept])]
    return whole.subset(indices[kept]), kept, known, pruned
