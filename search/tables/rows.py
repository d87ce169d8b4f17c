"""The rows of a table as columns: measurements to Arrow and back, and what must hold of them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.measurement import LARGEST, Clocks, Measurement, Raced, Status, Timing
from tilescout.search.tables.card import TableCard
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Value
from tilescout.spaces.problems import Problem
from tilescout.spaces.resources import Resources
from tilescout.spaces.texts import number_of

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Mapping[str, Value], Problem, Measurement]

_TIMING = tuple(field.name for field in fields(Timing))
_RACED = {f"raced_{field.name}": field.name for field in fields(Raced)}
_RESOURCES = tuple(field.name for field in fields(Resources))
_CLOCKS = tuple(field.name for field in fields(Clocks))
_COSTS = ("compile_seconds", "gpu_seconds", "verify_seconds", "pilot_seconds")
_INTEGERS = ("pairs", "raced_pairs", *_RESOURCES)
_TEXTS = ("problem", "status", "error", "throttle")
_SINGLE = ("pilot_us", "relative_error")
_OUTCOME = ("problem", "status", "error", *_TIMING, *_RACED, *_RESOURCES, *_SINGLE, *_COSTS, *_CLOCKS)
# The format of the first tables with a column, where that is not the oldest that is read.
_SINCE = {"pilot_seconds": 3, "instructions": 4, **dict.fromkeys(_RACED, 5)}
_ALWAYS_READ = tuple(name for name in _RESOURCES if name not in _SINCE)  # off a binary: all of them or none


def schema(card: TableCard) -> "pa.Schema":
    """The columns of a table: the knobs, the problem, and the fields of `Measurement`, flattened.

    Real numbers stay 64 bits wide, so that what is read is exactly what was recorded.

    Raises
    ------
    TableError
        If a knob is called like another column.
    """
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    kinds = {**dict.fromkeys(_TEXTS, text), **dict.fromkeys(_INTEGERS, pa.int32())}
    knobs = {name: text if isinstance(values[0], str) else pa.int32() for name, values in card.knobs.items()}
    outcome = {name: kinds.get(name, pa.float64()) for name in _OUTCOME if card.format >= _SINCE.get(name, 0)}
    _check_names(knobs, outcome)
    absent = {*_TIMING, *_RACED, *_RESOURCES, *_CLOCKS, *_SINGLE}
    return pa.schema([pa.field(name, kind, name in absent) for name, kind in (knobs | outcome).items()])


def check_knobs(knobs: Iterable[str]) -> None:
    """Refuse knobs of which a table can't have columns: to be asked before anything is measured for one.

    Raises
    ------
    TableError
        If one is called like another column.
    """
    _check_names(knobs, _OUTCOME)


def _check_names(knobs: Iterable[str], others: Collection[str]) -> None:
    clash = [name for name in knobs if name in others]
    if clash:
        raise TableError(f"knob {clash[0]} has the name of another column, the others are {', '.join(others)}")


def encode(card: TableCard, rows: Iterable[Row]) -> "pa.Table":
    """The columns of `rows`, in their order.

    Characters of an error that UTF-8 can't express are written as escapes.

    Raises
    ------
    TableError
        If a configuration has other knobs than the card, or a value does not fit its column.
    """
    import pyarrow as pa

    records = [_flatten(card, row) for row in rows]
    expected = schema(card)
    columns = []
    for field in expected:
        try:
            columns.append(pa.array([record[field.name] for record in records], field.type))
        except (ValueError, TypeError, OverflowError) as error:  # Arrow's own are among the first two
            raise TableError(f"column {field.name}: {str(error).splitlines()[0]}") from error
    return pa.Table.from_arrays(columns, schema=expected)


def encode_columns(card: TableCard, columns: Mapping[str, Any]) -> "pa.Table":
    """The same of whole columns: an array, masked where there is nothing; of text, its codes and the texts.

    Columns that are not given have nothing in any row.

    Raises
    ------
    TableError
        If a value does not fit its column.
    """
    import pyarrow as pa

    expected = schema(card)
    count = len(columns["compile_seconds"])
    made: list[pa.Array] = []
    for field in expected:
        try:
            given = columns.get(field.name)
            if given is None:
                made.append(pa.nulls(count, field.type))
            elif pa.types.is_dictionary(field.type):
                codes, texts = given
                made.append(pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(texts, pa.string())))
            else:
                made.append(pa.array(np.ma.getdata(given), field.type, mask=np.ma.getmaskarray(given)))
        except (ValueError, TypeError, OverflowError) as error:
            raise TableError(f"column {field.name}: {str(error).splitlines()[0]}") from error
    return pa.Table.from_arrays(made, schema=expected)


def decode(record: Mapping[str, Any]) -> Measurement:
    """The measurement of a row, given as a value for each column."""
    return Measurement(
        status=Status(record["status"]),
        error=record["error"],
        timing=None if record["ratio"] is None else Timing(**{name: record[name] for name in _TIMING}),
        raced=None
        if record.get("raced_ratio") is None
        else Raced(**{field: record[name] for name, field in _RACED.items()}),
        resources=None
        if record["registers"] is None
        else Resources(**{name: record[name] for name in _RESOURCES if name in record}),
        clocks=None if record["sm_mhz"] is None else Clocks(**{name: record[name] for name in _CLOCKS}),
        **{name: record[name] for name in ("pilot_us", "relative_error", *_COSTS) if name in record},
    )


def positions(column: "pa.ChunkedArray", values: Sequence[Value]) -> NDArray[np.int64]:
    """The position in `values` of each entry of a column; -1 for an entry that is not there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):  # of its texts: Arrow would make one for each row
        whole = column.unify_dictionaries().combine_chunks()
        found = pc.index_in(whole.dictionary, value_set=pa.array(values, column.type.value_type)).take(whole.indices)
    else:
        found = pc.index_in(column, value_set=pa.array(values, column.type))
    return np.asarray(pc.fill_null(found, -1), dtype=np.int64)


