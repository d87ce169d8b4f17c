"""The forms in which tuners write their results, each read into the same entries.

- Kernel Tuner's cache (1.x, `util.process_cache`): an object with ``tune_params_keys`` and an entry a configuration,
  under its values as text with commas between them. Times are in ms; the name of a failure may stand for one.
- Kernel Tuner's result list, as `tune_kernel` returns it: the parameters come first in every entry.
- T4, the results of the autotuning community (TuningSchema 1.0.0): ``configuration``, ``measurements``, ``times``,
  ``invalidity``. Written by Kernel Tuner, and by KTT since 2.2.
- KTT's own results (2.1): ``Configuration``, ``TotalDuration`` and ``Status``.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import takewhile
from typing import Any, ClassVar

from tilescout.search.measure.measurement import Status
from tilescout.search.tables.card import MOST_KNOBS
from tilescout.search.tables.kernel_tuner import CENSORED, COMPILATION, FAILURES, INVALID, RUNTIME, CacheValue
from tilescout.search.tables.result_text import CACHE, KTT, LIST, T4, ResultText
from tilescout.spaces.errors import TableError

TIME = "time"
_OF_KTT = (TIME, "TotalDuration")
"""What KTT calls the time of a configuration, as its converter to T4 does."""

FAILED = 1e20
"""From here on a figure is no figure: some tuners write 1e20, or the largest real, where a configuration failed."""

SECONDS = {
    **dict.fromkeys(("s", "seconds"), 1.0),
    **dict.fromkeys(("ms", "milliseconds", "miliseconds"), 1e-3),  # as files in use spell it
    **dict.fromkeys(("us", "microseconds"), 1e-6),
    **dict.fromkeys(("ns", "nanoseconds"), 1e-9),
}
"""Seconds in a unit, by its names in lower case."""

_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})(?!\d)")
_COSTS = ("compile_time", "verification_time", "benchmark_time")
_MEASURED = (*_COSTS, TIME, "times", "strategy_time", "framework_time", "timestamp", "__error__")


@dataclass(frozen=True)
class Told:
    """A person's word on a file of results, beside or against what it says itself.

    Attributes
    ----------
    kernel, device, problem
        What to call them; None takes what the file says.
    objective
        The figure that is read; None takes the file's.
    maximize
        Whether more of it is better; None takes what is known of it.
    unit
        The unit of times; None takes the file's.
    parameters
        Names of the parameters; none takes the file's.
    """

    kernel: str | None = None
    device: str | None = None
    problem: str | None = None
    objective: str | None = None
    maximize: bool | None = None
    unit: str | None = None
    parameters: tuple[str, ...] = ()


class UntoldError(TableError):
    """A file does not say what is needed to read it, and nobody else did.

    Parameters
    ----------
    fault
        What it does not say.
    fields
        The fields of `Told` that would say it.
    """

    def __init__(self, fault: str, *fields: str) -> None:
        super().__init__(f"{fault}; give the {' and the '.join(fields)}")
        self.fault, self.fields = fault, fields


@dataclass(frozen=True)
class Entry:
    """One try of a configuration.

    Attributes
    ----------
    values
        Of each parameter, in their order.
    figure
        The objective, in its unit; None where it failed.
    launches
        The times of single launches, where they are known.
    status, error, censored
        How it ended; a censored one was given up as too slow, and its figure is only a bound.
    compiling, verifying, measuring
        The times they took, in the unit of the file's times.
    day
        When it was measured, as YYYY-MM-DD; empty if that is not known.
    """

    values: Sequence[CacheValue]
    figure: float | None
    launches: Sequence[float]
    status: Status
    error: str
    compiling: float = 0.0
    verifying: float = 0.0
    measuring: float = 0.0
    day: str = ""
    censored: bool = False


class Form(ABC):
    """Results in one form.

    Parameters
    ----------
    text
        The text.
    told
        What is said of it.

    Attributes
    ----------
    parameters
        Their names.
    objective
        The figure that is read; `settle` may change it.
    """

    _names_of_time: ClassVar[tuple[str, ...]] = (TIME,)

    def __init__(self, text: ResultText, told: Told) -> None:
        self._text, self._told = text, told
        self._first = next(text.entries(), None)
        if self._first is None:
            raise TableError("no configuration has a time")
        self.parameters = list(told.parameters) or self._parameters()
        self.objective = self._own_name(told.objective or self._objective())
        if not self.parameters:
            raise UntoldError("it does not say which values are parameters", "parameters")
        if len(self.parameters) > MOST_KNOBS:
            raise TableError(f"it has {len(self.parameters):,} parameters, and at most {MOST_KNOBS:,} are read")
        if twice := [name for name, times in Counter(self.parameters).items() if times > 1]:
            raise TableError(f"parameter {twice[0]!r} is named twice")

    def entries(self) -> Iterator[Entry]:
        """The entries, in their order."""
        for number, (key, record) in enumerate(self._text.entries()):
            if not isinstance(record, dict):
                raise TableError(f"entry {number} is no object")
            yield self._entry(number, key, record)
        self._text.finish()

    def settle(self) -> bool:
        """Take what the text says behind its entries, once they were read; whether they must be read again for it."""
        return False

    @property
    def figures(self) -> list[str]:
        """The names of the numbers in the first entry that are no parameters, any of which can be the objective."""
        known = self._record().items()
        return [name for name, value in known if type(value) in (int, float) and name not in self.parameters]

    def _own_name(self, objective: str) -> str:
        """The name of an objective here: one that stands for the time is `TIME`."""
        return TIME if objective in self._names_of_time else objective

    @property
    def about(self) -> Mapping[str, Any]:
        """The names in the file, once its entries were read: ``kernel``, ``device``, ``problem``, ``day``, the ``unit``
        of times, and ``figure_unit`` where the objective has its own.
        """
        return {}

    @abstractmethod
    def _parameters(self) -> list[str]: ...

    @abstractmethod
    def _objective(self) -> str: ...

    @abstractmethod
    def _entry(self, number: int, key: str, record: Mapping[str, Any]) -> Entry: ...

    def _record(self) -> Mapping[str, Any]:
        """The first entry."""
        assert self._first is not None
        if not isinstance(self._first[1], dict):
            raise TableError("entry 0 is no object")
        return self._first[1]

    def _values(self, number: int, found: Mapping[str, Any]) -> list[CacheValue]:
        missing = [name for name in self.parameters if name not in found]
        if missing:
            raise TableError(f"entry {number} has no parameter {missing[0]!r}, it has {', '.join(map(str, found))}")
        return [found[name] for name in self.parameters]

    def _figure(self, value: Any) -> float | None:
        """A figure; None for what stands for a failure. Of times, what is not positive does too."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if (0 if self.objective == TIME else -FAILED) < value < FAILED and value == value else None


