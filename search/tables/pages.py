"""The form of a Parquet file and the sizes of its unpacked pages, by what it says of itself, before Arrow reads it.

The footer of a file says what its columns have in all, and the header of each page what that page has: a reader makes
room for the second. The format is documented at https://parquet.apache.org/docs/file-format/; headers are structures of
Thrift's compact protocol.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 11, 12
"""The types of Thrift's fields, by number."""

_UNPACKED, _PACKED = 2, 3  # the fields of a page's header with its sizes
_DAMAGED = "the header of a page, or the footer, is damaged"
_DEEPEST = 8  # structures in one another; a page's header has 3

_MARK = b"PAR1"  # begins and ends a file; before the last one stand the footer and, in 4 bytes, its length
_LONGEST = 1 << 22  # bytes of a footer; the shipped tables' have 5 to 12 kB
_SCHEMA, _CHILDREN = 2, 5  # the field of a footer with its columns, and of a column with the number of those in it


def check_flat(content: bytes) -> None:
    """Refuse a file with columns in one another: Arrow follows them down, and 20,000 of them end the process.

    Raises
    ------
    ValueError
        If it has such columns, its footer is longer than 4 MiB, or it has none.
    """
    end = len(content) - 8
    size = int.from_bytes(content[end : end + 4], "little")
    if end < size or content[-4:] != _MARK:
        raise ValueError("it has no footer")
    if size > _LONGEST:
        raise ValueError(f"its footer has {size} bytes, and at most {_LONGEST} are read")
    reader = _Header(content, end - size, end)
    for number, kind in reader.fields():
        if number != _SCHEMA:
            reader.skip(kind)
            continue
        for at in range(reader.length(kind)):
            if reader.integers().get(_CHILDREN, 0) and at:  # all are in the first one
                raise ValueError("it has columns within columns")


def unpacked_size(content: bytes, metadata: "pq.FileMetaData") -> int:
    """The bytes that all pages of a file say they have once they are unpacked.

    Raises
    ------
    ValueError
        If a page says more than the footer says of its column, a group or column says another number of rows than the
        file, or a header is damaged.
    """
    _check_counts(metadata)
    return sum(
        _checked(content, metadata.row_group(group).column(column))
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )


def _check_counts(metadata: "pq.FileMetaData") -> None:
    # Arrow makes room for what the groups and their columns say.
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    counts = [group.num_rows for group in groups]
    if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
        raise ValueError(f"it says {metadata.num_rows} rows, and its groups {sum(counts)}")
    for group in groups:
        for column in map(group.column, range(group.num_columns)):
            if column.num_values != group.num_rows:
                told = f"{column.num_values} values, and its group {group.num_rows}"
                raise ValueError(f"the column {column.path_in_schema} says {told}")


def _checked(content: bytes, column: "pq.ColumnChunkMetaData") -> int:
    start = column.data_page_offset
    if column.has_dictionary_page:
        # A column without values has no data page, and 0 in place of where it begins: there every file has its mark.
        start = min(start or column.dictionary_page_offset, column.dictionary_page_offset)
    end = start + column.total_compressed_size
    if not 0 <= start <= end <= len(content):
        raise ValueError(f"the column {column.path_in_schema} is not within the file")
    size = 0
    for page in _pages(content, start, end):
        size += page
        if size > column.total_uncompressed_size:
            raise ValueError(f"the pages of the column {column.path_in_schema} say more bytes than the footer")
    return size


def _pages(content: bytes, at: int, end: int) -> Iterator[int]:
    """The unpacked size of each page of a column, that of its header included."""
    while at < end:
        reader = _Header(content, at, end)
        fields = reader.integers()
        unpacked, packed = fields.get(_UNPACKED, -1), fields.get(_PACKED, -1)
        if unpacked < 0 or packed < 0:
            raise ValueError("a page has no size")
        yield reader.at - at + unpacked
        at = reader.at + packed


class _Header:
    """A structure of Thrift's compact protocol, as headers and footers are, read from a place in a file.

    Attributes
    ----------
    at
        Where reading goes on.
    """

    def __init__(self, content: bytes, at: int, end: int) -> None:
        self._content, self.at, self._end = content, at, end

    def integers(self, depth: int = 0) -> dict[int, int]:
        """The integers of a structure, by their fields' numbers; all else in it is passed over.

        Of a field that is there twice, with two types, Arrow takes the one of its type.
        """
        if depth > _DEEPEST:
            raise ValueError(_DAMAGED)
        found: dict[int, int] = {}
        for number, kind in self.fields():
            if kind in _INTEGERS and number not in found:
                found[number] = self._signed()
            elif kind in _INTEGERS:
                raise ValueError(_DAMAGED)
            else:
                self.skip(kind, depth)
        return found

    def fields(self) -> Iterator[tuple[int, int]]:
        """The number and type of each field of a structure; whoever asks reads its value before the next one."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            if not 0 < number < 1 << 15:  # Arrow keeps 16 bits of it, and takes 65538 for 2
                raise ValueError(_DAMAGED)
            yield number, head & 15

    def length(self, kind: int) -> int:
        """Of a list of structures that begins here: how many."""
        head = self._byte()
        if kind not in _LISTS or head & 15 != _STRUCT:
            raise ValueError(_DAMAGED)
        return self._unsigned() if head >> 4 == 15 else head >> 4

    def skip(self, kind: int, depth: int = 0) -> None:
        """Pass over a value."""
        if kind in _BOOLEANS:  # the type says which
            return
        if kind in _INTEGERS:
            self._unsigned()
        elif kind in (_BYTE, _DOUBLE):
            self._pass(1 if kind == _BYTE else 8)
        elif kind == _BINARY:
            self._pass(self._unsigned())
        elif kind in _LISTS:
            head = self._byte()
            self._skip_all(self._unsigned() if head >> 4 == 15 else head >> 4, (head & 15,), depth)
        elif kind == _MAP:
            if count := self._unsigned():
                head = self._byte()
                self._skip_all(count, (head >> 4, head & 15), depth)
        elif kind == _STRUCT:
            self.integers(depth + 1)
        else:
            raise ValueError(_DAMAGED)

    def _skip_all(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        if count > self._end - self.at or depth > _DEEPEST:
            raise ValueError(_DAMAGED)
        for _ in range(count):
            for kind in kinds:
                self._pass(1) if kind in _BOOLEANS else self.skip(kind, depth + 1)

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError(_DAMAGED)

    def _byte(self) -> int:
        self._pass(1)
        return self._content[self.at - 1]

    def _pass(self, count: int) -> None:
        self.at += count
        if self.at > self._end:
            raise ValueError(_DAMAGED)
