"""Results of other tuners, of any form in `tilescout.search.tables.result_forms`, read into a table."""

import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.measurement import Status
from tilescout.search.measure.provenance import FOREIGN
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.kernel_tuner import CacheValue, stored
from tilescout.search.tables.result_forms import SECONDS, TIME, Form, Told, UntoldError, form_of
from tilescout.search.tables.rows import encode_columns
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import MALFORMED, DeviceError, ProblemError, TableError, fault_of, one_line
from tilescout.spaces.inputs import read_unpacked, values_in
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.texts import number_of

if TYPE_CHECKING:
    import pyarrow as pa

_LARGEST = 1 << 29  # bytes, unpacked; a configuration has some 300
_VALUES = 1 << 26  # in a file; a configuration has some 30

PROTOCOL_TEXT = (
    "Measured by another tuner, as Kernel Tuner or KTT, and read from its results. A time is what the tuner calls the "
    "time of a configuration, by Kernel Tuner's default the mean of some launches; the quartiles are those of the "
    "single launches, and the 95 % interval is that of their mean, where the file has them. Times are relative to that "
    "of the default, the configuration of median time: nothing else is recorded that they could be compared with. GPU "
    "seconds are those of verifying and measuring."
)
OBJECTIVE_TEXT = (
    "The rows are no times but {objective}, of which {better} is better: what stands for a time is {objective} "
    "relative to the median configuration, which counts as {scale:g}, and the smaller the better. "
)
LINE_TEXT = (
    "The rows are no times but {objective}, of which {better} is better, and which is not above 0 everywhere: what "
    "stands for a time follows {objective} in a straight line, on which the median configuration counts as {scale:g}, "
    "the best as half as much, and the smaller the better. "
)
MERGED_TEXT = (
    "The file has {results:,} results of {configurations:,} configurations: what stands for one is their mean."
)
CENSORED_TEXT = (
    "{censored} marked as censored: given up as too slow, so that what one launch told is only a bound of the time."
)
RELATIVE = 100.0
"""Stands for the time of the median configuration, where the objective is no time."""

LIBRARY = "the median configuration"

MORE_IS_BETTER = {
    **dict.fromkeys(("energy", "cost", "loss", "EnergyConsumption"), False),
    **dict.fromkeys(("GFLOP/s", "TFLOP/s", "GB/s", "TB/s", "GFLOPS/W", "TFLOPS/W", "GFLOP/J", "TFLOP/J"), True),
    **dict.fromkeys(("fitness", "score"), True),
}
"""Objectives that are known by name, as in Kernel Tuner's ``objective_default_map``, and whether more is better."""

_COSTS = ("compiling", "verifying", "measuring")
_NOTHING = Told()
_NO_NAME = re.compile(r"[^\w.+-]")  # what a problem's name can't have

Floats = NDArray[np.float64]


def read_results(path: Path, told: Told = _NOTHING) -> tuple[TableCard, "pa.Table"]:
    """The card of a table for a file of results, and the table's columns.

    Knobs hold the values that occur, numbers in their order. Values that no knob can have (reals, booleans, large
    integers) become text, of which `tilescout.search.tables.kernel_tuner.cache_of` makes them again. Configurations
    that failed are kept. Those that were tried several times become one, with the mean of their figures.

    Parameters
    ----------
    path
        A ``.json`` or ``.json.gz`` file; one that Kernel Tuner did not finish is read as far as it goes.
    told
        What the file does not say, or says otherwise.

    Raises
    ------
    TableError
        If the file can't be read, is of no form that is known, does not say what is needed, or holds no figure.
    """
    text = _load(path)
    try:
        with np.errstate(all="ignore"):  # what is no number, or too large for one, is refused with its row
            return _card_and_columns(form_of(text, told), told)
    except MALFORMED as error:
        raise TableError(
            f"{path} holds no results in a form that is read (Kernel Tuner's cache and list, T4, KTT's): "
            f"{fault_of(error)}"
        ) from error
    except UntoldError as error:
        raise UntoldError(f"{path}: {error.fault}", *error.fields) from error
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def merged_text(card: TableCard) -> str:
    """The sentence of a card that says that several results are one configuration's; empty where none are."""
    _, begin, rest = card.protocol_text.partition(MERGED_TEXT.partition("{")[0])
    return begin + rest


