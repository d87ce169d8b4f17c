"""Files that are read: what is packed in them is whole, or refused in words."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.inputs import parse_toml, read_unpacked

CONTENT = bytes(range(256)) * 40
PACKED = gzip.compress(CONTENT, mtime=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inputs") / "file.gz"


@pytest.mark.parametrize("content", [CONTENT, b"", PACKED])
def test_what_is_packed_is_unpacked_and_anything_else_is_read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_unpacked(path, 1 << 20) == (CONTENT if content == PACKED else content)


@given(at=st.integers(2, len(PACKED) - 1), bit=st.integers(0, 7), cut=st.booleans())
def test_what_is_packed_is_whole_or_refused_in_words(path: Path, at: int, bit: int, cut: bool) -> None:
    path.write_bytes(PACKED[:at] if cut else PACKED[:at] + bytes([PACKED[at] ^ 1 << bit]) + PACKED[at + 1 :])

    found, refusal = CONTENT, "damaged"
    try:
        found = read_unpacked(path, 1 << 20)
    except OSError as error:
        refusal = error.strerror or ""
    assert found == CONTENT
    assert "damaged" in refusal


def test_what_is_packed_is_no_more_than_asked_for(path: Path) -> None:
    path.write_bytes(gzip.compress(bytes(1 << 16)))
    with pytest.raises(OSError, match="at most"):
        read_unpacked(path, 1 << 10)
    with pytest.raises(OSError, match="at most"):
        read_unpacked(path, 10)


@pytest.mark.parametrize("part", ["a.", "'a'.", '"a".', '"\\"".', '"\\\\".', '"a" . '])
def test_a_key_of_many_parts_is_refused_before_it_is_parsed_however_its_parts_are_written(part: str) -> None:
    with pytest.raises(ValueError, match="a key of more than 16 parts"):
        parse_toml(part * 50_000 + "x = 1\n")
    assert parse_toml(part * 3 + "x = 1\n")
