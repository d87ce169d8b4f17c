"""Recorded measurements of a space on some problems: the ground truth that searches are replayed on.

A table is a Parquet file, one row a configuration and problem, and a JSON card beside it with the same stem.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Dataset
from tilescout.search.tables.card import TableCard
from tilescout.search.tables.pages import check_flat, unpacked_size
from tilescout.search.tables.rows import (
    Row,
    check_columns,
    check_outcomes,
    check_unique,
    decode,
    encode,
    positions,
)
from tilescout.spaces.errors import TableError
from tilescout.spaces.inputs import read_regular
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.outputs import check_replaceable, has_keys, publish
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import Indices
from tilescout.spaces.templates import NONE_NAMED, KernelTemplate, Named
from tilescout.spaces.texts import number_of, printable
from tilescout.spaces.trust import named_folder

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SUFFIX = ".parquet"
_CARD = ("space", "knobs", "baselines", "sha256")  # what the cards of all formats have, and their tables
_COLUMNS = ("problem", "status", "library_us")
_LARGEST, _LARGEST_CARD = 1 << 30, 1 << 24  # bytes; a million rows have some 100 MB, a card of 40 problems 11 kB
_UNPACKED = 1 << 31  # bytes of all columns, as their pages declare them
_VALUE = 8  # bytes of a value in memory, at most


@dataclass(frozen=True)
class ProblemSummary:
    """The number of rows of one problem, by outcome, with its best and its default.

    Attributes
    ----------
    problem
        The problem.
    rows, ok, pruned
        Configurations that were tried, those that were right and timed, and those right and too slow to be timed.
    library_us
        The library's steady time, in µs.
    best, best_timing
        The fastest configuration and its times; None if none was ok.
    default_timing
        The times of the default configuration; None if it was not tried or failed.
    """

    problem: Problem
    rows: int
    ok: int
    pruned: int
    library_us: float
    best: Configuration | None
    best_timing: Timing | None
    default_timing: Timing | None

    @property
    def failed(self) -> int:
        """Configurations that were tried and failed."""
        return self.rows - self.ok - self.pruned


class Table:
    """Measurements in memory, with the card that says where they come from.

    Parameters
    ----------
    card
        The card.
    data
        The rows, with the columns of `tilescout.search.tables.rows.schema`.
    path
        The Parquet file.

    Raises
    ------
    TableError
        If the rows are not what the card says, or no measurements.
    """

    def __init__(self, card: TableCard, data: "pa.Table", path: Path) -> None:
        check_columns(card, data.schema, data.num_rows)
        check_outcomes(data)
        self.card = card
        self.data = data.combine_chunks()
        self.path = path
        self.problems = list(card.baselines)
        self._of_problem = self._positions("problem", [str(problem) for problem in self.problems])
        # The position of each knob's value among the card's, of shape [rows, knobs].
        self._codes = np.stack([self._positions(name, values) for name, values in card.knobs.items()], axis=1)
        check_unique(np.column_stack([self._of_problem, self._codes]))

    @staticmethod
    def read_card(path: Path | str, named: Named = NONE_NAMED) -> TableCard:
        """The card of the table in a file, whose rows are not read; see `read`."""
        path = named_folder(path, "table", TableError)
        with _naming(path):
            return _read_card(path, named)

    @classmethod
    def read(cls, path: Path | str, named: Named = NONE_NAMED) -> "Table":
        """Read a table and check it against its card.

        Parameters
        ----------
        path
            The Parquet file.
        named
            Templates that the table may be of, beside those that tilescout and installed packages bring. The problems
            of a table of any other space are known by their names only.

        Raises
        ------
        TableError
            If a file is missing, damaged, of a newer format or not what the card says.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = named_folder(path, "table", TableError)
        with _naming(path):
            _check_suffix(path, "; `tilescout tables import` makes one of results of another tuner")
            content = _read(path, "it does not exist; `tilescout tables` lists the shipped ones", _LARGEST)
            card = _read_card(path, named)
            _check_content(card, content)
            try:
                check_flat(content)
                file = pq.ParquetFile(pa.BufferReader(content))
                check_columns(card, file.schema_arrow, file.metadata.num_rows)
                _check_declared(content, file.metadata)
                # Arrow's pool of threads, once it was used, aborts one process in 50 while it ends, on a busy machine
                # (apache/arrow#34314; 3 of 150 with Arrow 25, 2026-11-22).
                data = file.read(use_threads=False)
                data.validate(full=True)  # that text is in UTF-8
            except (pa.ArrowException, OSError, ValueError) as error:
                raise TableError(f"not a Parquet file: {str(error).splitlines()[0]}") from error
            return cls(card, data, path)

    def __len__(self) -> int:
        return int(self.data.num_rows)

    def __repr__(self) -> str:
        card = self.card
        size = f"{number_of(len(self.problems), 'problem')}, {number_of(len(self), 'row')}"
        return f"Table({self.path.name}: {card.space} on {card.device}, {size})"

    @property
    def extent(self) -> str:
        """Its size in words, such as ``2,000 rows of 24 problems``."""
        return f"{number_of(len(self), 'row')} of {number_of(len(self.problems), 'problem')}"

    @property
    def dataset(self) -> Dataset:
        """The table as a tracker lists it."""
        columns = {column.name: str(column.type) for column in self.data.schema}
        return Dataset(
            printable(self.path.name), printable(str(self.path.absolute())), self.card.sha256, len(self), columns
        )

    @cached_property
    def pruned(self) -> NDArray[np.bool_]:
        """Whether each row was pruned, of shape [rows]."""
        return np.asarray(positions(self.data["status"], [Status.PRUNED]) == 0)

    @cached_property
    def pilots_us(self) -> NDArray[np.float64]:
        """The time of every row's pilot in µs, of shape [rows]; NaN where there is none."""
        return np.asarray(self.data["pilot_us"], dtype=np.float64)

    @cached_property
    def times_us(self) -> NDArray[np.float64]:
        """The time of every row in µs, of shape [rows]; infinite where there is none."""
        ratio, library_us = (np.asarray(self.data[name].fill_null(np.inf)) for name in ("ratio", "library_us"))
        times: NDArray[np.float64] = ratio * library_us
        return times

    @cached_property
    def _rows_of(self) -> dict[Problem, NDArray[np.int64]]:
        # All at once: a pass over the rows for each of many problems takes minutes.
        order = np.argsort(self._of_problem, kind="stable")
        ends = np.cumsum(np.bincount(self._of_problem, minlength=len(self.problems)))
        return dict(zip(self.problems, np.split(order, ends[:-1]), strict=True))

    @cached_property
    def _places(self) -> dict[str, dict[Value, int]]:
        return {name: {value: place for place, value in enumerate(values)} for name, values in self.card.knobs.items()}

    @cached_property
    def _summaries(self) -> tuple[ProblemSummary, ...]:
        return tuple(self._summarise(problem) for problem in self.problems)

    def problem(self, text: str) -> Problem:
        """The problem that is written so.

        Raises
        ------
        TableError
            If the table lacks it.
        """
        for problem in self.problems:
            if str(problem) == text:
                return problem
        raise self._lacks(text)

    def rows(self, problem: Problem) -> NDArray[np.int64]:
        """The numbers of a problem's rows, ascending.

        Raises
        ------
        TableError
            If the table lacks the problem.
        """
        if problem not in self.card.baselines:
            raise self._lacks(str(problem))
        return self._rows_of[problem].copy()

    def row(self, configuration: Mapping[str, Value], problem: Problem) -> int | None:
        """The number of the row of a configuration and problem; None if it was not tried.

        Raises
        ------
        TableError
            If the table lacks the problem.
        """
        among = self.rows(problem)
        given = dict(configuration.pairs if isinstance(configuration, Configuration) else configuration)
        if given.keys() != self._places.keys():
            return None
        code = [place_of.get(given[name]) for name, place_of in self._places.items()]
        if None in code:
            return None
        found = among[(self._codes[among] == code).all(axis=1)]
        return int(found[0]) if len(found) else None

    def configuration(self, row: int) -> Configuration:
        """The configuration of a row."""
        codes = zip(self.card.knobs.items(), self._codes[row], strict=True)
        return Configuration(tuple((name, values[code]) for (name, values), code in codes))

    def measurement(self, row: int) -> Measurement:
        """The measurement of a row, exactly as it was recorded."""
        return decode({name: self.data[name][row].as_py() for name in self.data.column_names})

    def codes(self, knobs: Sequence[Knob], rows: Indices | slice = slice(None)) -> NDArray[np.int64]:
        """The configurations of rows in the codes of `knobs`, of shape [rows, knobs]; by default those of all.

        The knobs are those of a template that `check_space` accepts.
        """
        names, own = list(self.card.knobs), self._codes[rows]
        columns = []
        for knob in knobs:
            code_of = np.array([knob.code(value) for value in self.card.knobs[knob.name]], dtype=np.int64)
            columns.append(code_of[own[:, names.index(knob.name)]])
        return np.stack(columns, axis=1)

    def check_space(self, template: KernelTemplate) -> None:
        """Refuse a template that the rows can't be configurations of.

        A template whose source has changed since is accepted: see `stale_for`.

        Raises
        ------
        TableError
            If its name differs, its knobs differ, or a knob has lost a value.
        """
        if template.name != self.card.space:
            raise self._error(f"it is of the space {self.card.space}, not of {template.name}")
        values = {knob.name: dict.fromkeys(knob.values) for knob in template.knobs}
        for name, recorded in self.card.knobs.items():
            if name not in values:
                raise self._error(f"{template.name} has no knob {name}, its knobs are {', '.join(values)}")
            outside = [value for value in recorded if value not in values[name]]
            if outside:
                allowed = ", ".join(map(str, values[name]))
                raise self._error(f"knob {name} of {template.name} can't be {outside[0]}, allowed are {allowed}")
        missing = [name for name in values if name not in self.card.knobs]
        if missing:
            raise self._error(f"it lacks the knob {missing[0]} of {template.name}")

    def fits(self, template: KernelTemplate) -> bool:
        """Whether `check_space` accepts a template."""
        try:
            self.check_space(template)
        except TableError:
            return False
        return True

    def stale_for(self, template: KernelTemplate) -> bool:
        """Whether the template's source has changed since the table was recorded; no other tuner's table has one."""
        return not self.card.is_imported and template.source_hash != self.card.source_hash

    def summarise(self) -> list[ProblemSummary]:
        """The summary of each problem."""
        return list(self._summaries)

    def _summarise(self, problem: Problem) -> ProblemSummary:
        baseline = self.card.baselines[problem]
        rows = self.rows(problem)
        times = self.times_us[rows]
        ok = int(np.isfinite(times).sum())
        best = int(rows[times.argmin()]) if ok else None
        default = self.row(baseline.default, problem)
        return ProblemSummary(
            problem=problem,
            rows=len(rows),
            ok=ok,
            pruned=int(self.pruned[rows].sum()),
            library_us=baseline.library_us,
            best=None if best is None else self.configuration(best),
            best_timing=None if best is None else self.measurement(best).timing,
            default_timing=None if default is None else self.measurement(default).timing,
        )

    def _positions(self, column: str, values: Sequence[Value]) -> NDArray[np.int64]:
        found = positions(self.data[column], values)
        if (found < 0).any():
            row = int(found.argmin())
            raise TableError(f"row {row}: {column} is {self.data[column][row]}, which the card does not list")
        return found

    def _lacks(self, problem: str) -> TableError:
        return self._error(f"it holds nothing of {problem}, only {', '.join(map(str, self.problems))}")

    def _error(self, fault: str) -> TableError:
        return TableError(f"table {self.path}: {fault}")