class ResultList(Form):
    """Kernel Tuner's result list."""

    @property
    def about(self) -> Mapping[str, Any]:
        return {"unit": "ms"}

    def _parameters(self) -> list[str]:
        return list(takewhile(lambda name: name not in (*_MEASURED, self._told.objective), self._record()))

    def _objective(self) -> str:
        return TIME

    def _entry(self, number: int, key: str, record: Mapping[str, Any]) -> Entry:
        named = next((value for value in record.values() if isinstance(value, str) and value in FAILURES), None)
        figure = self._figure(record.get(self.objective)) if named is None and "__error__" not in record else None
        error, status = "", Status.OK
        if figure is None:
            error = named or f"{RUNTIME}: no {self.objective}"
            status = Status.COMPILE_ERROR if error in (COMPILATION, INVALID) else Status.LAUNCH_ERROR
        compiling, verifying, measuring = (_cost(record.get(name)) for name in _COSTS)
        return Entry(
            self._values(number, self._found(key, record)),
            figure,
            _numbers(record.get("times")),
            status,
            error,
            compiling,
            verifying,
            measuring,
            _day(record.get("timestamp")),
            record.get(CENSORED) is True and CENSORED not in self.parameters,
        )

    def _found(self, key: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return record


class Cache(ResultList):
    """Kernel Tuner's cache."""

    @property
    def about(self) -> Mapping[str, Any]:
        names = {"kernel": "kernel_name", "device": "device_name", "problem": "problem_size"}
        return {"unit": "ms"} | {own: self._header[name] for own, name in names.items() if name in self._header}

    @property
    def _header(self) -> Mapping[str, Any]:
        return self._text.header

    def entries(self) -> Iterator[Entry]:
        self._by_text: dict[str, dict[str, CacheValue]] = {}  # anew: behind the entries, values may have been read
        yield from super().entries()

    def settle(self) -> bool:
        before, self.objective = self.objective, self._told.objective or self._objective()
        return self.objective != before

    def _parameters(self) -> list[str]:
        known = self._header if "tune_params" in self._header else self._text.whole_header()
        listed = known.get("tune_params_keys", known.get("tune_params"))
        return super()._parameters() if listed is None else [str(name) for name in listed]

    def _objective(self) -> str:
        """That of the header as far as it was read; behind the entries it is looked for once they were read, too."""
        named = self._header.get("objective", TIME)
        named = named[0] if isinstance(named, list) and len(named) == 1 else named
        if not isinstance(named, str):
            raise UntoldError(f"it has several objectives, {named}", "objective")
        return named

    def _found(self, key: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of an entry; those it lacks are in its key, as text."""
        if all(name in record for name in self.parameters):
            return record
        texts = key.split(",")
        if len(texts) != len(self.parameters):
            return record
        named = zip(self.parameters, texts, strict=True)
        return {**{name: self._values_of(name).get(text, text) for name, text in named}, **record}

    def _values_of(self, name: str) -> Mapping[str, CacheValue]:
        """The values that the header lists of a parameter, by their text: the first of those with the same."""
        if name not in self._by_text:
            by_text: dict[str, CacheValue] = {}
            for value in self._header.get("tune_params", {}).get(name, ()):
                by_text.setdefault(str(value), value)
            self._by_text[name] = by_text
        return self._by_text[name]


class CommunityResults(Form):
    """T4."""

    _names_of_time = _OF_KTT
    _WORDS: ClassVar = {
        "compile": (Status.COMPILE_ERROR, COMPILATION),
        "constraints": (Status.COMPILE_ERROR, INVALID),
        "runtime": (Status.LAUNCH_ERROR, RUNTIME),
        "timeout": (Status.TIMEOUT, "timeout"),
        "correctness": (Status.WRONG, "wrong result"),
    }  # fmt: skip

    @property
    def about(self) -> Mapping[str, Any]:
        metadata = self._text.header.get("metadata")
        known = metadata if isinstance(metadata, dict) else {}
        own = next((each.get("unit") for each in self._measured(self._record())), "")
        units = {"unit": known.get("timeunit") or own, "figure_unit": own or known.get("timeunit")}
        return units | {name: known[name] for name in ("kernel", "device", "problem") if name in known}

    def _parameters(self) -> list[str]:
        return list(_object(self._record(), "configuration"))

    @property
    def figures(self) -> list[str]:
        return list(dict.fromkeys(str(each.get("name")) for each in self._measurements(self._record())))

    def _objective(self) -> str:
        named = self._record().get("objectives") or [TIME]
        if not isinstance(named, list) or len(named) != 1:
            raise UntoldError(f"it has several objectives, {named}", "objective")
        return str(named[0])

    def _measured(self, record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        wanted = _OF_KTT if self.objective == TIME else (self.objective,)
        return (each for each in self._measurements(record) if each.get("name") in wanted)

    def _measurements(self, record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        listed = record.get("measurements")
        return (each for each in (listed if isinstance(listed, list) else ()) if isinstance(each, dict))

    def _entry(self, number: int, key: str, record: Mapping[str, Any]) -> Entry:
        found = {name: _whole(value) for name, value in _object(record, "configuration").items()}
        times = _object(record, "times")
        launches = _numbers(times.get("runtimes"))
        validity = str(record.get("invalidity", "correct"))
        figure = next((self._figure(each.get("value")) for each in self._measured(record)), None)
        status, error = Status.OK, ""
        if validity != "correct":
            status, error = self._WORDS.get(validity, (Status.LAUNCH_ERROR, f"{RUNTIME}: {validity}"))
            figure = None
        elif figure is None:
            status, error = Status.LAUNCH_ERROR, f"{RUNTIME}: no {self.objective}"
        return Entry(
            self._values(number, found),
            figure,
            launches,
            status,
            error,
            _cost(times.get("compilation", times.get("compilation_time"))),
            _cost(times.get("validation")),
            _cost(times.get("benchmark", sum(launches))),
            _day(record.get("timestamp")),
        )


class KttResults(Form):
    """KTT's own."""

    _names_of_time = _OF_KTT
    _WORDS: ClassVar = {
        "CompilationFailed": (Status.COMPILE_ERROR, COMPILATION),
        "DeviceLimitsExceeded": (Status.COMPILE_ERROR, INVALID),
        "ComputationFailed": (Status.LAUNCH_ERROR, RUNTIME),
        "ValidationFailed": (Status.WRONG, "wrong result"),
    }  # fmt: skip

    @property
    def about(self) -> Mapping[str, Any]:
        metadata = self._text.header.get("Metadata")
        known = metadata if isinstance(metadata, dict) else {}
        found = {"unit": known.get("TimeUnit", ""), "kernel": self._record().get("KernelName")}
        return found | {"device": known.get("Device"), "day": _day(known.get("Timestamp"))}

    @property
    def figures(self) -> list[str]:
        records = (self._record(), *self._runs(self._record()))
        known = (name for each in records for name, value in each.items() if type(value) in (int, float))
        return list(dict.fromkeys(known))

    def _parameters(self) -> list[str]:
        return list(self._configuration(self._record()))

    def _objective(self) -> str:
        return TIME

    def _runs(self, record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The results of each function that the kernel is made of."""
        return [each for each in record.get("ComputationResults") or () if isinstance(each, dict)]

    def _configuration(self, record: Mapping[str, Any]) -> dict[str, CacheValue]:
        pairs = record["Configuration"]
        if not isinstance(pairs, list):
            raise TypeError(f"Configuration is {type(pairs).__name__}")
        return {str(pair["Name"]): pair["Value"] for pair in pairs}

    def _entry(self, number: int, key: str, record: Mapping[str, Any]) -> Entry:
        said = str(record.get("Status", "Ok"))
        runs = self._runs(record)
        name = _OF_KTT[1] if self.objective == TIME else self.objective
        # Of the whole configuration, or of each function; the time is that of the whole.
        value = record.get(name) if self.objective == TIME or name in record else _total(runs, name)
        figure = self._figure(value)
        status, error = Status.OK, ""
        if said != "Ok":
            status, error = self._WORDS.get(said, (Status.LAUNCH_ERROR, f"{RUNTIME}: {said}"))
            figure = None
        elif figure is None:
            status, error = Status.LAUNCH_ERROR, f"{RUNTIME}: no {self.objective}"
        compiling = _total(runs, "CompilationOverhead")
        return Entry(
            self._values(number, self._configuration(record)),
            figure,
            (),
            status,
            error,
            _cost(_total(runs, "Overhead") if compiling is None else compiling),
            _cost(record.get("ValidationOverhead")),
            _cost(record.get("TotalDuration")) + _cost(record.get("DataMovementOverhead")),
        )


_FORMS: Mapping[str, Callable[[ResultText, Told], Form]] = {
    CACHE: Cache,
    LIST: ResultList,
    T4: CommunityResults,
    KTT: KttResults,
}


def form_of(text: str, told: Told) -> Form:
    """The results in a text, in the form that it has.

    Raises
    ------
    TableError
        If it does not say what is needed to read it.
    ValueError, KeyError, TypeError, RecursionError
        If it is no such text.
    """
    found = ResultText(text)
    assert found.form is not None
    return _FORMS[found.form](found, told)


def _object(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record[name]
    if not isinstance(found, dict):
        raise TypeError(f"{name} is {type(found).__name__}")
    return found


def _whole(value: CacheValue) -> CacheValue:
    """A value, an integer where it is one as text: so KTT writes all values in T4."""
    if isinstance(value, str) and len(value) < 12:
        try:
            return int(value) if str(int(value)) == value else value
        except ValueError:
            pass
    return value


def _day(stamp: Any) -> str:
    """The day of a time stamp as YYYY-MM-DD; empty without one. KTT writes one digit where one is enough."""
    found = _DATE.match(stamp) if isinstance(stamp, str) else None
    try:
        return str(date(*map(int, found.groups()))) if found else ""
    except ValueError:  # no calendar has it
        return ""


def _numbers(values: Any) -> list[float]:
    """The positive ones of a list of numbers."""
    listed = values if isinstance(values, list) else []
    return [float(value) for value in listed if type(value) in (int, float) and 0 < value < FAILED]


def _cost(value: Any) -> float:
    """A time that something took; 0 where none is stated."""
    return float(value) if type(value) in (int, float) and 0 < value < FAILED else 0.0


def _total(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """The sum of a figure; None if no record has it."""
    found = [float(each[name]) for each in records if type(each.get(name)) in (int, float)]
    return sum(found) if found else None
