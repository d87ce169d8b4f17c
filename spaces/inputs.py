"""Files that are read: regular ones only, and no more of them than is expected.

A named pipe, a device or a socket in the place of a file would have a reader wait forever, and a file without end would
fill its memory.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
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


def read_at_most(file: BinaryIO, limit: int, path: Path) -> bytes:
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


def _check(status: os.stat_result, limit: int, path: Path) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')} and no regular file", str(path))
    if status.st_size > limit:
        raise _too_large(f"{status.st_size / 1e6:.4g} MB", limit, path)


def _too_large(has: str, limit: int, path: Path) -> OSError:
    return OSError(errno.EFBIG, f"it has {has}, and at most {limit / 1e6:.4g} MB are read", str(path))
