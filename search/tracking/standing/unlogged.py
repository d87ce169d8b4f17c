"""Studies whose tracking was left to a process that goes on alone: what has not arrived is told later."""

import time
from pathlib import Path

_SUFFIX = ".unlogged"
_UNDER_WAY = 120.0  # seconds in which whoever was left alone has all delivered, or says why not


def _mark(place: Path, study: str) -> Path:
    return place / f"{study}{_SUFFIX}"


def mark(place: Path | str, study: str, why: str = "") -> None:
    """Note that a study is still to be delivered, or why that failed.

    Parameters
    ----------
    place
        The folder of the studies.
    study
        Its name.
    why
        The reason; empty while it is under way.
    """
    _mark(Path(place), study).write_text(why)


def clear(place: Path | str, study: str) -> None:
    """Note that a study has been delivered."""
    _mark(Path(place), study).unlink(missing_ok=True)


def unlogged(place: Path | str) -> dict[str, str]:
    """The studies of a folder that were not delivered, each with the reason; those that are under way are left out."""
    found = {}
    for path in sorted(Path(place).glob(f"*{_SUFFIX}")):
        try:
            why, age = path.read_text(errors="replace"), time.time() - path.stat().st_mtime
        except OSError:  # it has just arrived
            continue
        if why or age > _UNDER_WAY:
            found[path.name.removesuffix(_SUFFIX)] = why or "the process that logs ended before it had all"
    return found
