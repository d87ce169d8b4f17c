"""Kernel Tuner's words and values, and a table as a cache for its simulation mode.

A cache is a JSON object with the tunable parameters and, for each configuration, what was measured: ``time`` in ms, or
the name of a failure, and ``compile_time``, ``verification_time`` and ``benchmark_time`` in ms. A configuration's key
is its values as text, joined by commas (Kernel Tuner 1.x, `util.process_cache`). Caches are read by
`tilescout.search.tables.results`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Value
from tilescout.spaces.problems import Problem

INVALID, COMPILATION, RUNTIME = "InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig"
FAILURES = (INVALID, COMPILATION, RUNTIME, "ErrorConfig")
"""The words that stand in place of a time."""

CENSORED = "censored"
"""The mark of an entry that was given up as too slow: its time is only a lower bound. Kernel Tuner does not read it."""

_FAILURE_OF = {Status.COMPILE_ERROR: COMPILATION, Status.COMPILE_TIMEOUT: COMPILATION}
_INT32 = range(-(2**31), 2**31)

CacheValue = int | float | bool | str


def stored(values: Iterable[CacheValue]) -> dict[str, Value]:
    """The form of a parameter's values in a table, by the value as text; numbers in order, the rest as given.

    All integers of 32 bits stay what they are; otherwise all become text.
    """
    given = {str(value): value for value in values}
    numeric = all(isinstance(value, int | float) for value in given.values())
    ordered = sorted(given, key=lambda text: float(given[text])) if numeric else list(given)
    plain = all(type(value) is int and value in _INT32 for value in given.values())
    return {text: int(given[text]) if plain else text for text in ordered}


def cache_of(table: Table, problem: Problem, rows: Sequence[int] | None = None) -> dict[str, Any]:
    """The cache of a problem.

    A pruned configuration has no time; what its one launch suggests stands for it, and it is marked `CENSORED`. Times
    other than the median are not recorded and so not in the cache.

    Parameters
    ----------
    table
        The table.
    problem
        One of its problems.
    rows
        Numbers of the rows to take; None takes all of the problem.

    Raises
    ------
    TableError
        If the table lacks the problem, or two configurations would have the same key.
    """
    chosen = list(table.rows(problem)) if rows is None else rows
    values = {name: dict(zip(listed, restored(listed), strict=True)) for name, listed in table.card.knobs.items()}
    entries: dict[str, dict[str, Any]] = {}
    for row in chosen:
        configuration = {name: values[name][value] for name, value in table.configuration(int(row)).pairs}
        if (key := key_of(configuration.values())) in entries:
            raise TableError(
                f"table {table.path}: two configurations would have the key {key} in a cache, which can't hold both; "
                "their values have commas in them"
            )
        entries[key] = configuration | _outcome(table.measurement(int(row)))
    return {
        "device_name": table.card.product,
        "kernel_name": table.card.space,
        "problem_size": _size(str(problem)),
        "tune_params_keys": list(values),
        "tune_params": {name: list(listed.values()) for name, listed in values.items()},
        "objective": "time",
        "cache": entries,
    }


def key_of(values: Any) -> str:
    """The key of a configuration, given the values of its parameters in order."""
    return ",".join(map(str, values))


def restored(values: Sequence[Value]) -> tuple[CacheValue, ...]:
    """A knob's values as Kernel Tuner had them, where `stored` made text of them because no knob can be so."""
    for kind in (_boolean, int, float):
        try:
            read: tuple[CacheValue, ...] = tuple(kind(value) for value in values)
        except (ValueError, KeyError):
            continue
        if all(str(found) == str(value) for found, value in zip(read, values, strict=True)):
            return read
    return tuple(values)


def _boolean(value: Value) -> bool:
    return {"True": True, "False": False}[str(value)]


def _outcome(measurement: Measurement) -> dict[str, Any]:
    costs = {
        "compile_time": measurement.compile_seconds * 1e3,
        "verification_time": measurement.verify_seconds * 1e3,
        "benchmark_time": (measurement.gpu_seconds - measurement.verify_seconds) * 1e3,
    }
    if measurement.timing is not None:
        return {"time": measurement.time_us / 1e3, "times": [measurement.time_us / 1e3], **costs}
    if measurement.status is Status.PRUNED and measurement.pilot_us is not None:
        return {"time": measurement.pilot_us / 1e3, CENSORED: True, **costs}
    named = measurement.error.split(":")[0]
    return {"time": named if named in FAILURES else _FAILURE_OF.get(measurement.status, RUNTIME), **costs}


def _size(problem: str) -> list[int] | str:
    """A problem's size where its name is nothing else, as Kernel Tuner writes it; else its name."""
    parts = problem.split("x")
    plain = all(part.isascii() and part.isdigit() for part in parts)  # ² is a digit, and no integer
    return [int(part) for part in parts] if plain else problem