def card_path(path: Path) -> Path:
    """Where the card of the table at `path` is."""
    return path.with_suffix(".json")


def write_table(path: Path, card: TableCard, rows: "Iterable[Row] | pa.Table") -> Table:
    """Write a table and its card; a table that is there already is replaced, but no other file.

    Both files are complete before either takes its place, the card last. If the process dies between the two, reading
    says that the data are not those of the card.

    Parameters
    ----------
    path
        The Parquet file; its folder is made if it does not exist.
    card
        What is known; its `rows`, `size` and `sha256` are filled in.
    rows
        Configuration, problem and measurement, in the order in which the table shall have them; or the columns that
        `encode_columns` made of them.

    Returns
    -------
    Table
        The table, read back.

    Raises
    ------
    TableError
        If a row does not fit the card, a configuration occurs twice for a problem, or a file can't be written or is
        something else.
    """
    import pyarrow as pa

    with _naming(path):
        check_table_files(path)
        card = TableCard.from_json(card.to_json())
        data = rows if isinstance(rows, pa.Table) else encode(card, rows)
        card = replace(card, rows=data.num_rows)
        Table(card, data, path)  # refuses, like the two lines above, what could not be read again
        content = _to_parquet(data)
        card = replace(card, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        try:
            publish({path: content, card_path(path): card.to_json().encode()})
        except OSError as error:
            raise TableError(f"can't be written: {error.strerror}") from error
    return Table.read(path)


def check_table_files(path: Path) -> None:
    """Refuse to write a table over a file of another kind.

    Raises
    ------
    TableError
        If there is one, under its name or its card's, or the name is none of a table.
    """
    _check_suffix(path)
    _check_replaceable(path)


def find_tables(directories: Iterable[Path]) -> list[Path]:
    """The Parquet files in some directories, in order of name in each; damaged ones too, so that reading tells why.

    Raises
    ------
    TableError
        If a directory can't be read.
    """
    found = []
    for directory in directories:
        try:
            found += sorted(entry for entry in directory.iterdir() if entry.suffix == SUFFIX)
        except OSError as error:
            raise TableError(f"can't look for tables in {directory}: {error.strerror}") from error
    return list(dict.fromkeys(found))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except TableError as error:
        raise TableError(f"table {path}: {error}") from error


def _check_replaceable(path: Path) -> None:
    check_replaceable(card_path(path), "the card of a table", lambda card: has_keys(card, _CARD), TableError)
    check_replaceable(path, "a table", _has_columns, TableError)


def _has_columns(path: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = read_regular(path, _LARGEST)
    check_flat(content)
    try:
        return set(_COLUMNS) <= set(pq.read_schema(pa.BufferReader(content)).names)
    except pa.ArrowException:
        return False


def _read_card(path: Path, named: Named) -> TableCard:
    missing = f"its card {card_path(path).name} is missing"
    return TableCard.from_json(_read(card_path(path), missing, _LARGEST_CARD), named)


def _check_suffix(path: Path, advice: str = "") -> None:
    if path.suffix != SUFFIX:
        raise TableError(f"a table is a {SUFFIX} file with its card, a .json file, beside it{advice}")
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):  # results name it, and are text
        raise TableError("the name of the file or of its folder is not in UTF-8: rename it")


def _read(path: Path, missing: str, limit: int) -> bytes:
    try:
        return read_regular(path, limit)
    except FileNotFoundError as error:
        raise TableError(missing) from error
    except OSError as error:
        raise TableError(f"can't read {path.name}: {error.strerror}") from error


def _check_declared(content: bytes, metadata: "pq.FileMetaData") -> None:
    # A few bytes can stand for one value in all rows, which take memory each.
    unpacked = max(unpacked_size(content, metadata), metadata.num_rows * metadata.num_columns * _VALUE)
    if unpacked > _UNPACKED:
        raise TableError(f"its columns have {unpacked / 1e6:.4g} MB, and at most {_UNPACKED / 1e6:.4g} MB are read")


def _check_content(card: TableCard, content: bytes) -> None:
    remedy = "it is damaged, or one of the two files was replaced without the other; get both again"
    if len(content) != card.size:
        raise TableError(f"the file has {len(content)} bytes, its card says {card.size}: {remedy}")
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise TableError(f"the checksum (SHA-256) of the file is not the one on its card: {remedy}")


def _to_parquet(data: "pa.Table") -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Measured reals hardly repeat: byte by byte, their exponents compress; all else repeats.
    reals = [field.name for field in data.schema if pa.types.is_floating(field.type) and field.name != "library_us"]
    others = [name for name in data.schema.names if name not in reals]
    sink = pa.BufferOutputStream()
    pq.write_table(data, sink, compression="zstd", use_dictionary=others, use_byte_stream_split=reals)
    return bytes(sink.getvalue())
