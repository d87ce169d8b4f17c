"""Kernel Tuner's cache files: read into a table, and written from one for its simulation mode.

A cache is a JSON object with the tunable parameters and, for each configuration, what was measured: ``time`` in ms, or
the name of a failure, and ``compile_time``, ``verification_time`` and ``benchmark_time`` in ms. A configuration's key
is its values as text, joined by commas (Kernel Tuner 1.x, `util.process_cache`).
"""

import gzip
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, DeviceError, TableError, one_line
from tilescout.spaces.inputs import parse_json, read_at_most, read_regular
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.problems import Problem

_LARGEST = 1 << 29  # bytes, unpacked; a configuration has some 300
_VALUES = 1 << 26  # in a cache; a configuration has some 30

INVALID, COMPILATION, RUNTIME = "InvalidConfig", "CompilationFailedConfig", "RuntimeFailedConfig"
FAILURES = (INVALID, COMPILATION, RUNTIME, "ErrorConfig")
"""The words that stand in place of a time."""

PROTOCOL = "kernel-tuner"
PROTOCOL_TEXT = (
    "Measured by Kernel Tuner and read from its cache file. A time is what Kernel Tuner calls the time of a "
    "configuration, by its default the mean of some launches; the quartiles are those of the single launches, and the "
    "95 % interval is that of their mean, where the file has them. Times are relative to that of the default, the "
    "configuration of median time: nothing else is recorded that they could be compared with. GPU seconds are those of "
    "verifying and measuring."
)
LIBRARY = "the median configuration"

_FAILURE_OF = {Status.COMPILE_ERROR: COMPILATION, Status.COMPILE_TIMEOUT: COMPILATION}
_INT32 = range(-(2**31), 2**31)

CacheValue = int | float | bool | str


def read_cache(path: Path, problem: str | None = None) -> tuple[TableCard, list[Row]]:
    """The rows of a cache file, and the card of a table for them.

    Knobs hold the values that occur, numbers in their order. Values that no knob can have (reals, booleans, large
    integers) become text, of which `cache_of` makes them again. Configurations that failed are kept.

    Parameters
    ----------
    path
        A ``.json`` or ``.json.gz`` file; one that Kernel Tuner did not finish is read as far as it goes.
    problem
        What to call the problem; None takes its size.

    Raises
    ------
    TableError
        If the file can't be read, is no cache, minimises something else than time, or holds no time.
    """
    cache = _load(path)
    try:
        return _card_and_rows(cache, problem)
    except MALFORMED as error:
        raise TableError(f"{path} is not a cache file of Kernel Tuner: {one_line(repr(error))}") from error
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def stored(values: Iterable[CacheValue]) -> dict[str, Value]:
    """The form of a parameter's values in a table, by the value as text; numbers in order, the rest as given.

    All integers of 32 bits stay what they are; otherwise all become text.
    """
    given = {str(value): value for value in values}
    numeric = all(isinstance(value, int | float) for value in given.values())
    ordered = sorted(given, key=lambda text: float(given[text])) if numeric else list(given)
    plain = all(type(value) is int and value in _INT32 for value in given.values())
    return {text: int(given[text]) if plain else text for text in ordered}


