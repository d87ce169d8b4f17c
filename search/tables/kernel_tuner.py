"""Kernel Tuner's cache files: read into a table, and written from one for its simulation mode.

A cache is a JSON object with the tunable parameters and, for each configuration, what was measured: ``time`` in ms, or
the name of a failure, and ``compile_time``, ``verification_time`` and ``benchmark_time`` in ms. A configuration's key
is its values as text, joined by commas (Kernel Tuner 1.x, `util.process_cache`).
"""

import gzip
import math
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.tables.cache_text import read_cache_text
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.rows import encode_columns
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, DeviceError, TableError, one_line
from tilescout.spaces.inputs import read_at_most, read_regular
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.problems import Problem

if TYPE_CHECKING:
    import pyarrow as pa

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


def read_cache(path: Path, problem: str | None = None) -> tuple[TableCard, "pa.Table"]:
    """The card of a table for a cache file, and the table's columns.

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
    text = _load(path)
    try:
        return _card_and_columns(text, problem)
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


def _load(path: Path) -> str:
    try:
        content = read_regular(path, _LARGEST)
        if content[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=BytesIO(content)) as file:
                content = read_at_most(file, _LARGEST, path)
        if content.count(b",") + content.count(b"[") + content.count(b"{") > _VALUES:
            raise TableError(f"can't read {path}: it has more than {_VALUES} values")
        return content.decode()
    except OSError as error:
        raise TableError(f"can't read {path}: {error.strerror or one_line(error)}") from error
    except (EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TableError(f"can't read {path}: {one_line(error)}") from error


class _Entries:
    """The entries of a cache, as columns.

    Attributes
    ----------
    codes
        Of each knob, the number of the value that each entry has.
    values
        Of each knob, the values in the order of their numbers, by their text.
    times, single, launches
        The time of each entry in µs, not a number where it has none; those of its single launches, and how many of
        them it has.
    seconds
        Of compiling, verifying and measuring.
    errors
        Why an entry has no time, by its number.
    last
        The latest date.
    """

    def __init__(self, header: Mapping[str, Any]) -> None:
        if header.get("objective", "time") not in ("time", ["time"]):
            raise TableError(f"its objective is {header['objective']}: only times can be read")
        names = [str(knob) for knob in header["tune_params_keys"]]
        self.codes: dict[str, array[int]] = {knob: array("i") for knob in names}
        self.values: dict[str, dict[str, CacheValue]] = {knob: {} for knob in names}
        self._number: dict[str, dict[str, int]] = {knob: {} for knob in names}
        self.times, self.single, self.launches = array("d"), array("d"), array("i")
        self.seconds = {name: array("d") for name in ("compile_time", "verification_time", "benchmark_time")}
        self.errors: dict[int, str] = {}
        self.last = ""

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry."""
        for knob, codes in self.codes.items():
            value = entry[knob]
            text = str(value)
            codes.append(self._number[knob].setdefault(text, len(self._number[knob])))
            self.values[knob][text] = value
        time_us = _time_us(entry)
        single: Sequence[float] = ()
        if time_us is None:
            error = next((str(value) for value in entry.values() if value in FAILURES), f"{RUNTIME}: no time")
            self.errors[len(self.times)] = error.encode("utf-8", "backslashreplace").decode()
        else:
            single = [float(time) * 1e3 for time in entry.get("times") or ()] or [time_us]
        self.times.append(math.nan if time_us is None else time_us)
        self.single.extend(single)
        self.launches.append(len(single))
        for name, seconds in self.seconds.items():
            seconds.append(max(float(entry.get(name) or 0), 0.0) / 1e3)
        if "timestamp" in entry:
            self.last = max(self.last, str(entry["timestamp"])[:10])


