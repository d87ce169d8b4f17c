"""Tables of grouped products are taken together, and judge dispatchers that did not see them."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilescout.experiments.commands.grouped_tables import grouped_of_tables, grouped_times, joined
from tilescout.experiments.research.studies.grouped_tables import unseen
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import SpaceError, TableError

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "experiments/results/grouped-tables-2026-11-22/grouped_gemm_sm90-h200-qwen3-30b-a3b.parquet"


def test_a_product_of_two_tables_is_one_unless_a_problem_is_in_both_or_it_was_measured_in_another_way(
    tmp_path: Path,
) -> None:
    table, store = Table.read(TABLE), ArtifactStore(tmp_path)
    first, second = grouped_times(table)
    columns = range(len(first.problems))
    parts = [first.take(columns[:5]), second, first.take(columns[5:])]
    whole, other = joined(parts)
    assert (whole.problems, other.problems) == (first.problems, second.problems)
    assert whole.ratio.tolist() == first.ratio.tolist()
    with pytest.raises(SpaceError, match="is in two of the tables"):
        grouped_of_tables([table, table], store)
    elsewhere = Table.read(TABLE)
    elsewhere.card = replace(table.card, product="another GPU")
    with pytest.raises(TableError, match="was measured in another way"):
        grouped_of_tables([table, elsewhere], store)


def test_other_tables_judge_ranges_that_did_not_see_them() -> None:
    (times, _) = grouped_times(Table.read(TABLE))
    learned = times.take([at for at, each in enumerate(times.problems) if each.tokens != 2048])
    judged = times.take(times.columns(2048))
    found = unseen([learned], [judged])
    assert list(found) == [str(each) for each in judged.problems]
    assert all(0 <= value < 0.2 for value in found.values())
    assert unseen([learned], grouped_times(Table.read(TABLE))[1:]) == {}  # of another product
