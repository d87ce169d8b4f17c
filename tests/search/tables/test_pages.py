"""Pages of Parquet files: what they say they have is known before one is unpacked."""

import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.tables.pages import check_flat, unpacked_size
from tilescout.search.tables.shipped import shipped_tables


def metadata_of(content: bytes) -> pq.FileMetaData:
    return pq.ParquetFile(pa.BufferReader(content)).metadata


@pytest.fixture(scope="module")
def content() -> bytes:
    """A file of two groups, with text and numbers, that repeat and that do not."""
    count = 3000
    columns = {
        "text": pa.array(["a", "bb", None] * (count // 3)).dictionary_encode(),
        "plain": pa.array([f"{number}" * 9 for number in range(count)]),
        "number": pa.array(range(count)),
        "same": pa.array([1.5] * count),
    }
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd", row_group_size=2000, use_dictionary=["text", "same"])
    return bytes(sink.getvalue())


def test_pages_say_together_what_the_footer_says_of_all_columns(content: bytes) -> None:
    for whole in (content, *(path.read_bytes() for path in shipped_tables())):
        metadata = metadata_of(whole)
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        assert unpacked_size(whole, metadata) == sum(group.total_byte_size for group in groups)


def test_a_page_that_says_more_than_the_footer_is_refused_before_it_is_unpacked(content: bytes) -> None:
    metadata = metadata_of(content)
    column = metadata.row_group(0).column(1)
    header = column.data_page_offset
    size = header + 3  # behind the page's type, and the head of the next field: its size when unpacked
    assert content[header:size] == bytes([0x15, 0x00, 0x15])
    longer = bytearray(content)
    assert longer[size] >= 128
    assert longer[size + 1] >= 128
    longer[size : size + 2] = b"\xfe\xff"

    with pytest.raises(ValueError, match="the column plain say more bytes than the footer"):
        unpacked_size(bytes(longer), metadata)


def test_groups_and_columns_have_the_rows_of_the_file(content: bytes) -> None:
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    of_all, of_group = b"\x16\xf0\x2e", b"\x16\xa0\x1f"  # 64-bit fields with the numbers 3000 and 2000
    for told, other, why in (
        (of_all, b"\x16\x88\x00", "it says 4 rows, and its groups 3000"),
        (of_group, b"\x16\x88\x00", "the column text says 4 values, and its group 2000"),
    ):
        at = content.index(told, start)
        damaged = content[:at] + other + content[at + 3 :]
        with pytest.raises(ValueError, match=why):
            unpacked_size(damaged, metadata_of(damaged))


@given(data=st.data())
def test_a_damaged_header_is_a_value_error_or_harmless(content: bytes, data: st.DataObject) -> None:
    metadata = metadata_of(content)
    column = metadata.row_group(0).column(data.draw(st.integers(0, 3)))
    start = column.data_page_offset
    damaged = bytearray(content)
    junk = data.draw(st.binary(min_size=1, max_size=40))
    damaged[start : start + len(junk)] = junk

    refusal = "a page, as it is"
    try:
        unpacked_size(bytes(damaged), metadata)
    except ValueError as error:
        refusal = str(error)
    assert "column" in refusal or "page" in refusal


def parquet(schema: bytes, length: int, *more: bytes) -> bytes:
    """A file of no rows whose footer has these columns, and then other fields."""
    count = b"\x19\xfc" + length.to_bytes(1) if length < 128 else b"\x19\xfc" + bytes([length & 127 | 128, length >> 7])
    footer = b"\x15\x02" + count + schema + b"\x16\x00\x19\x0c" + b"".join(more) + b"\x00"
    return b"PAR1" + footer + struct.pack("<I", len(footer)) + b"PAR1"


WITHIN = b"\x35\x02\x18\x01a\x15\x02\x00"  # an optional column with one more in it
LEAF = b"\x15\x02\x25\x02\x18\x01a\x00"  # an optional column of integers


def test_columns_beside_one_another_are_flat(content: bytes) -> None:
    check_flat(content)
    check_flat(parquet(WITHIN + LEAF, 2))
    for path in shipped_tables():
        check_flat(path.read_bytes())


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (parquet(WITHIN * 9_999 + LEAF, 10_000), "within"),
        (parquet(WITHIN + LEAF, 2, b"\x09\x04\xfc\x90\x4e", WITHIN * 9_999 + LEAF), "within"),  # a second schema
        # Field 65,538: of its number, Arrow keeps 16 bits.
        (parquet(WITHIN + LEAF, 2, b"\x09\x84\x80\x08\xfc\x90\x4e", WITHIN * 9_999 + LEAF), "damaged"),
        # The number of columns is there twice, as an integer of 32 bits and of 64, of which Arrow takes the first.
        (parquet(WITHIN + WITHIN[:-1] + b"\x06\x0a\x00\x00" + LEAF, 3), "damaged"),
        (b"PAR1" + bytes(1 << 23) + struct.pack("<I", 1 << 23) + b"PAR1", "at most"),
        (b"PAR1" + struct.pack("<I", 1 << 23) + b"PAR1", "no footer"),
        (b"PAR1", "no footer"),
        (b"", "no footer"),
    ],
    ids=["deep", "second", "sixteen bits", "twice", "long", "beyond", "short", "empty"],
)
def test_columns_within_one_another_are_refused_before_arrow_follows_them(file: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_flat(file)


@given(data=st.data())
def test_a_damaged_footer_is_a_value_error_or_harmless(content: bytes, data: st.DataObject) -> None:
    size = int.from_bytes(content[-8:-4], "little")
    at = data.draw(st.integers(len(content) - 8 - size, len(content) - 1))
    damaged = bytearray(content)
    junk = data.draw(st.binary(min_size=1, max_size=20))
    damaged[at : at + len(junk)] = junk

    refusal = "footer"
    try:
        check_flat(bytes(damaged))
    except ValueError as error:
        refusal = str(error)
    assert "footer" in refusal or "columns within" in refusal