def check_columns(card: TableCard, found: "pa.Schema", rows: int) -> None:
    """Refuse columns that are not what `encode` makes, and another number of rows than the card's.

    Raises
    ------
    TableError
        With the first fault.
    """
    expected = schema(card)
    names, times = expected.names, Counter(found.names)  # Arrow makes the lists anew each time
    known = set(names)
    missing = [name for name in names if name not in times]
    extra = [name for name in times if name not in known]
    if missing or extra:
        raise TableError(f"column {missing[0]} is missing" if missing else f"unexpected column {extra[0]}")
    if twice := [name for name in names if times[name] > 1]:
        raise TableError(f"column {twice[0]} is there {times[twice[0]]} times")
    for field in expected:
        if found.field(field.name) != field:
            raise TableError(f"column {field.name}: expected {field.type}, found {found.field(field.name)}")
    if list(times) != names:
        raise TableError(f"wrong order of columns, expected {', '.join(names)}")
    if rows != card.rows:
        raise TableError(f"{number_of(rows, 'row')}, the card says {card.rows}")


def check_outcomes(data: "pa.Table") -> None:
    """Refuse rows that no measurement could have given.

    Raises
    ------
    TableError
        With the first fault and its row.
    """
    for field in data.schema:
        if not field.nullable and data[field.name].null_count:
            raise TableError(f"column {field.name} has missing values")
    status = positions(data["status"], list(Status))
    _refuse(status < 0, f"unknown status, known are {', '.join(Status)}")
    ok = status == list(Status).index(Status.OK)
    of_race = [name for name in _RACED if name in data.column_names]  # none in an older table
    held = {name: np.asarray(data[name].is_valid()) for name in (*_TIMING, *of_race, *_ALWAYS_READ)}
    for name in _TIMING:
        _refuse(held[name] != ok, f"a row has a {name} if, and only if, its status is {Status.OK}")
    for name in of_race:
        _refuse(held[name] & ~ok, f"only a row of status {Status.OK} has a {name}")
        _refuse(held[name] != held[of_race[0]], f"{name} and {of_race[0]} are known together or not at all")
    for name in _ALWAYS_READ:
        _refuse(held[name] != held[_ALWAYS_READ[0]], f"{name} and {_ALWAYS_READ[0]} are known together or not at all")
    pruned = status == list(Status).index(Status.PRUNED)
    _refuse(pruned & ~np.asarray(data["pilot_us"].is_valid()), f"a row has a pilot_us if its status is {Status.PRUNED}")
    for name in (*_TIMING, *_RACED, *_RESOURCES, *_COSTS, "pilot_us"):
        if name not in data.column_names:  # an older table's
            continue
        known = np.asarray(data[name].fill_null(1), dtype=np.float64)
        _refuse(~np.isfinite(known) | (known < 0), f"{name} must be a number of at least 0")
        # A study that replays it could not be read again.
        _refuse(known > LARGEST, f"{name} must be no larger than {LARGEST:.0e}")
        if name in _TIMING or name in _RACED:
            _refuse(known == 0, f"{name} must be more than 0")
    for names in (("ratio_low", "ratio", "ratio_high"), ("raced_low", "raced_ratio", "raced_high")):
        if names[0] in data.column_names:
            low, value, high = (np.asarray(data[name].fill_null(1), dtype=np.float64) for name in names)
            _refuse((value < low) | (value > high), f"{names[1]} must be within {names[0]} and {names[2]}")


def check_unique(keys: NDArray[np.int64]) -> None:
    """Refuse rows with equal keys, of shape [rows, columns].

    Raises
    ------
    TableError
        With the first pair of rows.
    """
    order = np.lexsort(keys.T)  # stable: equal rows keep their order
    equal = np.flatnonzero((keys[order[1:]] == keys[order[:-1]]).all(axis=1))
    if len(equal):
        first, second = order[equal[0]], order[equal[0] + 1]
        raise TableError(f"rows {first} and {second} are of the same configuration and problem; one of them must go")


def _refuse(bad: NDArray[np.bool_], fault: str) -> None:
    if bad.any():
        raise TableError(f"row {bad.argmax()}: {fault}")


def _flatten(card: TableCard, row: Row) -> dict[str, Any]:
    configuration, problem, measurement = row
    if set(configuration) != set(card.knobs):
        raise TableError(f"a configuration has other knobs than {', '.join(card.knobs)}: {dict(configuration)}")
    return {
        **configuration,
        "problem": str(problem),
        "status": str(measurement.status),
        "error": measurement.error.encode("utf-8", "backslashreplace").decode(),
        **{name: getattr(measurement.timing, name, None) for name in _TIMING},
        **{name: getattr(measurement.raced, field, None) for name, field in _RACED.items()},
        **{name: getattr(measurement.resources, name, None) for name in _RESOURCES},
        **{name: getattr(measurement.clocks, name, None) for name in _CLOCKS},
        **{name: getattr(measurement, name) for name in ("pilot_us", "relative_error", *_COSTS)},
    }
