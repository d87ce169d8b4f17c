"""Folders of compiled kernels that nobody else could have filled: loading a kernel is running its code.

A record (of an artifact, or of a bundle) says which bytes are loaded, by their SHA-256. So it is the record that must
be the user's own, or root's; what others put in the place of a record, or of a folder above it, is theirs and is
refused.
"""

import errno
import os
import stat
from grp import getgrgid
from pathlib import Path
from pwd import getpwuid
from typing import BinaryIO

from tilescout.spaces.arguments import check_kind
from tilescout.spaces.errors import StoreError, TilescoutError
from tilescout.spaces.inputs import open_regular, read_at_most

_ACCESS_LIST = "system.posix_acl_access"


def named_folder(folder: Path | str, what: str = "store", error: type[TilescoutError] = StoreError) -> Path:
    """A folder that is named in Python. An empty text, as an unset variable leaves, would mean the working directory.

    Raises
    ------
    TilescoutError
        If it is empty, or no name of a folder: an `error`; `what` says which folder it is.
    """
    check_kind(f"the {what}", folder, str | os.PathLike, error)
    if folder == "":
        raise error(f"the name of the {what} is empty; the working directory is written as a dot")
    return Path(folder)


def check_folder(folder: Path, error: type[TilescoutError]) -> None:
    """Refuse a folder of kernels that is another user's, that others may write, or that anybody may put another for.

    Parameters
    ----------
    folder
        A folder that exists. Links are followed, and the folder that they lead to is judged.
    error
        Raised if others could have filled it.

    Raises
    ------
    OSError
        If it can't be looked at, or is no folder: what is said of a folder could do harm to a device.
    """
    folder = Path(os.path.realpath(folder, strict=True))  # resolve raises no OSError where links lead in a circle
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    _check(folder, status, error)
    for parent in folder.parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise error(
                f"can't trust {folder}: anybody may write {parent}, and put another folder there; use one elsewhere, "
                f"or run `chmod o-w {parent}`"
            )


def read_record(path: Path, limit: int, error: type[TilescoutError]) -> bytes:
    """The bytes of a record that nobody else may have written.

    Parameters
    ----------
    path
        The file; a symbolic link is refused.
    limit
        Its size in bytes, at most.
    error
        Raised if another user owns it, or others may write it.

    Raises
    ------
    OSError
        If it can't be read.
    """
    file: BinaryIO
    with open_regular(path, limit, follow=False) as file:
        _check(path, os.fstat(file.fileno()), error)
        return read_at_most(file, limit, path)


def _check(path: Path, status: os.stat_result, error: type[TilescoutError]) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise error(
            f"can't trust {path}: it belongs to {_user(status.st_uid)}, and what is in it would run as "
            f"{_user(os.geteuid())}; copy it to a folder of your own if you trust who made it, or use another"
        )
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid, path)):
        raise error(
            f"can't trust {path}: others may write it, and what is in it would run as {_user(os.geteuid())}; "
            f"if all in it is yours, run `chmod -R go-w {path}`, or use another"
        )


def _is_private(group: int, path: Path) -> bool:
    """Whether a group is the user's own, with no other member, as many systems make for each user; or root's."""
    try:
        if _ACCESS_LIST in os.listxattr(path):  # the mode's bits then stand for whom the list names
            return False
        user, found = getpwuid(os.geteuid()), getgrgid(group)
    except (OSError, KeyError):
        return False
    own = found.gr_name == user.pw_name and found.gr_gid == user.pw_gid
    return own and set(found.gr_mem) <= {user.pw_name}


def _user(number: int) -> str:
    try:
        return getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
