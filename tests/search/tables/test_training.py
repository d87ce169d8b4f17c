"""The samples that a cost model learns from, and the rows of a table that are looked at to find them."""

from collections.abc import Sequence

import numpy as np
import pytest

from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.search.tables.recorded_template import RecordedTemplate
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import problem_space, samples_of
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import Indices
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")


def test_a_problem_teaches_its_times_and_of_pruned_rows_what_their_pilots_took(invented_table: Table) -> None:
    samples = samples_of(invented_table, TEMPLATE)

    assert [sample.problem for sample in samples] == [str(problem) for problem in invented_table.problems]
    for sample, problem in zip(samples, invented_table.problems, strict=True):
        expected = {}
        for row in invented_table.rows(problem).tolist():
            found, pruned = invented_table.measurement(row), bool(invented_table.pruned[row])
            known = found.pilot_us if pruned else found.time_us
            if known is not None and np.isfinite(known):
                expected[invented_table.configuration(row)] = np.log(known), pruned
        space = problem_space(invented_table, TEMPLATE, problem)
        told = zip(sample.log_time.tolist(), sample.censored.tolist(), strict=True)
        assert {space[at]: each for at, each in enumerate(told)} == expected


def test_no_row_is_looked_at_for_a_problem_that_is_not_its_own(
    invented_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    coded, codes = [0], Table.codes

    def noted(table: Table, knobs: Sequence[Knob], rows: Indices | slice = slice(None)) -> Indices:
        found = codes(table, knobs, rows)
        coded[0] += len(found)
        return found

    monkeypatch.setattr(Table, "codes", noted)
    samples_of(invented_table, TEMPLATE)
    assert coded == [len(invented_table)]
    known = RecordedTemplate(invented_table)
    for problem in invented_table.problems:
        RecordedSpace.of(invented_table, TEMPLATE, problem)
        known.space(problem, known.device("h200"))
    assert coded == [3 * len(invented_table)]
