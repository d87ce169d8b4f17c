"""Which of the tables that come with the package is taken for a template, and what is read to find it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tilescout.search.tables import shipped
from tilescout.search.tables.card import TableCard
from tilescout.search.tables.rows import Row
from tilescout.search.tables.shipped import largest_table, named_tables
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import TableError
from tilescout.spaces.templates import NONE_NAMED, Named, find_template

TEMPLATE = find_template("gemm_sm90")


@pytest.fixture
def read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invented_card: TableCard, invented_rows: Sequence[Row]
) -> list[str]:
    """The names of the tables that were read whole; three of the template are shipped, and one of another space."""
    folder, found = tmp_path / "recorded", list[str]()
    for name, count in {"a": 40, "b": 90, "c": 60}.items():
        write_table(folder / f"{name}.parquet", invented_card, invented_rows[:count])
    write_table(folder / "other.parquet", replace(invented_card, space="softmax_of_others"), invented_rows[:200])
    whole = Table.read

    def noted(path: Path, named: Named = NONE_NAMED) -> Table:
        found.append(path.stem)
        return whole(path, named)

    monkeypatch.setattr(shipped, "_recorded", lambda: folder)
    monkeypatch.setattr(Table, "read", noted)
    return found


def test_of_the_shipped_tables_the_largest_of_the_template_alone_is_read(read: list[str]) -> None:
    assert len(largest_table(TEMPLATE)) == 90
    assert read == ["b"]


def test_of_the_shipped_tables_those_of_the_template_alone_are_read(read: list[str]) -> None:
    assert [len(table) for table in named_tables(TEMPLATE, [])] == [40, 90, 60]
    assert read == ["a", "b", "c"]


def test_a_template_of_which_no_table_is_shipped_is_told(read: list[str]) -> None:
    for find in (largest_table, lambda template: named_tables(template, [])):
        with pytest.raises(TableError, match="no table of softmax_sm90 is shipped"):
            find(find_template("softmax_sm90"))
    assert read == []
