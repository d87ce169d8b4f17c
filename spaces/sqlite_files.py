"""SQLite files of somebody else's: what is in them is data, and nothing in them is computed when they are read."""

import sqlite3
from typing import Any

from tilescout.spaces.inputs import values_in

_LONGEST = 1 << 24  # bytes of a value: the attributes of a study take some kB
_VALUES, _VALUE_BYTES = 1 << 16, 8  # of a text that is JSON: so many values, and one more for so many bytes

_VIEWS = "SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%' LIMIT 1"
_TRIGGERS = """
SELECT name FROM sqlite_master WHERE type = 'trigger' UNION ALL
SELECT m.name FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c WHERE m.type = 'table' AND c.hidden > 1 LIMIT 1
"""  # and the tables with columns that are computed


def check_stored(connection: sqlite3.Connection) -> None:
    """Refuse a database in which a query of a table may be one of its author's, which need never end.

    Raises
    ------
    sqlite3.DatabaseError
        If it has a view, or is no database.
    """
    _refuse(connection, _VIEWS, "a view")


class StoredOnly(sqlite3.Connection):
    """A connection to a database whose tables are all that it holds: no view, no trigger, no column that is computed.

    Its values have 16 MiB at most. It is a ``factory`` of `sqlite3.connect`, which raises ``sqlite3.DatabaseError``
    over any other database.

    Parameters
    ----------
    arguments, options
        Those of `sqlite3.Connection`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        self.text_factory = _text
        try:
            check_stored(self)
            _refuse(self, _TRIGGERS, "a trigger or a computed column")
        except BaseException:
            self.close()
            raise


def _text(content: bytes) -> str:
    if len(content) > _VALUES and values_in(content) > _VALUES + len(content) // _VALUE_BYTES:
        raise sqlite3.DataError(f"{values_in(content)} values in a text of {len(content)} bytes are too many")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise sqlite3.DataError(str(error)) from error


def _refuse(connection: sqlite3.Connection, query: str, what: str) -> None:
    found = connection.execute(query).fetchone()
    if found is not None:
        raise sqlite3.DatabaseError(f"{found[0]} has or is {what}, and a database of data has none")
