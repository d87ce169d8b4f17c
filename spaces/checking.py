"""Checks of values: records of a file have the types that their classes state, and settings are numbers."""

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Any, Union, get_args, get_origin, get_type_hints

from tilescout.spaces.errors import SamplerError
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.problems import Problem
from tilescout.spaces.texts import quoted

_LARGEST = 2**53  # of a number: beyond it a float has no fraction, and ours are times, ratios and counts
_DIGITS = 10  # of the number of a trial or a kernel


def check_types(record: Any, checked: tuple[type, ...] = ()) -> None:
    """Refuse a dataclass of which a field, or a field of what is in it, holds something else than its type says.

    Numbers are finite, texts can be encoded. Problems are not looked into: whoever reads them does.

    Parameters
    ----------
    record
        The dataclass.
    checked
        Further classes of which nothing is looked into.

    Raises
    ------
    TypeError
        If there is such a field; the message names it.
    """
    kind: Any = type(record)
    for name, hint in _hints(kind).items():
        if not _fits(getattr(record, name), hint, checked):
            raise TypeError(f"{name} is not {getattr(hint, '__name__', hint)}")


def check_number(name: str, value: Any, whole: bool, least: int = 0, or_none: bool = False) -> None:
    """Refuse a setting that is no finite number, or too small a one.

    Parameters
    ----------
    name
        Says in the message whose setting it is, and which.
    value
        The setting.
    whole
        Whether it has to be a whole number.
    least
        The least that is allowed.
    or_none
        Whether None is allowed, too.

    Raises
    ------
    SamplerError
        If it is none of these.
    """
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not (is_number and least <= value < math.inf) and not (or_none and value is None):
        kind = f"{'whole' if whole else 'finite'} numbers from {least} on{', and None' if or_none else ''}"
        raise SamplerError(f"{name} can't be {value!r}: allowed are {kind}")


def number_of_key(key: object) -> int:
    """The number that is a key of a mapping of JSON, and so a text.

    Python's hashes of all multiples of 2**61 - 1 are equal: a mapping with many of them takes quadratic time.

    Raises
    ------
    ValueError
        If it is no whole number, or has more than ten digits.
    """
    text = str(key)
    if len(text) > _DIGITS:
        raise ValueError(f"no trial and no kernel has the number {quoted(text)}")
    return int(text)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: object, hint: Any, checked: tuple[type, ...]) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each, checked) for each in inner)
    if isinstance(value, Configuration):
        return _fits(dict(value), Mapping[str, Value], checked)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return all(_fits(key, inner[0], checked) and _fits(each, inner[1], checked) for key, each in value.items())
    if origin in (Sequence, tuple) and isinstance(value, list | tuple):
        return all(_fits(each, inner[0], checked) for each in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST  # no NaN
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
    if hint is str:
        return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
    if isinstance(hint, type) and isinstance(value, hint):
        if is_dataclass(value) and not isinstance(value, (Problem, *checked)):
            check_types(value, checked)
        return True
    return value is None and hint in (None, type(None))
