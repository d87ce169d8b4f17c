"""Pages of Parquet files: what they say they have is known before one is unpacked."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.tables.pages import unpacked_size
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