def _load(path: Path) -> Mapping[str, Any]:
    try:
        content = read_regular(path, _LARGEST)
        if content[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=BytesIO(content)) as file:
                content = read_at_most(file, _LARGEST, path)
        text = content.decode()
    except OSError as error:
        raise TableError(f"can't read {path}: {error.strerror or one_line(error)}") from error
    except (EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TableError(f"can't read {path}: {one_line(error)}") from error
    try:
        cache = parse_json(text, _VALUES)
    except ValueError:
        try:
            cache = parse_json(text.rstrip().rstrip(",") + "}}", _VALUES)  # Kernel Tuner closes a file when it is done
        except ValueError as error:
            raise TableError(f"{path} is not a cache file of Kernel Tuner: {one_line(error)}") from error
    if not isinstance(cache, dict) or not isinstance(cache.get("cache"), dict):
        raise TableError(f"{path} is not a cache file of Kernel Tuner: it has no cache")
    return cache


def _card_and_rows(cache: Mapping[str, Any], name: str | None) -> tuple[TableCard, list[Row]]:
    if cache.get("objective", "time") not in ("time", ["time"]):
        raise TableError(f"its objective is {cache['objective']}: only times can be read")
    entries = list(cache["cache"].values())
    values = {knob: stored(entry[knob] for entry in entries) for knob in cache["tune_params_keys"]}
    configurations = [
        Configuration(tuple((knob, listed[str(entry[knob])]) for knob, listed in values.items())) for entry in entries
    ]
    times = sorted((time, at) for at, entry in enumerate(entries) if (time := _time_us(entry)) is not None)
    if not times:
        raise TableError("no configuration has a time")
    median_us, median = times[(len(times) - 1) // 2]
    problem = NamedProblem(name or "x".join(map(str, _listed(cache["problem_size"]))))
    stamps = [str(entry["timestamp"])[:10] for entry in entries if "timestamp" in entry]
    product = str(cache["device_name"])
    card = TableCard(
        space=str(cache["kernel_name"]),
        source_hash="",
        knobs={knob: tuple(listed.values()) for knob, listed in values.items()},
        device=_short(product),
        product=product,
        driver="unknown",
        versions={},
        protocol=PROTOCOL,
        protocol_text=PROTOCOL_TEXT,
        recorded=date.fromisoformat(max(stamps)) if stamps else date.today(),
        library=LIBRARY,
        baselines={problem: Baseline(configurations[median], median_us)},
    )
    measured = (_measurement(entry, median_us) for entry in entries)
    return card, [
        (configuration, problem, found) for configuration, found in zip(configurations, measured, strict=True)
    ]


def _measurement(entry: Mapping[str, Any], median_us: float) -> Measurement:
    compiling, verifying, measuring = (
        max(float(entry.get(name) or 0), 0.0) / 1e3 for name in ("compile_time", "verification_time", "benchmark_time")
    )
    time_us = _time_us(entry)
    timing, status, error = None, Status.OK, ""
    if time_us is not None:
        timing = _timing(time_us, [float(time) * 1e3 for time in entry.get("times") or ()], median_us)
    else:
        error = next((str(value) for value in entry.values() if value in FAILURES), f"{RUNTIME}: no time")
        status = Status.COMPILE_ERROR if error in (COMPILATION, INVALID) else Status.LAUNCH_ERROR
    return Measurement(
        status,
        error,
        timing,
        compile_seconds=compiling,
        gpu_seconds=verifying + measuring,
        verify_seconds=verifying,
    )


def _timing(time_us: float, single: Sequence[float], median_us: float) -> Timing:
    """The times of a configuration over that of the median one."""
    launches = np.array(single or [time_us]) / median_us
    ratio = time_us / median_us
    # The half-width of the interval of a mean; one launch tells nothing of it.
    half = 1.96 * float(launches.std(ddof=1)) / math.sqrt(len(launches)) if len(launches) > 1 else 0.0
    low, high = float(np.quantile(launches, 0.25)), float(np.quantile(launches, 0.75))
    return Timing(ratio, low, high, max(ratio - half, float(launches.min())), ratio + half, median_us, len(launches))


def _time_us(entry: Mapping[str, Any]) -> float | None:
    time = entry.get("time")
    if "__error__" in entry or not isinstance(time, int | float) or not 0 < time < math.inf:
        return None
    return float(time) * 1e3


def _listed(size: Any) -> list[Any]:
    return list(size) if isinstance(size, list | tuple) else [size]


def _short(product: str) -> str:
    try:
        return find_device(product).name
    except DeviceError:
        return product


def cache_of(table: Table, problem: Problem, rows: Sequence[int] | None = None) -> dict[str, Any]:
    """The cache of a problem.

    A pruned configuration has no time; what its one launch suggests stands for it, and it is marked ``censored``, which
    Kernel Tuner does not read. Times other than the median are not recorded and so not in the cache.

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
        If the table lacks the problem.
    """
    chosen = list(table.rows(problem)) if rows is None else rows
    values = {name: restored(listed) for name, listed in table.card.knobs.items()}
    entries = {}
    for row in chosen:
        configuration = {
            name: values[name][table.card.knobs[name].index(value)]
            for name, value in table.configuration(int(row)).items()
        }
        entries[key_of(configuration.values())] = configuration | _outcome(table.measurement(int(row)))
    return {
        "device_name": table.card.product,
        "kernel_name": table.card.space,
        "problem_size": _size(str(problem)),
        "tune_params_keys": list(values),
        "tune_params": {name: list(listed) for name, listed in values.items()},
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
        return {"time": measurement.pilot_us / 1e3, "censored": True, **costs}
    named = measurement.error.split(":")[0]
    return {"time": named if named in FAILURES else _FAILURE_OF.get(measurement.status, RUNTIME), **costs}


def _size(problem: str) -> list[int] | str:
    """A problem's size where its name is nothing else, as Kernel Tuner writes it; else its name."""
    parts = problem.split("x")
    return [int(part) for part in parts] if all(part.isdigit() for part in parts) else problem
