import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from math import nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tilescout.search.tables.card import TableCard
from tilescout.search.tables.rows import Row, positions
from tilescout.search.tables.table import Table, card_path, find_tables, write_table
from tilescout.spaces.errors import TableError

Change = Callable[[pa.Table], pa.Table]


def reseal(path: Path, content: bytes) -> None:
    """Replace the data, and the card so that it vouches for them: what a faulty writer would leave."""
    card = TableCard.from_json(card_path(path).read_text())
    path.write_bytes(content)
    sealed = replace(card, size=len(content), sha256=sha256(content).hexdigest())
    card_path(path).write_text(sealed.to_json())


def parquet(data: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(data, sink)
    return bytes(sink.getvalue())


def with_column(data: pa.Table, name: str, values: list[object], kind: pa.DataType | None = None) -> pa.Table:
    field = data.schema.field(name)
    field = field if kind is None else pa.field(name, kind, field.nullable)
    return data.set_column(data.schema.get_field_index(name), field, pa.array(values, field.type))


def with_entry(data: pa.Table, name: str, value: object) -> pa.Table:
    return with_column(data, name, [value, *data[name].to_pylist()[1:]])


def test_missing_files_are_named(tmp_path: Path, invented_table: Table) -> None:
    with pytest.raises(TableError, match=r"nowhere\.parquet: it does not exist"):
        Table.read(tmp_path / "nowhere.parquet")
    with pytest.raises(TableError, match=r"a table is a \.parquet file"):
        Table.read(card_path(invented_table.path))
    card_path(invented_table.path).unlink()
    with pytest.raises(TableError, match=r"its card invented\.json is missing"):
        Table.read(invented_table.path)
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(TableError, match=r"can't read folder\.parquet: Is a directory"):
        Table.read(tmp_path / "folder.parquet")


@pytest.mark.parametrize("kept", [0, 1, 4, 1000, -8, -1])
def test_a_truncated_file_is_refused(invented_table: Table, kept: int) -> None:
    content = invented_table.path.read_bytes()
    invented_table.path.write_bytes(content[:kept])
    with pytest.raises(
        TableError, match=rf"has {len(content[:kept])} bytes, its card says {len(content)}: it is damaged"
    ):
        Table.read(invented_table.path)
    reseal(invented_table.path, content[:kept])
    with pytest.raises(TableError, match="not a Parquet file"):
        Table.read(invented_table.path)


def test_any_flipped_bit_is_noticed(invented_table: Table) -> None:
    content = invented_table.path.read_bytes()
    for position in np.random.default_rng(0).choice(len(content), 50, replace=False):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        invented_table.path.write_bytes(damaged)
        with pytest.raises(TableError, match=r"checksum \(SHA-256\) of the file is not the one on its card"):
            Table.read(invented_table.path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data.drop_columns(["tile_m"]), "column tile_m is missing"),
        (lambda data: data.append_column("tile_x", data["tile_m"]), "unexpected column tile_x"),
        (lambda data: data.append_column("problem", data["problem"]), "column problem is there 2 times"),
        (
            lambda data: data.append_column("problem", data["problem"]).append_column("x", data["status"]),
            "unexpected column x",
        ),
        (
            lambda data: with_column(data, "tile_m", data["tile_m"].to_pylist(), pa.int64()),
            "column tile_m: expected int32",
        ),
        (
            lambda data: with_column(data, "ratio", data["ratio"].to_pylist(), pa.float32()),
            "column ratio: expected double",
        ),
        (lambda data: data.select(data.column_names[::-1]), "wrong order of columns"),
        (lambda data: data.slice(1), "599 rows, the card says 600"),
        (lambda data: with_entry(data, "tile_m", 65), "row 0: tile_m is 65, which the card does not list"),
        (lambda data: with_entry(data, "raster", "k"), "row 0: raster is k, which the card does not list"),
        (
            lambda data: with_entry(data, "problem", "8x8x8:bf16"),
            "row 0: problem is 8x8x8:bf16, which the card does not",
        ),
        (lambda data: with_entry(data, "status", "fine"), "row 0: unknown status, known are ok, pruned, compile_error"),
        (lambda data: with_entry(data, "gpu_seconds", -1.0), "row 0: gpu_seconds must be a number of at least 0"),
        (lambda data: with_entry(data, "compile_seconds", nan), "row 0: compile_seconds must be a number"),
        (
            lambda data: with_column(data, "spill_bytes", [None] * len(data)),
            "spill_bytes and registers are known together or not at all",
        ),
        (lambda data: pa.concat_tables([data.slice(0, 599), data.slice(0, 1)]), "rows 0 and 599 are of the same"),
    ],
)
def test_columns_that_are_not_those_of_the_card_are_refused(invented_table: Table, change: Change, fault: str) -> None:
    reseal(invented_table.path, parquet(change(invented_table.data)))
    with pytest.raises(TableError, match=fault):
        Table.read(invented_table.path)


