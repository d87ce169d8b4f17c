"""Files that are written: what somebody else made is never replaced, and no file is ever half of one."""

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from tilescout.spaces.errors import MALFORMED, StoreError, TilescoutError, one_line
from tilescout.spaces.inputs import open_regular, parse_json, read_regular

_STALE_SECONDS = 3600.0  # nothing is written for that long under a temporary name
_STAGED = ".tilescout-writing-"  # begins the name of what is not complete yet; digits follow
DIGITS = "[0-9a-f]" * 16
"""The digits behind the name of what is not complete yet, as a pattern for `sweep`; ``token_hex(8)`` makes them."""
_LARGEST = 1 << 28  # bytes of a file that is read to see what it is


def check_replaceable(path: Path, kind: str, is_one: Callable[[Path], bool], error: type[TilescoutError]) -> None:
    """Refuse to write over what is not of the kind that is written. Nothing, and an empty file, can be written over.

    Parameters
    ----------
    path
        What is about to be written.
    kind
        The kind, for the message: ``a suite``.
    is_one
        Whether the regular file at a path is of this kind. It may raise what reading something else raises.
    error
        Raised if the file is something else, or can't be looked at.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as fault:  # a folder on the way may not be entered, or a name is too long
        raise error(f"can't look at {path}: {fault.strerror}") from fault
    try:
        if stat.S_ISDIR(found.st_mode):
            return  # writing fails, and says so
        if stat.S_ISREG(found.st_mode) and (found.st_size == 0 or (found.st_size <= _LARGEST and is_one(path))):
            return
    except FileNotFoundError:  # it has gone since
        return
    except (OSError, TilescoutError, *MALFORMED):
        pass
    raise error(f"{path} is there already and is not {kind}: choose another file, or move it away")


def has_keys(path: Path, *kinds: Collection[str]) -> bool:
    """Whether a file is a JSON object, or a list of such or of none, with all keys of one of some kinds."""
    content = parse_json(read_regular(path, _LARGEST))
    records = content if isinstance(content, list) else [content]
    return all(isinstance(record, dict) and any(set(kind) <= set(record) for kind in kinds) for record in records)


def is_matplotlib(path: Path) -> bool:
    """Whether a file is a picture that Matplotlib drew, as it says of itself."""
    with open_regular(path, _LARGEST) as file:
        start = file.read(1000)
    return start.startswith(b"\x89PNG") and b"Matplotlib" in start


def publish(files: Mapping[Path, bytes]) -> None:
    """Put complete files in their places, one right after the other, in this order; folders that lack are made.

    Where one is a link, what it leads to is written. A pipe, a terminal or another device is written to.

    Raises
    ------
    OSError
        If one can't be written; then the files that were there are as they were.
    """
    staged: dict[Path, Path] = {}
    streams = [path for path in files if path.exists() and not path.is_file()]
    try:
        for path in files.keys() - set(streams):
            final = _followed(path)
            final.parent.mkdir(parents=True, exist_ok=True)
            staged[path] = scratch_beside(final)
            with staged[path].open("xb") as file:
                if final.is_file():
                    os.fchmod(file.fileno(), stat.S_IMODE(final.stat().st_mode))
                file.write(files[path])
                file.flush()
                os.fsync(file.fileno())  # or a power cut leaves an empty file under the final name
        for path in files:
            if path in staged:
                staged[path].replace(_followed(path))
            else:
                path.write_bytes(files[path])
    finally:
        for temporary in staged.values():
            with suppress(OSError):
                temporary.unlink()


def _followed(path: Path) -> Path:
    """The place that a path leads to; nothing need be there.

    Raises
    ------
    OSError
        If it is a link that leads in a circle.
    """
    final = Path(os.path.realpath(path))
    if final.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return final


def write_whole(path: Path, content: bytes) -> None:
    """Write one file, see `publish`.

    Raises
    ------
    StoreError
        If it can't be written.
    """
    try:
        publish({path: content})
    except OSError as error:
        raise StoreError(f"can't write {path}: {error.strerror or one_line(error)}") from error


def scratch_beside(path: Path) -> Path:
    """A free name in the folder of a file or folder, for what becomes it by a rename; what killed ones left goes."""
    sweep(path.parent, f"{_STAGED}{DIGITS}")
    return path.with_name(f"{_STAGED}{token_hex(8)}")


def sweep(folder: Path, pattern: str) -> None:
    """Remove what processes that were killed left half-written: what nothing has touched for an hour.

    Parameters
    ----------
    folder, pattern
        Where it lies, and how its names look, as `Path.glob` takes it.
    """
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process was faster
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
