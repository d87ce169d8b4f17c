"""Every error that tilescout raises on purpose.

The message is one line that says what was wrong, what is allowed and, where it helps, what to do next. The command
line prints it and exits with code 2; a library user catches `TilescoutError` or the narrower class.
"""

from collections.abc import Collection, Mapping

from tilescout.spaces.texts import plain, without_secrets

_LONGEST = 4000  # characters of a message, which may quote a file of megabytes
_LINE = 500  # characters of what is quoted on a line, unless less is asked for


class TilescoutError(Exception):
    """Base of all errors of this package.

    Its message is one line of plain text, 4000 characters at most, without passwords of addresses, whatever it quotes.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(cut(without_secrets(plain(message)), _LONGEST))


class ProblemError(TilescoutError):
    """A problem is malformed or not supported by the kernel."""


class DeviceError(TilescoutError):
    """A device is unknown, absent or not what was asked for."""


class SpaceError(TilescoutError):
    """A search space, knob or configuration is unknown or invalid."""


class SamplerError(TilescoutError):
    """A search strategy is unknown or misconfigured."""


class BuildError(TilescoutError):
    """A kernel did not compile or link."""


class ArtifactError(TilescoutError):
    """A compiled kernel is missing, damaged or not what its record says."""


class TableError(TilescoutError):
    """A table of measurements is missing, damaged or belongs to another space."""


class ModelError(TilescoutError):
    """A cost model is missing, damaged, not fitted or not made for what it is asked."""


class BundleError(TilescoutError):
    """An exported bundle is damaged, foreign, of a newer format or for another GPU."""


class ExportError(TilescoutError):
    """Nothing can be exported from what was asked for."""


class NoResultError(TilescoutError):
    """A search found nothing that can be shown."""


class StoreError(TilescoutError):
    """A store, study file or tracking server can't be opened or written."""


class ResumableError(StoreError):
    """A search could not store what came next; what it finished is stored, and it can be resumed.

    The message ends with "go on", so that whoever shows it can add how.
    """


MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""The exceptions that reading a record raises where it does not have the expected form."""


def check_keys(record: Mapping[str, object], known: Collection[str]) -> None:
    """Refuse a record with an unknown key.

    Raises
    ------
    ValueError
        If there is one; the message names it.
    """
    unknown = sorted(set(record) - set(known))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}, known are {', '.join(sorted(known))}")


def one_line(error: BaseException | str, limit: int = _LINE) -> str:
    """An error's message as plain text on one line, cut at `limit` characters."""
    return cut(plain(error) or type(error).__name__, limit)


def fault_of(error: BaseException, limit: int = _LINE) -> str:
    """The fault of a record, by the error that reading it raised, on one line of `limit` characters at most."""
    missing = " is missing" if isinstance(error, KeyError) else ""  # its message is the key alone
    return one_line(error, limit - len(missing)) + missing


def cut(text: str, limit: int) -> str:
    """Text of so many characters at most; dots stand for what is left out."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
