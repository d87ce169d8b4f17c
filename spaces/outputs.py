"""Files that are about to be written: one that somebody else made is never replaced."""

import stat
from collections.abc import Callable, Collection
from pathlib import Path

from tilescout.spaces.errors import MALFORMED, TilescoutError
from tilescout.spaces.inputs import open_regular, parse_json, read_regular

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
        Raised if the file is something else.
    """
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            return  # writing fails, and says so
        if stat.S_ISREG(found.st_mode) and (found.st_size == 0 or (found.st_size <= _LARGEST and is_one(path))):
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, TilescoutError, *MALFORMED):
        pass
    raise error(f"{path} is there already and is not {kind}: choose another file, or move it away")


def has_keys(path: Path, *kinds: Collection[str]) -> bool:
    """Whether a file is a JSON object, or a list of such, with all keys of one of some kinds."""
    content = parse_json(read_regular(path, _LARGEST))
    records = content if isinstance(content, list) else [content]
    return all(isinstance(record, dict) and any(set(kind) <= set(record) for kind in kinds) for record in records)


def is_matplotlib(path: Path) -> bool:
    """Whether a file is a picture that Matplotlib drew, as it says of itself."""
    with open_regular(path, _LARGEST) as file:
        start = file.read(1000)
    return start.startswith(b"\x89PNG") and b"Matplotlib" in start
