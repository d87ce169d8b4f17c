"""SQLite files of somebody else's: only plain tables are read, and nothing is written beside them."""

import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tilescout.spaces.sqlite_files import StoredOnly, check_beside, check_stored, fault_of_sqlite, open_to_read

Files = dict[str, tuple[int, bytes]]


def files(folder: Path) -> Files:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with what SQLite makes for tables, in a folder of its own."""
    folder = tmp_path / "a folder?#%"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "a.db", isolation_level=None)) as connection:
        connection.executescript("""
            CREATE TABLE studies (study_id INTEGER PRIMARY KEY AUTOINCREMENT, study_name TEXT UNIQUE);
            create table if not exists "as it/**/is" (a DEFAULT 1 CHECK (a > 0));
            create  unique  index found ON studies (study_name);
            CREATE INDEX part ON studies (study_id) WHERE study_name IS NOT NULL;
            CREATE TABLE copied AS SELECT 1 AS a;
            ALTER TABLE copied RENAME TO renamed;
            INSERT INTO studies VALUES (1, 'x');
            ANALYZE;
        """)
    return folder / "a.db"


def forge(path: Path, type_: object, sql: object, root: int = 0) -> None:
    """Put a table's row into the schema anew, as SQLite itself never writes it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        row = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'studies'").fetchone()
        connection.execute("DELETE FROM sqlite_master WHERE tbl_name = 'studies'")
        forged = (type_, "studies", "studies", row[0] if root else 0, sql)
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", forged)
        connection.execute("PRAGMA schema_version=99")


VIEW = (
    "CREATE VIEW studies AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) "
    "SELECT count(*) AS study_id, 'x' AS study_name FROM c"
)
COMPUTED = "CREATE TABLE studies (study_id INTEGER PRIMARY KEY, a INT AS (1 + 1), study_name TEXT)"


@pytest.mark.parametrize(
    ("type_", "sql", "root"),
    [
        ("view", VIEW, 0),
        ("VIEW", VIEW, 0),
        (b"view", VIEW, 0),
        ("view", VIEW.encode(), 0),
        ("VIEW", VIEW.replace("CREATE VIEW", "create/**/view"), 0),
        ("table", "CREATE  VIRTUAL TABLE studies USING fts5(study_id, study_name)", 0),
        ("table", "CREATE/**/VIRTUAL TABLE studies USING fts5(study_id, study_name)", 0),
        ("TABLE", COMPUTED, 1),
        ("table", COMPUTED, 1),
        (b"table", COMPUTED, 1),
        ("table", COMPUTED.replace("TABLE", "\tTABLE"), 1),
        ("trigger", "CREATE TRIGGER studies AFTER INSERT ON renamed BEGIN DELETE FROM renamed; END", 0),
    ],
)
def test_a_row_of_the_schema_that_makes_anything_but_a_plain_table_is_refused_however_it_is_written(
    path: Path, type_: object, sql: object, root: int
) -> None:
    forge(path, type_, sql, root)
    with pytest.raises(sqlite3.DatabaseError):
        open_to_read(path, StoredOnly)
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(path, factory=StoredOnly)


@pytest.mark.parametrize("type_", ["TRIGGER", "Trigger", b"trigger"])
def test_a_trigger_is_refused_however_its_type_is_written(path: Path, type_: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        sql = "CREATE TRIGGER t AFTER INSERT ON renamed BEGIN DELETE FROM studies; END"
        connection.execute("INSERT INTO sqlite_master VALUES (?, 't', 'renamed', 0, ?)", (type_, sql))
        connection.execute("PRAGMA schema_version=99")
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.DatabaseError, match="t has or is"):
        check_stored(connection)
    with pytest.raises(sqlite3.DatabaseError, match="t has or is"):
        open_to_read(path, StoredOnly)


@pytest.mark.parametrize("type_", ["view", "VIEW", b"view"])
def test_where_triggers_are_allowed_a_view_is_still_refused(path: Path, type_: object) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON renamed BEGIN DELETE FROM studies; END")
        check_stored(connection)
    forge(path, type_, VIEW)
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.DatabaseError, match="is a view"):
        check_stored(connection)


