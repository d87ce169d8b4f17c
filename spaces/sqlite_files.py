"""SQLite files of somebody else's: what is in them is data, and nothing in them is computed when they are read."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from tilescout.spaces.inputs import values_in

_LONGEST = 1 << 24  # bytes of a value: the attributes of a study take some kB
_VALUES, _VALUE_BYTES = 1 << 16, 8  # of a text that is JSON: so many values, and one more for so many bytes
# Steps of SQLite's machine, and bytes that it gives, in a transaction: so many, and more for each byte of the file. To
# read a study of 5,000 trials took 0.07 steps and 0.7 bytes a byte of its 14 MB, to delete it 0.2 steps (2026-11-30).
_STEPS, _STEPS_BYTE = 10**6, 10
_BETWEEN = 10**5  # steps between two looks: some ms
_SCHEMA_STEPS = 10**5  # to look for what tables there are: MLflow's some 60 take less than a tenth
_BESIDE = ("-journal", "-wal", "-shm")  # what SQLite's own files beside a database are called, behind its name

# What is allowed is listed, and the rest is refused: the rows are data, and SQLite reads them more leniently than it
# writes them. The first words of `sql` are always written like this. Which words those are decides what a row makes.
# The expressions of an index, of a CHECK and of a default are not looked for: no query may be in them, and they are
# computed when a row is written, not when it is read.
_OTHERS = """
SELECT name FROM sqlite_master WHERE NOT coalesce(
    type = 'table' AND sql GLOB 'CREATE TABLE *'
    OR type = 'index' AND (sql IS NULL OR sql GLOB 'CREATE INDEX *' OR sql GLOB 'CREATE UNIQUE INDEX *')
    OR type = 'trigger' AND sql GLOB 'CREATE TRIGGER *',
    FALSE
) LIMIT 1
"""
_TRIGGERS = """
SELECT name FROM sqlite_master WHERE type = 'trigger' UNION ALL
SELECT m.name FROM sqlite_master AS m, pragma_table_xinfo(m.name) AS c WHERE m.type = 'table' AND c.hidden > 1 LIMIT 1
"""  # and the tables with columns that are computed; asked after the others, so that the types are written like this

_ENDLESS = "a query takes far more than the size of the file explains: it is damaged"

_Opened = TypeVar("_Opened", bound=sqlite3.Connection)

# Ways to open a file, as parameters of its address.
_LOCKING = "mode=ro"  # makes the files of a write-ahead log if the database has none, and writes into them
_JOINING = "mode=ro&readonly_shm=1"  # takes part in a write-ahead log whose files are there, and writes neither
_ALONE = "mode=ro&immutable=1"  # takes no lock, and looks at no other file
_PROBING = "mode=ro&nolock=1"  # SQLite can't open a database with a write-ahead log like this, and makes no file


def open_to_read(path: Path, factory: type[_Opened], timeout: float = 5.0) -> _Opened:
    """Open a database that exists, and write nothing: neither to it nor beside it.

    SQLite's own ``mode=ro`` writes beside a database that is in WAL mode, or that a log is laid beside.

    If the log's files are there, somebody is writing or was killed. What is in the log is read, too. If there is no
    log, nobody has the database open. It is then read without locks. If somebody begins to write meanwhile, what they
    write may be missing: connections should be short.

    Parameters
    ----------
    path
        The file, or a link to it.
    factory
        The class of the connection, which any thread can use.
    timeout
        The longest wait while another process writes, in s.

    Raises
    ------
    sqlite3.Error
        If it is no database that can be read so, or `factory` refuses it.
    """
    check_beside(path)
    file = os.path.realpath(path)  # beside which SQLite puts its files
    address = f"{Path(file).as_uri()}?{_way_to_read(file)}"
    return sqlite3.connect(address, timeout=timeout, check_same_thread=False, factory=factory, uri=True)


def check_beside(path: Path) -> None:
    """Refuse a database beside which a pipe, a link or the like has the name of a file of SQLite's own.

    SQLite would wait for a pipe forever, and write through a link.

    Raises
    ------
    sqlite3.OperationalError
        If there is one.
    """
    file = os.path.realpath(path)
    for beside in (f"{file}{suffix}" for suffix in _BESIDE):
        try:
            kind = os.lstat(beside).st_mode
        except OSError:
            continue
        if not stat.S_ISREG(kind):
            raise sqlite3.OperationalError(f"{os.path.basename(beside)} beside it is no regular file")


def check_stored(connection: sqlite3.Connection) -> None:
    """Refuse a database in which a query of a table may be one of its author's, which need never end.

    Raises
    ------
    sqlite3.DatabaseError
        If it has a view, a virtual table or an entry that SQLite would not have written, or is no database.
    """
    connection.set_progress_handler(lambda: True, _SCHEMA_STEPS)
    try:
        _refuse(connection, _OTHERS, "a view, a virtual table or a forged entry")
    finally:
        connection.set_progress_handler(None, 0)


def fault_of_sqlite(error: BaseException) -> str:
    """The message of an error of SQLite; where a query was ended because it took too many steps, that this is so."""
    return _ENDLESS if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT else str(error)


class StoredOnly(sqlite3.Connection):
    """A connection to a database whose tables are all that it holds: no view, no trigger, no column that is computed.

    Its values have 16 MiB at most. The size of the file bounds how many steps a transaction takes and how many bytes it
    gives: a few pages that share their children are rows without end. It is a ``factory`` of `sqlite3.connect`, which
    raises ``sqlite3.DatabaseError`` over any other database.

    Parameters
    ----------
    arguments, options
        Those of `sqlite3.Connection`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        self._budget = _Budget(self)
        self.text_factory, self.row_factory = _text, self._budget.given
        try:
            check_beside(Path(self._budget.file))
            check_stored(self)
            self.set_progress_handler(self._budget.is_used_up, _BETWEEN)
            _refuse(self, _TRIGGERS, "a trigger or a computed column")
        except BaseException:
            self.close()
            raise

    def commit(self) -> None:
        """End a transaction."""
        super().commit()
        self._budget.spent = 0

    def rollback(self) -> None:
        """End a transaction, and undo it."""
        super().rollback()
        self._budget.spent = 0


