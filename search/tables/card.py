"""The card beside a table: where its rows come from, without which they mean nothing."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from reprlib import repr as short
from sys import float_info
from typing import Any, Self

from tilescout.search.measure.library_best import LibraryBest
from tilescout.search.measure.protocol import UNNAMED, Objective, protocol_of
from tilescout.search.measure.provenance import FOREIGN, figure_of, unit_of
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import MALFORMED, ProblemError, TableError
from tilescout.spaces.inputs import parse_json
from tilescout.spaces.knobs import LONGEST, Configuration, Value
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import NONE_NAMED, KernelTemplate, Named, find_template, template_names
from tilescout.spaces.texts import is_one_line

FORMAT = 7
_OLDEST = 2  # without pilot_seconds
_NAMED = 6  # the first that names the objective
_INT32 = range(-(2**31), 2**31)  # what an integer column holds

MOST_KNOBS = 1_000
"""Knobs that a table may have, each a column: spaces have some ten, and a small file can name a hundred thousand."""


@dataclass(frozen=True)
class Baseline:
    """The times that the configurations of a problem are compared with.

    Attributes
    ----------
    default
        What is run without any search.
    library_us
        The library's steady time on the problem, in µs.
    library_best
        The fastest of the library's own candidates; its `over` is the time of the last race's answer. None where it was
        not recorded.
    """

    default: Configuration
    library_us: float
    library_best: LibraryBest | None = None

    @property
    def library_best_speedup(self) -> float | None:
        """The speed of the fastest of the library's candidates over its function; None where it was not recorded."""
        return None if self.library_best is None else 1 / self.library_best.ratio.value

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        best = {} if self.library_best is None else {"library_best": self.library_best.to_dict()}
        return {"default": dict(self.default.pairs), "library_us": self.library_us, **best}


@dataclass(frozen=True)
class TableCard:
    """All that is known of a table besides its rows.

    Attributes
    ----------
    space, source_hash
        The template that was measured and the hash of its source at that time.
    knobs
        Names of the knobs, in order, with the values that each can have: all integers of 32 bits or all strings.
    device, product, driver
        Short name of the GPU, what its driver calls it, and the driver's version.
    versions
        Versions of torch, CUDA, the compiler and what else matters.
    protocol, protocol_text
        Name and version of the protocol by which every row was measured (times of different protocols are not
        comparable), and what it does, in prose. It need not be today's: an older protocol's rows replay as they are.
    recorded
        The day on which the recording ended.
    library
        What the library's kernel is called through.
    baselines
        The problems, in order, with what their configurations are compared with.
    rows, size, sha256
        Number of rows, and bytes and checksum of the Parquet file; `write_table` fills them in.
    selection
        How the configurations were chosen, which rows were stopped early, and which were measured anew, in prose; empty
        where it was not written down.
    format
        Version of the files' format: since 3 a row says what its pilot cost (before, verifying included it),
        since 4 how many instructions its kernel has,
        since 5 what a race told apart from what the row's own pairs told, since 6 the card names the objective,
        since 7 a baseline may have the library's best.
    objective
        What ran around a kernel while it was timed.
    """

    space: str
    source_hash: str
    knobs: Mapping[str, tuple[Value, ...]]
    device: str
    product: str
    driver: str
    versions: Mapping[str, str]
    protocol: str
    protocol_text: str
    recorded: date
    library: str
    baselines: Mapping[Problem, Baseline]
    rows: int = 0
    size: int = 0
    sha256: str = ""
    selection: str = ""
    format: int = FORMAT
    objective: Objective = UNNAMED

    def __post_init__(self) -> None:
        """Refuse names that end a line, behind which anything could be told in the place of a message of ours.

        Raises
        ------
        TableError
            If there is one.
        """
        named = [(name, getattr(self, name)) for name in _NAMES]
        named += [("knobs", name) for name in self.knobs]
        named += [("versions", text) for each in self.versions.items() for text in each]
        for name, text in named:
            if not is_one_line(text):
                raise _malformed(name, f"expected a text of one line, found {short(text)}")

    @classmethod
    def of_today(
        cls,
        template: KernelTemplate,
        device: Device,
        objective: Objective,
        *,
        driver: str,
        versions: Mapping[str, str],
        recorded: date,
        libraries: Iterable[str],
        baselines: Mapping[Problem, Baseline],
        selection: str,
    ) -> Self:
        """The card of rows of today's kernels that were measured by today's protocol.

        Parameters
        ----------
        template, device, objective
            Of all rows.
        libraries
            What the library's kernels of the problems are called through.
        driver, versions, recorded, baselines, selection
            See the attributes.
        """
        protocol, text = protocol_of(objective)
        return cls(
            space=template.name,
            source_hash=template.source_hash,
            knobs={knob.name: knob.values for knob in template.knobs},
            device=device.name,
            product=device.product,
            driver=driver,
            versions=versions,
            protocol=protocol,
            protocol_text=text,
            recorded=recorded,
            library=", ".join(dict.fromkeys(libraries)),
            baselines=baselines,
            selection=selection,
            objective=objective,
        )

    @property
    def is_imported(self) -> bool:
        """Whether another tuner measured the rows, in none of our protocols."""
        return self.protocol.startswith(FOREIGN)

    @property
    def figure(self) -> str:
        """The figure of another tuner that stands where times do; empty where there are times."""
        return figure_of(self.protocol)

    @property
    def unit(self) -> str:
        """The unit of what stands where times do: µs, or ``relative``."""
        return unit_of(self.protocol)

    def to_json(self) -> str:
        """The text of the card's file."""
        record = {
            "format": self.format,
            **vars(self),
            "knobs": dict(self.knobs),
            "versions": dict(self.versions),
            "recorded": self.recorded.isoformat(),
            "baselines": {str(problem): baseline.to_dict() for problem, baseline in self.baselines.items()},
        }
        return json.dumps(record, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, named: Named = NONE_NAMED) -> "TableCard":
        """Read what `to_json` wrote; `named` are templates that it may be of beside those that are known.

        Raises
        ------
        TableError
            If it is not a card, or one of a newer format.
        """
        try:
            record = parse_json(text)
        except ValueError as error:
            raise TableError(f"malformed card, not JSON: {error}") from error
        if not isinstance(record, dict):
            raise TableError(f"malformed card: expected an object, found {type(record).__name__}")
        version = _take(record, "format", int)
        if version > FORMAT:
            raise TableError(f"format {version} is newer than {FORMAT}, which this tilescout reads: upgrade tilescout")
        if version < _OLDEST:
            raise _malformed("format", f"expected {_OLDEST} to {FORMAT}, found {version}")
        versions = _take(record, "versions", dict)
        listed = _take(record, "knobs", dict)
        if not 1 <= len(listed) <= MOST_KNOBS:
            raise _malformed("knobs", f"expected 1 to {MOST_KNOBS:,}, found {len(listed):,}")
        knobs = {name: _values(name, values) for name, values in listed.items()}
        own = {name: {value: value for value in values} for name, values in knobs.items()}
        return cls(
            **{name: _take(record, name, str) for name in _STRINGS},
            **{name: _take(record, name, int) for name in _COUNTS},
            format=version,
            selection=_take(record, "selection", str) if "selection" in record else "",
            objective=_objective(_take(record, "objective", str)) if version >= _NAMED else UNNAMED,
            knobs=knobs,
            versions={name: _take(versions, name, str) for name in versions},
            recorded=_day(_take(record, "recorded", str)),
            baselines={
                _problem(name, record["space"], named): _baseline(name, baseline, own)
                for name, baseline in _take(record, "baselines", dict).items()
            },
        )