def read(path: Path) -> list[tuple[object, ...]]:
    with closing(open_to_read(path, StoredOnly)) as connection:
        return connection.execute("SELECT * FROM studies").fetchall()


def test_what_sqlite_writes_itself_is_read(path: Path) -> None:
    before = files(path.parent)
    assert read(path) == [(1, "x")]
    assert files(path.parent) == before


@contextmanager
def writing(path: Path, statement: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process, which has executed a statement in a database in WAL mode, and keeps it open."""
    code = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode=WAL")
connection.execute(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(path), statement]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


INSERT = "INSERT INTO studies VALUES (2, 'y')"


@pytest.mark.parametrize("linked", [False, True])
def test_reading_a_database_in_wal_mode_makes_no_file(path: Path, linked: bool) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    if linked:
        (path.parent / "link").symlink_to(path)
    before = files(path.parent)
    assert read(path.parent / "link" if linked else path) == [(1, "x")]
    assert files(path.parent) == before


def test_a_database_that_another_process_writes_in_wal_mode_is_read_as_it_is_now(path: Path) -> None:
    with writing(path, INSERT) as process:
        before = files(path.parent)
        assert set(before) == {"a.db", "a.db-shm", "a.db-wal"}
        assert read(path) == [(1, "x"), (2, "y")]
        assert files(path.parent) == before
        process.kill()
        process.wait()
        assert read(path) == [(1, "x"), (2, "y")], "it was killed"
        assert files(path.parent) == before


@pytest.mark.parametrize("index", [b"", bytes(32768), b"\xff" * 32768])
def test_a_log_whose_index_is_damaged_is_read_without_it(path: Path, index: bytes) -> None:
    with writing(path, INSERT):
        pass
    path.with_name("a.db-shm").write_bytes(index)
    before = files(path.parent)
    assert read(path) == [(1, "x"), (2, "y")]
    assert files(path.parent) == before


def test_the_files_of_a_log_that_readers_left_are_not_in_the_way(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("SELECT * FROM studies")
    before = files(path.parent)
    assert set(before) == {"a.db", "a.db-shm", "a.db-wal"}
    assert read(path) == [(1, "x")]
    for name in ("a.db-wal", "a.db-shm"):  # one of them, and none
        path.with_name(name).unlink()
        before = files(path.parent)
        assert read(path) == [(1, "x")]
        assert files(path.parent) == before


def rollback(path: Path) -> None:
    log = path.with_name("a.db-wal").read_bytes()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    path.with_name("a.db-wal").write_bytes(log)


def cut(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("change", "why"), [(Path.touch, "write-ahead log"), (rollback, "write-ahead log"), (cut, "no such table")]
)
def test_a_log_without_its_index_is_refused_and_stays(path: Path, change: Callable[[Path], object], why: str) -> None:
    with writing(path, INSERT):
        pass
    path.with_name("a.db-shm").unlink()
    change(path)
    before = files(path.parent)
    assert path.with_name("a.db-wal").stat().st_size
    with pytest.raises(sqlite3.OperationalError, match=why):
        read(path)
    assert files(path.parent) == before


def test_opening_to_read_releases_no_lock_of_this_process(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert read(path) == [(1, "x")]
        code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
        other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
        assert "database is locked" in other.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_database_in_wal_mode_in_a_folder_that_may_not_be_written_is_read(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    path.parent.chmod(0o500)
    assert read(path) == [(1, "x")]
    path.parent.chmod(0o700)


def test_no_file_and_no_database_are_errors_of_sqlite_and_nothing_is_made(path: Path) -> None:
    shutil.copy(__file__, path.with_name("text.db"))
    before = files(path.parent)
    for name in ("missing.db", "text.db"):
        with pytest.raises(sqlite3.Error):
            read(path.with_name(name))
    assert files(path.parent) == before


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_pipe_or_a_link_in_the_place_of_a_file_of_sqlites_own_is_refused(path: Path, suffix: str, kind: str) -> None:
    beside, other = path.with_name(f"{path.name}{suffix}"), path.with_name("other")
    other.touch()
    (path.parent / "link").symlink_to(path)
    os.mkfifo(beside) if kind == "pipe" else beside.symlink_to(other)
    for name in ("a.db", "link"):
        with pytest.raises(sqlite3.OperationalError, match=f"a.db{suffix} beside it is no regular file"):
            check_beside(path.with_name(name))
        with pytest.raises(sqlite3.OperationalError, match="no regular file"):
            open_to_read(path.with_name(name), StoredOnly)
        with pytest.raises(sqlite3.OperationalError, match="no regular file"):
            sqlite3.connect(path.with_name(name), factory=StoredOnly)
    assert other.read_bytes() == b""


def share_children(path: Path, root: int, levels: int) -> None:
    """Give the B-tree that begins at a page more levels, on each of which all children of the page are the same one."""
    content = bytearray(path.read_bytes())
    size, cells = 4096, 580
    assert struct.unpack(">H", content[16:18]) == (size,)

    def number_of(page: bytes | bytearray) -> int:
        content.extend(page)
        return len(content) // size

    def above(child: int) -> bytes:
        cell = struct.pack(">IB", child, 1)
        start = size - cells * len(cell)
        places = (struct.pack(">H", start + number * len(cell)) for number in range(cells))
        page = struct.pack(">BHHHBI", 5, 0, cells, start, 0, child) + b"".join(places)
        return page.ljust(start, b"\0") + cell * cells

    at = slice((root - 1) * size, root * size)
    child = number_of(content[at])
    for _ in range(levels - 1):
        child = number_of(above(child))
    content[at] = above(child)
    content[28:32] = struct.pack(">I", len(content) // size)
    path.write_bytes(content)


@pytest.fixture
def endless(path: Path) -> Path:
    """The file with a study of a long name, which is there without end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE long (study_name TEXT)")
        connection.execute("INSERT INTO long VALUES (?)", ("x" * 1000,))
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'long'").fetchone()
    share_children(path, root, 9)
    assert path.stat().st_size < 100_000
    return path


def test_a_query_of_pages_that_share_their_children_ends(endless: Path) -> None:
    with closing(open_to_read(endless, StoredOnly)) as connection:
        with pytest.raises(sqlite3.OperationalError) as raised:
            connection.execute("SELECT * FROM long WHERE study_name = 'y'").fetchall()
        assert fault_of_sqlite(raised.value).endswith("is damaged")
        assert "\n" not in fault_of_sqlite(raised.value)
    assert fault_of_sqlite(sqlite3.OperationalError("locked")) == "locked"


def test_so_does_one_whose_rows_are_far_more_bytes_than_the_file(endless: Path) -> None:
    given = list[str]()
    with closing(open_to_read(endless, StoredOnly)) as connection, pytest.raises(sqlite3.DataError, match="damaged"):
        given.extend(name for (name,) in connection.execute("SELECT study_name FROM long"))
    assert 10**6 < sum(map(len, given)) < 10**6 + 20 * endless.stat().st_size


def test_a_schema_whose_pages_share_their_children_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number in range(60):  # so many that the first page, which has the file's header, is no leaf
            connection.execute(f"CREATE TABLE {'x' * 200}{number} (a)")
    content = path.read_bytes()
    assert content[100] == 5
    (first,) = struct.unpack(">H", content[112:114])
    (child,) = struct.unpack(">I", content[first : first + 4])
    share_children(path, child, 9)

    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.DatabaseError):
        check_stored(connection)
    with pytest.raises(sqlite3.DatabaseError):
        open_to_read(path, StoredOnly)


@pytest.mark.parametrize("end", [sqlite3.Connection.commit, sqlite3.Connection.rollback])
def test_a_connection_may_query_as_long_as_it_likes_in_many_transactions(
    path: Path, end: Callable[[sqlite3.Connection], None]
) -> None:
    query = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 50000) SELECT count(*) FROM c"
    with closing(sqlite3.connect(path, factory=StoredOnly)) as connection:
        for _ in range(4):
            assert connection.execute(query).fetchone() == (50_000,)
            getattr(connection, end.__name__)()
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            [connection.execute(query).fetchone() for _ in range(4)]
