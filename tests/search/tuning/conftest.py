"""The table that searches with pruned trials replay."""

import pytest

from tests.search.tuning.pruned_table import pruned_table
from tilescout.search.tables.card import TableCard
from tilescout.search.tables.table import Table


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, invented_card: TableCard) -> Table:
    """A table of a space of which most configurations are pruned."""
    return pruned_table(tmp_path_factory.mktemp("pruned") / "table.parquet", invented_card)
