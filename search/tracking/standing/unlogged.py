"""Studies whose tracking was left to a process that goes on alone: what has not arrived is told later."""

import os
import time
from pathlib import Path

from tilescout.spaces.errors import StoreError, cut
from tilescout.spaces.inputs import SMALL, read_regular
from tilescout.spaces.texts import plain

_SUFFIX = ".unlogged"
_LONGEST = 500  # characters of a reason
_UNDER_WAY = 120.0  # seconds in which whoever was left alone has all delivered, or says why not


def _mark(place: Path, study: str) -> Path:
    return place / f"{study}{_SUFFIX}"


def mark(place: Path | str, study: str, why: str = "") -> None:
    """Note that a study is still to be delivered, or why that failed. A link that is there is replaced, not followed.

    Parameters
    ----------
    place
        The folder of the studies.
    study
        Its name.
    why
        The reason; empty while it is under way.

    Raises
    ------
    StoreError
        If that can't be written.
    """
    clear(place, study)
    path = _mark(Path(place), study)
    try:
        with path.open("x") as file:
            file.write(why)
    except OSError as error:
        raise _unwritable(path, error) from error


def clear(place: Path | str, study: str) -> None:
    """Note that a study has been delivered.

    Raises
    ------
    StoreError
        If the note that it is not can't be removed.
    """
    path = _mark(Path(place), study)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def unlogged(place: Path | str) -> dict[str, str]:
    """The studies of a folder that were not delivered, each with the reason; those that are under way are left out.

    None of a folder that can't be read: its studies can't be either, and whoever asks for them is told.
    """
    return {name: why for name, why in _marked(place).items() if why}


def is_any_under_way(place: Path | str) -> bool:
    """Whether a study of a folder is to be delivered by a process that goes on alone."""
    return "" in _marked(place).values()


def _marked(place: Path | str) -> dict[str, str]:
    """The studies of a folder that have marks, each with the reason; empty of those that are under way."""
    try:
        names = sorted(os.listdir(place))
    except OSError:
        return {}
    found = {}
    for path in (Path(place, name) for name in names if name.endswith(_SUFFIX)):
        try:
            why = cut(plain(read_regular(path, SMALL, follow=False).decode(errors="replace")), _LONGEST)
            # A mark of the future is of before the clock was set back, or of another machine.
            if not why and abs(time.time() - path.lstat().st_mtime) > _UNDER_WAY:
                why = "the process that logs ended before it had all"
        except FileNotFoundError:  # it has just arrived
            continue
        except OSError as error:
            why = f"can't read {path}: {error.strerror}"
        found[path.name.removesuffix(_SUFFIX)] = why
    return found


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"can't write {path}: {error.strerror}; move away what is there")
