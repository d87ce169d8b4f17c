"""Errors that code of others raises, a template of a user's own, say: in words, and which of them pass."""

import errno
import sysconfig
from types import TracebackType

from tilescout.spaces.errors import one_line

SHORTAGES = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Numbers of the errors of the system that say nothing of what was tried: room, memory or numbers of files ran out."""

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def described(error: BaseException) -> str:
    """An error on one line: its type, its message, and the last line of the user's own code that it passed."""
    place = place_of(error)
    return f"{type(error).__name__}: {one_line(error)}" + (f" ({place})" if place else "")


def place_of(error: BaseException) -> str:
    """The file, line and function of the user's own code that an error passed last; empty if it passed none.

    A user's own is what is neither tilescout's nor Python's nor an installed package's.
    """
    found, step = "", error.__traceback__
    while step is not None:
        if _is_own(step):
            code = step.tb_frame.f_code
            found = f"{code.co_filename}, line {step.tb_lineno}, in {code.co_name}"
        step = step.tb_next
    return found


def _is_own(step: TracebackType) -> bool:
    frame = step.tb_frame
    file = frame.f_code.co_filename
    ours = str(frame.f_globals.get("__name__")).startswith("tilescout.")
    return not ours and not file.startswith(("<", *_INSTALLED))
