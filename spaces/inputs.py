"""Files that are read: regular ones only, and no more of them than is expected.

A named pipe, a device or a socket in the place of a file would have a reader wait forever, and a file without end would
fill its memory. So would a small text that stands for many values, or a parser that takes quadratic time.
"""

import errno
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from gzip import BadGzipFile, GzipFile
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

SMALL = 1 << 20
"""Most bytes of a file that a person writes: a suite, a sub-space, a list of configurations."""

_ITEMS = 1 << 20  # values of a JSON text; an empty list of 3 bytes takes 64 in memory
_DEPTH = 64  # of objects and lists in one another; ours have some 5
# What stands in quotes, and comments; behind a quote that is not closed, the parser reads no further. What is taken of
# a text is not given back, so that it is read once.
_QUOTED = re.compile(
    r"""\"{3}(?:[^"\\]|\\.|"(?!""))*+"{0,5}|'{3}(?:[^']|'(?!''))*+'{0,5}"""  # two quotes may be before the last three
    r"""|"(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?|\#[^\n]*+""",
    re.DOTALL,
)
# A key of more than 16 parts, with empty quotes for all quotes: the parser takes quadratic time for the parts, 75,000
# of them in 150 kB. A value in quotes has no parts, however many dots are in it.
_LONG_KEY = re.compile(r'(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]+|"")[ \t]*\.[ \t]*){16}')

# Halves of characters, which JSON writes as pairs: a half alone is no text, and no file or database takes it. They are
# looked for where one can be: in an escape, in bytes that UTF-8 does not have, and in UTF-16, which has zeros.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|\x00")

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


@contextmanager
def open_regular(path: Path, limit: int, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Open a regular file for reading.

    Parameters
    ----------
    path
        The file.
    limit
        Its size in bytes, at most.
    follow
        Whether `path` may be a symbolic link. The folders on the way there may be in any case.

    Raises
    ------
    OSError
        If it can't be opened, is no regular file, or is larger; `strerror` says so in words.
    """
    _check(path.stat() if follow else path.lstat(), limit, path)  # opening a device may already do something
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        _check(os.fstat(file.fileno()), limit, path)
        yield file


def read_regular(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """The bytes of a regular file; see `open_regular`.

    Raises
    ------
    OSError
        If it can't be read, is no regular file, or is larger; `strerror` says so in words.
    """
    with open_regular(path, limit, follow=follow) as file:
        return read_at_most(file, limit, path)


def read_unpacked(path: Path, limit: int) -> bytes:
    """The bytes of a regular file, or those that are packed in it by gzip.

    Parameters
    ----------
    path
        The file.
    limit
        Most bytes of the file, and of what is packed in it.

    Raises
    ------
    OSError
        If it can't be read, is no regular file, is larger, or is damaged; `strerror` says so in words.
    """
    content = read_regular(path, limit)
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with GzipFile(fileobj=BytesIO(content)) as file:
            return read_at_most(file, limit, path)
    except (BadGzipFile, EOFError, zlib.error) as error:
        raise OSError(errno.EINVAL, f"what is packed in it is damaged ({error})", str(path)) from error


def read_at_most(file: BinaryIO | GzipFile, limit: int, path: Path) -> bytes:
    """The rest of an open file, which may have grown since, or be packed.

    Raises
    ------
    OSError
        If that is more than `limit` bytes.
    """
    content = file.read(limit + 1)
    if len(content) > limit:
        raise _too_large("more", limit, path)
    return content


def parse_json(content: bytes | str, items: int = _ITEMS) -> Any:
    """The value in a JSON text.

    Parameters
    ----------
    content
        The text.
    items
        Most values in it.

    Raises
    ------
    ValueError
        If it is no JSON, or has more values, or they are deep in one another, or a text in it can't be encoded.
    """
    text = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if values_in(text) > items:
        raise ValueError(f"it has more than {items} values")
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # raises a ValueError where a half of a pair is alone
    return value


def values_in(text: bytes) -> int:
    """At least as many as the values in a JSON text of one value or more; no value is made."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a TOML text.

    Raises
    ------
    ValueError
        If it is no TOML, is longer than `SMALL`, or its keys or values are deep in one another.
    """
    if len(text) > SMALL:
        raise ValueError(f"it has {len(text)} characters, and at most {SMALL} are read")
    if _LONG_KEY.search(_QUOTED.sub('""', text)):
        raise ValueError("it has a key of more than 16 parts")
    try:
        value = tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    return value


_TOO_DEEP = f"it has values more than {_DEPTH} deep in one another"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _check(status: os.stat_result, limit: int, path: Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')} and no regular file", str(path))
    if status.st_size > limit:
        raise _too_large(f"{status.st_size / 1e6:.4g} MB", limit, path)


def _too_large(has: str, limit: int, path: Path) -> OSError:
    return OSError(errno.EFBIG, f"it has {has}, and at most {limit / 1e6:.4g} MB are read", str(path))