_STRINGS = (
    "space", "source_hash", "device", "product", "driver", "protocol", "protocol_text", "library", "sha256",
)  # fmt: skip
_NAMES = tuple(name for name in _STRINGS if name != "protocol_text")
_COUNTS = ("rows", "size")
_KINDS = {int: "an integer", str: "a string", dict: "an object"}


def _malformed(name: str, fault: str) -> TableError:
    return TableError(f"malformed card, {name}: {fault}")


def _take(record: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in record:
        raise _malformed(name, "missing")
    if type(record[name]) is not kind:
        raise _malformed(name, f"expected {_KINDS[kind]}, found {short(record[name])}")
    return record[name]


def _objective(text: str) -> Objective:
    try:
        return Objective(text)
    except ValueError as error:
        fault = f"expected {' or '.join(Objective)}, found {short(text)}"
        raise _malformed("objective", fault) from error


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise _malformed("recorded", f"expected a day as YYYY-MM-DD, found {short(text)}") from error


def _problem(name: str, space: str, named: Named) -> Problem:
    """The problem of this name; of a space that no template is here for, names are all that is known."""
    try:
        known = space in named or space in template_names()
        problem = find_template(space, named).parse(name) if known else NamedProblem.parse(name)
    except ProblemError as error:
        raise _malformed("baselines", str(error)) from error
    if str(problem) != name:
        raise _malformed("baselines", f"{name!r} must be written {problem}")
    return problem


def _values(name: str, values: Any) -> tuple[Value, ...]:
    kinds = {type(value) for value in values} if isinstance(values, list) else set()
    fits = all(value in _INT32 for value in values) if kinds == {int} else kinds == {str}
    if kinds == {str} and len(longest := max(values, key=len)) > LONGEST:
        raise _malformed("knobs", f"a value of {name} has {len(longest):,} characters: {LONGEST} at most")
    if not fits or len(set(values)) < len(values):
        fault = f"values of {name}: expected distinct strings or distinct integers of 32 bits, found {short(values)}"
        raise _malformed("knobs", fault)
    return tuple(values)


def _baseline(problem: str, record: Any, own: Mapping[str, Mapping[Any, Value]]) -> Baseline:
    """The baseline of a problem; `own` are the values of each knob, by themselves."""
    if not isinstance(record, dict):
        raise _malformed(problem, f"expected an object, found {short(record)}")
    default = _take(record, "default", dict)
    fits = default.keys() == own.keys() and not any(isinstance(value, list | dict) for value in default.values())
    if not fits or any(default[name] not in values for name, values in own.items()):
        raise _malformed(problem, f"its default is not a configuration of the card's knobs: {short(default)}")
    library_us: Any = record.get("library_us")
    if type(library_us) not in (int, float) or not 0 < library_us <= float_info.max:
        raise _malformed(problem, f"library_us: expected a positive number, found {short(library_us)}")
    values = {name: listed[default[name]] for name, listed in own.items()}  # 64 where the text says 64.0
    return Baseline(Configuration.of(values), float(library_us), _library_best(problem, record.get("library_best")))


def _library_best(problem: str, record: Any) -> LibraryBest | None:
    if record is None:
        return None
    try:
        return LibraryBest.from_dict(record)
    except MALFORMED as error:
        raise _malformed(problem, f"library_best: {error!r}") from error