def _load(path: Path) -> str:
    try:
        content = read_unpacked(path, _LARGEST)
        if values_in(content) > _VALUES:
            raise TableError(f"can't read {path}: it has more than {_VALUES} values")
        return content.decode("utf-8-sig")  # with the mark that some editors begin a file with
    except OSError as error:
        raise TableError(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TableError(f"can't read {path}: {one_line(error)}") from error


@dataclass(frozen=True, eq=False)
class _Columns:
    """The entries of a file.

    Attributes
    ----------
    codes, values
        Of each parameter, the number of the value that each entry has, and the values in the order of their numbers, by
        their text.
    figures, censored
        Of each entry, not a number where it has none, and whether it is only a bound.
    single, launches
        The times of single launches, entry after entry, and how many of them each entry has.
    costs
        Of compiling, verifying and measuring, of shape [entries] each.
    failures
        How an entry without a figure ended, and why, by its number.
    last
        The latest day; empty if none is known.
    """

    codes: Mapping[str, NDArray[np.int32]]
    values: Mapping[str, Mapping[str, CacheValue]]
    figures: Floats
    censored: NDArray[np.bool_]
    single: Floats
    launches: NDArray[np.int32]
    costs: Mapping[str, Floats]
    failures: Mapping[int, tuple[Status, str]]
    last: str

    def __len__(self) -> int:
        return len(self.figures)

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Which entries have a figure that is no bound."""
        return ~np.isnan(self.figures) & ~self.censored


def _read(form: Form) -> _Columns:
    codes = {name: array("i") for name in form.parameters}
    values: dict[str, dict[str, CacheValue]] = {name: {} for name in form.parameters}
    numbers: dict[str, dict[str, int]] = {name: {} for name in form.parameters}
    figures, censored, single, launches = array("d"), array("b"), array("d"), array("i")
    costs = {name: array("d") for name in _COSTS}
    failures: dict[int, tuple[Status, str]] = {}
    last = ""
    for entry in form.entries():
        for (name, column), value in zip(codes.items(), entry.values, strict=True):
            text = str(value)
            column.append(numbers[name].setdefault(text, len(numbers[name])))
            values[name][text] = value
        if entry.figure is None:
            failures[len(figures)] = (entry.status, entry.error.encode("utf-8", "backslashreplace").decode())
        figures.append(math.nan if entry.figure is None else entry.figure)
        censored.append(entry.figure is not None and entry.censored)
        times = entry.launches if entry.figure is not None and form.objective == TIME and not entry.censored else ()
        single.extend(times)
        launches.append(len(times))
        for name, cost in zip(_COSTS, (entry.compiling, entry.verifying, entry.measuring), strict=True):
            costs[name].append(cost)
        last = max(last, entry.day)
    return _Columns(
        {name: np.frombuffer(column, np.int32) for name, column in codes.items()},
        values,
        np.frombuffer(figures),
        np.frombuffer(censored, np.bool_),
        np.frombuffer(single),
        np.frombuffer(launches, np.int32),
        {name: np.frombuffer(column) for name, column in costs.items()},
        failures,
        last,
    )


def _merged(found: _Columns) -> _Columns:
    """The same with every configuration once, where it stood first: figures and launches of those that did not fail.

    Bounds count only where there is nothing else.
    """
    count = len(found)
    keys = np.column_stack(list(found.codes.values()))
    if len(found.codes) and math.prod(max(len(each), 1) for each in found.values.values()) < 2**62:
        sizes = np.array([max(len(each), 1) for each in found.values.values()], dtype=np.int64)
        keys = (keys * np.concatenate([[1], np.cumprod(sizes[:-1])])).sum(axis=1)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    if len(first) == count:
        return found
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    group, kept = place[inverse.reshape(-1)], np.sort(first)
    censored = np.bincount(group[found.timed], minlength=len(kept)) == 0
    ended = found.timed | (~np.isnan(found.figures) & censored[group])
    known = np.bincount(group[ended], minlength=len(kept))
    with np.errstate(invalid="ignore"):
        figures = np.bincount(group[ended], found.figures[ended], len(kept)) / known
    starts = np.cumsum(found.launches, dtype=np.int64) - found.launches
    order = np.argsort(group, kind="stable")
    taken = [np.arange(starts[row], starts[row] + found.launches[row]) for row in order if found.launches[row]]
    return _Columns(
        {name: column[kept] for name, column in found.codes.items()},
        found.values,
        figures,
        censored & (known > 0),
        found.single[np.concatenate(taken)] if taken else found.single[:0],
        np.bincount(group, found.launches, len(kept)).astype(np.int32),
        {name: np.bincount(group, column, len(kept)).astype(np.float64) for name, column in found.costs.items()},
        {at: found.failures[int(row)] for at, row in enumerate(kept) if not known[at]},
        found.last,
    )


def _card_and_columns(form: Form, told: Told) -> tuple[TableCard, "pa.Table"]:
    read = _read(form)
    if form.settle():
        read = _read(form)
    found = _merged(read)
    about = {name: value for name, value in form.about.items() if value}
    relative = form.objective != TIME
    timed = np.flatnonzero(found.timed)
    if not len(timed):
        known = f", the first entry has {', '.join(form.figures)}" if form.figures else ""
        raise TableError(f"no configuration has {f'the figure {form.objective}' if relative else 'a time'}{known}")
    if told.maximize and not relative:
        raise UntoldError("it is read by its times, of which less is better", "objective")
    upwards = relative and _more_is_better(form.objective, told)
    figures = _relative(found, upwards) if relative else found.figures
    unit = _seconds(told.unit or about.get("unit"), relative)
    per_figure = 1.0 if relative else _seconds(told.unit or about.get("figure_unit", about.get("unit")), False) * 1e6
    times = figures * per_figure
    median = timed[np.argsort(times[timed], kind="stable")[(len(timed) - 1) // 2]]
    median_us = float(times[median])
    knobs = {name: stored(values.values()) for name, values in found.values.items()}
    texts = {name: list(values)[found.codes[name][median]] for name, values in found.values.items()}
    default = Configuration(tuple((name, listed[texts[name]]) for name, listed in knobs.items()))
    named = _named(told, about)
    problem = NamedProblem(told.problem) if told.problem else _problem(named["problem"], form.objective)
    product = str(named["device"])
    day = found.last or about.get("day", "")
    card = TableCard(
        space=str(named["kernel"]),
        source_hash="",
        knobs={name: tuple(listed.values()) for name, listed in knobs.items()},
        device=_short(product),
        product=product,
        driver="unknown",
        versions={},
        protocol=f"{FOREIGN}, {form.objective}" if relative else FOREIGN,
        protocol_text=_protocol_text(form, found, len(read), upwards),
        recorded=date.fromisoformat(day) if day else date.today(),
        library=LIBRARY,
        baselines={problem: Baseline(default, median_us)},
    )
    count = len(found)
    columns: dict[str, Any] = {"problem": [np.zeros(count, np.int32), [str(problem)]], **_knob_columns(found, knobs)}
    columns |= _ends(found) | _timings(found, times, median_us, unit * 1e6)
    compiling, verifying, measuring = (found.costs[name] * unit for name in _COSTS)
    columns |= {"compile_seconds": compiling, "gpu_seconds": verifying + measuring, "verify_seconds": verifying}
    columns["pilot_seconds"] = np.zeros(count)
    columns["pilot_us"] = np.ma.masked_array(times, ~found.censored)
    return card, encode_columns(card, columns)


def _protocol_text(form: Form, found: _Columns, results: int, upwards: bool) -> str:
    """How the rows were measured, in prose, and what they are where they are no times, or means of several results."""
    text = PROTOCOL_TEXT
    if form.objective != TIME:
        said = OBJECTIVE_TEXT if np.nanmin(found.figures) > 0 else LINE_TEXT
        text = said.format(objective=form.objective, better="more" if upwards else "less", scale=RELATIVE) + text
    if censored := int(found.censored.sum()):
        text += " " + CENSORED_TEXT.format(censored=number_of(censored, "row is", "rows are"))
    if results > len(found):
        text += " " + MERGED_TEXT.format(results=results, configurations=len(found))
    return text


def _knob_columns(found: _Columns, knobs: Mapping[str, Mapping[str, Value]]) -> dict[str, Any]:
    """The values of each knob, numbers as they are and texts by their numbers, as `encode_columns` takes them."""
    columns: dict[str, Any] = {}
    for name, listed in knobs.items():
        own = [listed[text] for text in found.values[name]]
        codes = found.codes[name]
        columns[name] = [codes, own] if isinstance(own[0], str) else np.array(own, np.int32)[codes]
    return columns


def _named(told: Told, about: Mapping[str, Any]) -> dict[str, Any]:
    """The kernel, device and problem that results are of."""
    named = {name: getattr(told, name) or about.get(name) for name in ("kernel", "device", "problem")}
    if missing := [name for name, given in named.items() if not given]:
        raise UntoldError(f"it does not name the {', '.join(missing)}", *missing)
    return named


def _problem(size: Any, objective: str) -> NamedProblem:
    """The problem of this size, of which a file may say anything."""
    text = "x".join(map(str, size if isinstance(size, list | tuple) else [size]))
    try:
        return NamedProblem(text if objective == TIME else f"{text}:{_NO_NAME.sub('_', objective)}")
    except ProblemError as error:
        raise UntoldError(one_line(error), "problem") from error


def _seconds(unit: Any, needless: bool) -> float:
    """The seconds in a unit of time; where times decide nothing, an unknown one counts as a millisecond."""
    if str(unit).lower() in SECONDS:
        return SECONDS[str(unit).lower()]
    if unit is None and needless:
        return SECONDS["ms"]
    fault = "it does not name the unit of its times" if unit is None else f"it has times in {unit}"
    raise UntoldError(fault, "unit")


def _more_is_better(objective: str, told: Told) -> bool:
    known = told.maximize if told.maximize is not None else MORE_IS_BETTER.get(objective)
    if known is None:
        raise UntoldError(f"it does not say whether more {objective} is better or worse", "maximize")
    return known


def _relative(found: _Columns, upwards: bool) -> Floats:
    """Stand-ins for times: figures over that of the median configuration, turned over where more is better.

    A ratio says nothing of figures that are not above 0, such as a score that may be negative. There it is a straight
    line, which leaves a comparison's scores as they are.
    """
    figures, timed = found.figures, found.timed
    known = np.sort(figures[timed])
    if np.nanmin(figures) > 0:
        median = known[len(known) // 2 if upwards else (len(known) - 1) // 2]
        return np.asarray(RELATIVE * (median / figures if upwards else figures / median))
    costs = -figures if upwards else figures
    known = np.sort(costs[timed])
    median = known[(len(known) - 1) // 2]
    spread = (median - known[0]) or (known[-1] - median) or 1.0
    return np.asarray(RELATIVE * (1 + (costs - median) / (2 * spread)))


def _ends(found: _Columns) -> dict[str, Any]:
    """The columns of how entries ended."""
    known = list(dict.fromkeys(("", *(error for _, error in found.failures.values()))))
    ends = list(dict.fromkeys((Status.OK, Status.PRUNED, *(status for status, _ in found.failures.values()))))
    error, status = np.zeros(len(found), np.int32), found.censored.astype(np.int32)
    errors = {text: number for number, text in enumerate(known)}
    for at, (end, text) in found.failures.items():
        error[at], status[at] = errors[text], ends.index(end)
    return {"error": [error, known], "status": [status, list(map(str, ends))]}


def _timings(found: _Columns, times: Floats, median_us: float, unit_us: float) -> dict[str, Any]:
    """The columns of times over that of the median configuration; masked where there is none."""
    from scipy.special import stdtrit

    counts = found.launches
    single, starts = found.single * (unit_us / median_us), np.cumsum(counts, dtype=np.int64) - counts
    ratio = times / median_us
    q25, q75, spread = ratio.copy(), ratio.copy(), np.ones(len(times))
    for many in np.unique(counts[counts > 1]):  # one launch tells nothing of the interval
        rows = np.flatnonzero(counts == many)
        launches = single[starts[rows, None] + np.arange(many)]
        q25[rows], q75[rows] = np.quantile(launches, [0.25, 0.75], axis=1)
        # Of the few launches that tuners make, t's interval of the mean is the one that covers. It is taken of the
        # logarithm, as no time is negative.
        error = launches.std(axis=1, ddof=1) / launches.mean(axis=1) / math.sqrt(many)
        spread[rows] = np.exp(stdtrit(many - 1, 0.975) * error)
    none = ~found.timed
    columns = {
        "ratio": ratio,
        "ratio_q25": q25,
        "ratio_q75": q75,
        "ratio_low": ratio / spread,
        "ratio_high": ratio * spread,
        "library_us": np.full(len(times), median_us),
        "pairs": np.maximum(counts, 1),
    }
    return {name: np.ma.masked_array(values, none) for name, values in columns.items()}


def _short(product: str) -> str:
    try:
        return find_device(product).name
    except DeviceError:
        return product