def _card_and_columns(text: str, name: str | None) -> tuple[TableCard, "pa.Table"]:
    found: list[_Entries] = []

    def begin(header: Mapping[str, Any]) -> Callable[[Any], None]:
        found.append(_Entries(header))
        return found[0].add

    header = read_cache_text(text, begin)
    (entries,) = found
    knobs = {knob: stored(values.values()) for knob, values in entries.values.items()}
    times = np.frombuffer(entries.times)
    timed = np.flatnonzero(~np.isnan(times))
    if not len(timed):
        raise TableError("no configuration has a time")
    median = timed[np.argsort(times[timed], kind="stable")[(len(timed) - 1) // 2]]
    median_us = float(times[median])
    texts = {knob: list(values)[entries.codes[knob][median]] for knob, values in entries.values.items()}
    default = Configuration(tuple((knob, listed[texts[knob]]) for knob, listed in knobs.items()))
    problem = NamedProblem(name or "x".join(map(str, _listed(header["problem_size"]))))
    product = str(header["device_name"])
    card = TableCard(
        space=str(header["kernel_name"]),
        source_hash="",
        knobs={knob: tuple(listed.values()) for knob, listed in knobs.items()},
        device=_short(product),
        product=product,
        driver="unknown",
        versions={},
        protocol=PROTOCOL,
        protocol_text=PROTOCOL_TEXT,
        recorded=date.fromisoformat(entries.last) if entries.last else date.today(),
        library=LIBRARY,
        baselines={problem: Baseline(default, median_us)},
    )
    count = len(times)
    columns: dict[str, Any] = {"problem": [np.zeros(count, np.int32), [str(problem)]]}
    for knob, listed in knobs.items():
        own = [listed[text] for text in entries.values[knob]]
        codes = np.frombuffer(entries.codes[knob], np.int32)
        columns[knob] = [codes, own] if isinstance(own[0], str) else np.array(own, np.int32)[codes]
    columns |= _failures(count, entries.errors) | _timings(entries, median_us)
    compiling, verifying, measuring = (np.frombuffer(each) for each in entries.seconds.values())
    columns |= {"compile_seconds": compiling, "gpu_seconds": verifying + measuring, "verify_seconds": verifying}
    columns["pilot_seconds"] = np.zeros(count)
    return card, encode_columns(card, columns)


def _failures(count: int, errors: Mapping[int, str]) -> dict[str, Any]:
    """The columns of how entries ended."""
    known = list(dict.fromkeys(("", *errors.values())))
    error, status = np.zeros(count, np.int32), np.zeros(count, np.int32)
    for at, text in errors.items():
        error[at] = known.index(text)
        status[at] = 1 if text in (COMPILATION, INVALID) else 2
    ends = [str(each) for each in (Status.OK, Status.COMPILE_ERROR, Status.LAUNCH_ERROR)]
    return {"error": [error, known], "status": [status, ends]}


def _timings(entries: _Entries, median_us: float) -> dict[str, Any]:
    """The columns of times over that of the median configuration; masked where there is none."""
    times, counts = np.frombuffer(entries.times), np.frombuffer(entries.launches, np.int32)
    single, starts = np.frombuffer(entries.single) / median_us, np.cumsum(counts, dtype=np.int64) - counts
    ratio = times / median_us
    q25, q75, low, half = (np.full(len(times), np.nan) for _ in range(4))
    for many in np.unique(counts[counts > 0]):
        rows = np.flatnonzero(counts == many)
        launches = single[starts[rows, None] + np.arange(many)]
        q25[rows], q75[rows] = np.quantile(launches, [0.25, 0.75], axis=1)
        # The half-width of the interval of a mean; one launch tells nothing of it.
        half[rows] = 1.96 * launches.std(axis=1, ddof=1) / math.sqrt(many) if many > 1 else 0.0
        low[rows] = np.maximum(ratio[rows] - half[rows], launches.min(axis=1))
    none = np.isnan(times)
    columns = {
        "ratio": ratio,
        "ratio_q25": q25,
        "ratio_q75": q75,
        "ratio_low": low,
        "ratio_high": ratio + half,
        "library_us": np.full(len(times), median_us),
        "pairs": counts,
    }
    return {name: np.ma.masked_array(values, none) for name, values in columns.items()}


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