class _Budget:
    """The steps that a connection may take, and the bytes that it may give.

    Attributes
    ----------
    file
        The file of the database.
    spent
        How many it took and gave.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        before, connection.text_factory = connection.text_factory, os.fsdecode
        self.file: str = connection.execute("PRAGMA database_list").fetchone()[2]
        connection.text_factory = before
        self.spent, self._allowed = 0, _STEPS

    def is_used_up(self) -> bool:
        """Take some steps more; SQLite asks in between whether it may."""
        return self._spend(_BETWEEN)

    def given(self, cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        """A row that is given.

        Raises
        ------
        sqlite3.DataError
            If that is too much.
        """
        if self._spend(sum(len(value) for value in row if isinstance(value, str | bytes))):
            raise sqlite3.DataError(_ENDLESS)
        return row

    def _spend(self, more: int) -> bool:
        self.spent += more
        if self.spent > self._allowed:  # the file may have grown
            size = (_size(self.file) or 0) + (_size(f"{self.file}-wal") or 0)
            self._allowed = _STEPS + _STEPS_BYTE * size
        return self.spent > self._allowed


def _text(content: bytes) -> str:
    if len(content) > _VALUES and values_in(content) > _VALUES + len(content) // _VALUE_BYTES:
        raise sqlite3.DataError(f"{values_in(content)} values in a text of {len(content)} bytes are too many")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise sqlite3.DataError(str(error)) from error


def _refuse(connection: sqlite3.Connection, query: str, what: str) -> None:
    try:
        found = connection.execute(query).fetchone()
    except sqlite3.OperationalError as error:
        raise sqlite3.OperationalError(fault_of_sqlite(error)) from error
    if found is not None:
        raise sqlite3.DatabaseError(f"{found[0]} has or is {what}, and a database of data has none")


def _way_to_read(file: str) -> str:
    log, index = _size(f"{file}-wal"), _size(f"{file}-shm")
    if not _size(file):
        return _ALONE  # else SQLite deletes a log beside an empty file
    if log is not None and index is not None:
        return _JOINING
    if log:  # SQLite reads it whatever the database's mode is
        raise sqlite3.OperationalError(
            "a write-ahead log (-wal) lies beside it without its index (-shm), and reading it would write; "
            "if it is yours, run: sqlite3 FILE 'PRAGMA wal_checkpoint'"
        )
    return _ALONE if _is_logging(file) else _LOCKING


def _is_logging(file: str) -> bool:
    """Whether a database without a log is in WAL mode.

    Its header says so. But closing a file releases all locks that this process has on it, also SQLite's for another
    connection. So SQLite has to look itself.
    """
    with closing(sqlite3.connect(f"{Path(file).as_uri()}?{_PROBING}", uri=True)) as probe:
        try:
            probe.execute("PRAGMA schema_version")
        except sqlite3.Error as error:  # what else is wrong is told when it is opened to be read
            return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CANTOPEN
    return False


def _size(file: str) -> int | None:
    """The size of a file in bytes; None if there is none."""
    try:
        return os.stat(file).st_size
    except OSError:
        return None
