"""Recorded tables: the measurements of a space on some problems, on disk and in memory, and those that are shipped.

Everything public is named here; a module is imported when one of its names is first used::

    from tilescout.search.tables import Table, default_table

    table = Table.read("squares.parquet")
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.tables.card import Baseline, TableCard
    from tilescout.search.tables.recorded_space import RecordedSpace
    from tilescout.search.tables.recorded_template import RecordedTemplate
    from tilescout.search.tables.shipped import (
        default_table,
        largest_table,
        named_table,
        named_tables,
        named_template,
        shipped_tables,
        template_of,
    )
    from tilescout.search.tables.table import ProblemSummary, Table, find_tables, write_table
    from tilescout.search.tables.training import samples_of, train_model

__all__ = [
    "Baseline",
    "ProblemSummary",
    "RecordedSpace",
    "RecordedTemplate",
    "Table",
    "TableCard",
    "default_table",
    "find_tables",
    "largest_table",
    "named_table",
    "named_tables",
    "named_template",
    "samples_of",
    "shipped_tables",
    "template_of",
    "train_model",
    "write_table",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "Baseline": "card",
        "TableCard": "card",
        "RecordedSpace": "recorded_space",
        "RecordedTemplate": "recorded_template",
        "default_table": "shipped",
        "largest_table": "shipped",
        "named_table": "shipped",
        "named_tables": "shipped",
        "named_template": "shipped",
        "shipped_tables": "shipped",
        "template_of": "shipped",
        "ProblemSummary": "table",
        "Table": "table",
        "find_tables": "table",
        "write_table": "table",
        "samples_of": "training",
        "train_model": "training",
    },
)
