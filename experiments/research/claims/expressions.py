"""Figures from what was recorded, by short expressions: ``median of problems/*/regret``.

An expression is a path into nested mappings and lists, or several and numbers with operations between them, element by
element from left to right. Before it stands how one number is made of them: ``largest of problems/*/fixed over
problems/*/searched``.

A path's parts are separated by slashes: a key, a position, ``*`` for every member, ``key=value`` for the members in
which that holds, and ``key=value&other=value`` for those in which both do. A list or mapping at its end counts as its
length, and nothing (None) as infinite: it was never reached. Expressions are data: they name no code.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.compare.inference import share_interval

Floats = NDArray[np.float64]


def _only(values: Floats) -> float:
    if len(values) != 1:
        raise ValueError(f"{len(values)} values, and nothing says which")
    return float(values[0])


TAKES: dict[str, Callable[[Floats], float]] = {
    "value": _only,
    "sum": lambda values: float(values.sum()),
    "mean": lambda values: float(values.mean()),
    "median": lambda values: float(np.median(values)),
    "geometric mean": lambda values: float(np.exp(np.log(values).mean())),
    "least": lambda values: float(values.min()),
    "largest": lambda values: float(values.max()),
    "90th percentile": lambda values: float(np.quantile(values, 0.9)),
    "least percentage": lambda values: 100 * share_interval(int(values.sum()), len(values))[0],
    "largest percentage": lambda values: 100 * share_interval(int(values.sum()), len(values))[1],
}
"""How one number is made of many, besides `count`; `value` if nothing is said, which there must be one of.

The percentages are the ends of the 95 % interval of the share of ones among zeros and ones.
"""

OPERATIONS: dict[str, Callable[[Floats, Floats], Floats]] = {
    "over": lambda left, right: left / right,
    "times": lambda left, right: left * right,
    "minus": lambda left, right: left - right,
    "plus": lambda left, right: left + right,
    "above": lambda left, right: (left > right).astype(np.float64),
    "below": lambda left, right: (left < right).astype(np.float64),
    "to the": lambda left, right: left**right,
}
"""The operators between two operands; `above` and `below` give 1 where they hold."""

_TAKE = re.compile(rf"({'|'.join(TAKES)}|count) of (.*)")
_OPERATION = re.compile(rf" ({'|'.join(OPERATIONS)}) ")


def evaluate(expression: str, contents: Any) -> float:
    """The value of an expression.

    Parameters
    ----------
    expression
        The expression.
    contents
        What its paths lead into: nested mappings and lists, as JSON holds them.

    Raises
    ------
    LookupError, TypeError, ValueError
        If a path leads to nothing or to what is no number, or the operands do not fit.
    """
    found = _TAKE.fullmatch(expression)
    take, rest = (found[1], found[2]) if found else ("value", expression)
    first, *others = _OPERATION.split(rest)
    if take == "count":
        return float(len(_members(rest, contents)))
    values = _operand(first, contents)
    for operation, operand in zip(others[::2], others[1::2], strict=True):
        right = _operand(operand, contents)
        if len(right) not in (1, len(values)) and len(values) != 1:
            raise ValueError(f"{len(values)} values {operation} {len(right)}")
        values = OPERATIONS[operation](values, right)
    return TAKES[take](values)


def _operand(text: str, contents: Any) -> Floats:
    """The numbers that an operand stands for."""
    try:
        return np.array([float(text)])
    except ValueError:
        pass
    return np.array([_number(member) for member in _members(text, contents)])


def _members(path: str, contents: Any) -> list[Any]:
    """All that a path leads to."""
    members = [contents]
    for part in path.split("/"):
        members = [inner for member in members for inner in _step(member, part)]
    if not members:
        raise LookupError(f"there is nothing at {path}")
    return members


def _number(member: Any) -> float:
    if member is None:
        return float("inf")
    if isinstance(member, list | dict):
        return float(len(member))
    if not isinstance(member, bool | int | float):
        raise TypeError(f"{str(member)[:40]!r} is no number")
    return float(member)


def _step(member: Any, part: str) -> Iterable[Any]:
    """All that a part of a path leads to."""
    if not isinstance(member, list | dict):
        raise LookupError(f"there is no {part} in {member!r}")
    if part not in member and (part == "*" or "=" in part):
        inner = list(member.values()) if isinstance(member, dict) else list(member)
        wanted = [condition.partition("=")[::2] for condition in part.split("&")] if part != "*" else []
        return [one for one in inner if all(str(one[key]) == value for key, value in wanted)]
    return [member[int(part)] if isinstance(member, list) else member[part]]