def test_text_that_is_not_in_utf_8_is_refused(invented_table: Table) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(with_entry(invented_table.data, "error", "EVIL"), sink, compression="none")
    content = bytes(sink.getvalue())
    reseal(invented_table.path, content)
    assert Table.read(invented_table.path).measurement(0).error == "EVIL"
    assert b"EVIL" in content
    reseal(invented_table.path, content.replace(b"EVIL", b"\xff\xfe\xff\xfe"))
    with pytest.raises(TableError, match=r"not a Parquet file: .*Invalid UTF8"):
        Table.read(invented_table.path)


def test_positions_in_texts_are_those_of_their_rows(invented_table: Table) -> None:
    texts = [["a", "b", None, "c"], ["c", "x", "a"]]
    column = pa.chunked_array([pa.array(each).dictionary_encode() for each in texts])
    assert positions(column, ["a", "b", "c"]).tolist() == [0, 1, -1, 2, 2, -1, 0]
    assert positions(column.slice(1, 4), ["c"]).tolist() == [-1, -1, 0, 0]
    assert positions(column.slice(0, 0), ["c"]).tolist() == []
    assert positions(pa.chunked_array([[3, None, 4]]), [4, 3]).tolist() == [1, -1, 0]


def test_one_long_text_in_many_rows_is_compared_once() -> None:
    text = "x" * 1_000_000
    column = pa.chunked_array([pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), pa.array([text]))])
    whole, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    try:
        assert positions(column, [text]).tolist() == [0] * 100
    finally:
        pa.set_memory_pool(whole)
    assert counted.max_memory() < 10 * len(text)


CRASH = """
import os, pathlib, sys
from tilescout.search.tables.table import Table, write_table

path, survived = pathlib.Path(sys.argv[1]), int(sys.argv[2])
table = Table.read(path)
rows = [(table.configuration(row), table.problems[0], table.measurement(row)) for row in table.rows(table.problems[0])]
renames = 0

def crash(event, arguments):
    global renames
    if event == "os.rename":
        if renames == survived:
            os._exit(9)
        renames += 1

sys.addaudithook(crash)
write_table(path, table.card, rows)
"""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_crash_while_writing_never_passes_for_a_table(
    invented_table: Table, invented_rows: list[Row], renames: int
) -> None:
    path = invented_table.path
    done = subprocess.run([sys.executable, "-c", CRASH, str(path), str(renames)], check=False, timeout=60)
    if renames == 0:  # nothing was replaced yet
        assert done.returncode == 9
        assert Table.read(path).data.equals(invented_table.data)
    elif renames == 1:  # new data under the old card
        assert done.returncode == 9
        assert TableCard.from_json(card_path(path).read_text()) == invented_table.card
        with pytest.raises(TableError, match="one of the two files was replaced without the other"):
            Table.read(path)
    else:
        assert done.returncode == 0
        assert len(Table.read(path)) == 200
    assert find_tables([path.parent]) == [path]  # what a crash leaves behind is not taken for a table
    write_table(path, invented_table.card, invented_rows)
    assert Table.read(path).data.equals(invented_table.data)
