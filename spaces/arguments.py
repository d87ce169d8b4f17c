"""Checks of what callers pass: an argument of another kind is told by its name, before anything is begun with it."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, get_args

from tilescout.spaces.errors import TilescoutError, one_line

_WORDS: Mapping[Any, str] = {
    NoneType: "None",
    bool: "True and False",
    str: "texts",
    os.PathLike: "paths",
    Callable: "functions",
    Collection: "sequences",
    Iterable: "sequences",
    Integral: "whole numbers",
    Mapping: "mappings by name",
    Real: "numbers",
}
_TOLD = 60  # characters of an argument, in a message


def check_kinds(error: type[TilescoutError], **given: tuple[object, Any]) -> None:
    """Refuse arguments of kinds that they can't be of; see `check_kind`.

    Parameters
    ----------
    error
        Raised for the first that is.
    given
        By the name of each argument, its value and the class or union that it has to be of.

    Raises
    ------
    TilescoutError
        If there is one: an `error`.
    """
    for name, (value, kind) in given.items():
        check_kind(f"`{name}`", value, kind, error)


def check_kind(what: str, value: object, kind: Any, error: type[TilescoutError]) -> None:
    """Refuse an argument of a kind that it can't be of, and a path that no file can have.

    Parameters
    ----------
    what
        The argument, as the message names it.
    value
        What was passed.
    kind
        The class or union that it has to be of.
    error
        Raised if it is not.

    Raises
    ------
    TilescoutError
        If it is something else: an `error`.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    fits = isinstance(value, kind) and (bool in kinds or not isinstance(value, bool))  # to Python it is a number
    named = isinstance(value, str | os.PathLike) and os.PathLike in kinds
    if not fits or (named and not isinstance(os.fspath(value), str)):  # type: ignore[call-overload]
        *some, last = (_WORDS.get(each, each.__name__) for each in kinds)
        raise error(f"{what} can't be {_told(value)}: allowed are {', '.join(some)}{' and ' * bool(some)}{last}")
    if named and "\0" in str(value):
        raise error(f"{what} can't be {_told(value)}: no path has a null character")
    if Mapping in kinds and isinstance(value, Mapping) and (odd := [key for key in value if not isinstance(key, str)]):
        raise error(f"{what} can't have the name {_told(odd[0])}: names are texts")


def _told(value: object) -> str:
    """A value as a message tells it, which may be of any class."""
    try:
        return one_line(repr(value), _TOLD)
    except Exception:  # of code that is not ours
        return f"an object of type {type(value).__name__}"
