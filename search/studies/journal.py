"""Append-only files of records, a line of JSON each, that survive the death of the process that wrote them.

There is one writer at a time, which holds a lock on the file. Readers take no lock and change nothing.
"""

import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from tilescout.spaces.checksums import SUM, Chain
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.inputs import parse_json, values_in

_LOG = logging.getLogger(__name__)

LARGEST = 1 << 30
"""Most bytes of a journal: a study of 12,912 trials takes some 60 MB."""

LONGEST = 1 << 24
"""Most bytes of a record: one trial's takes some 2 kB, and a list of a million indices 8 MB."""

_VALUES, _VALUE_BYTES = 1 << 20, 8
"""Values of a whole journal at most, and how many bytes each further one takes at least: a study's take 22 in the mean.

An empty list takes 3 bytes there and 64 in memory, and Optuna copies what it hands out."""

Sync = Callable[[Sequence[Mapping[str, Any]]], bool]
"""Whether to wait for the disk, given the records that were just written."""


class BusyError(StoreError):
    """Another process writes the journal."""


@dataclass(frozen=True)
class JournalForm:
    """The form of one kind of journal.

    Attributes
    ----------
    noun
        The word for such a file in messages.
    key
        The first key of the first record. A file whose first record does not begin with it is not of this kind, and
        nothing is removed from it.
    separators
        What stands between the items of a record and between a key and its value.
    sums
        Whether records have checksums; see `Chain`.
    """

    noun: str
    key: str
    separators: tuple[str, str] = (",", ":")
    sums: bool = False

    def recognises(self, first: bytes) -> bool:
        """Whether a file that begins with these bytes, its first line or what there is of it, is of this kind."""
        if not first.endswith(b"\n"):  # empty, or the writer was cut off within its first record
            start = f'{{"{self.key}":'.encode()
            return start.startswith(first) or first.startswith(start)
        try:
            record = parse_json(first, _values(len(first)))
        except ValueError:
            return False
        return isinstance(record, dict) and self.key in record


def every(seconds: float) -> Sync:
    """Wait for the disk at most once in so many seconds: what a power failure may take."""
    last = -seconds

    def due(records: Sequence[Mapping[str, Any]]) -> bool:
        nonlocal last
        if time.monotonic() - last < seconds:
            return False
        last = time.monotonic()
        return True

    return due


def at_key(key: str) -> Sync:
    """Wait for the disk after a record that has a key; all earlier records are then on it too."""
    return lambda records: any(key in record for record in records)


def never(records: Sequence[Mapping[str, Any]]) -> bool:
    """Leave it to the system when records reach the disk: only a power failure can take them."""
    return False


def read_records(path: Path, form: JournalForm) -> Iterator[dict[str, Any]]:
    """The records that a journal holds now. The file is opened for reading and nothing about it is changed.

    A last record that is cut off, or just being written, is left out. Of records without checksums, which an older
    tilescout wrote, a log message says so.

    Raises
    ------
    StoreError
        If there is no such file, it is no regular file, no journal of this form, too large, or damaged.
    """
    try:
        with _opened(path, form, os.O_RDONLY) as file:
            _check_form(file, path, form)
            chain, end = Chain(), 0
            for end, line in _lines(file, path, form, chain):  # noqa: B007 - where the last one ends is read below
                yield _parsed(line, path, form)
            if form.sums and end and not chain.begun:
                _LOG.info("%s %s has no checksums, as an older tilescout wrote it: it is unchecked", form.noun, path)
    except OSError as error:
        raise StoreError(f"can't read {form.noun} {path}: {error.strerror}") from error


class Journal(Closing):
    """A journal that this process writes, and no other while it is open.

    What is appended survives a kill at once, and a power failure as soon as `sync` says. A record that was cut off at
    the end of the file is removed when it is opened.

    Parameters
    ----------
    path
        The file; it is made if it does not exist.
    form
        What kind of journal it is.
    sync
        When to wait for the disk: `every`, `at_key` or `never`.
    new
        Start an empty one: the records of a journal of this form are removed.

    Attributes
    ----------
    path
        The file.

    Raises
    ------
    BusyError
        If another process has it open.
    StoreError
        If it can't be written, is no regular file, no journal of this form, too large, or damaged.
    """

    def __init__(self, path: Path, form: JournalForm, sync: Sync, new: bool = False) -> None:
        self.path = path
        self._form = form
        self._sync = sync
        self._synced = True
        try:
            self._file = _opened(path, form, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise StoreError(f"can't write {form.noun} {path}: {error.strerror}") from error
        try:
            _lock(self._file, path, form)
            _check_form(self._file, path, form)
            if new:
                os.ftruncate(self._file.fileno(), 0)
            self._chain = Chain()
            ends = (end for end, _ in _lines(self._file, path, form, self._chain))
            self._ends = [0, *ends]  # of every record, behind a 0
            if self._ends[-1] < os.fstat(self._file.fileno()).st_size:
                os.ftruncate(self._file.fileno(), self._ends[-1])
            self._found = len(self._ends) - 1
        except OSError as error:
            self._file.close()
            raise StoreError(f"can't write {form.noun} {path}: {error.strerror}") from error
        except BaseException:
            self._file.close()
            raise

    @cached_property
    def earlier(self) -> Sequence[dict[str, Any]]:
        """The records that were there when it was opened.

        Raises
        ------
        StoreError
            If one is damaged.
        """
        return list(self.read(0, self._found))

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """The records from one number to before another; by default to the last.

        Raises
        ------
        StoreError
            If one is damaged.
        """
        for begin, end in pairwise(self._ends[start : None if stop is None else stop + 1]):
            line = os.pread(self._file.fileno(), end - begin, begin)  # its checksum was right when it was opened
            record = _parsed(line, self.path, self._form)
            if self._form.sums:
                record.pop(SUM, None)
            yield record

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records: all of them, or none if that fails or is interrupted.

        Raises
        ------
        StoreError
            If the disk is full or fails, or the journal or a record gets too large.
        """
        records, chain = list(records), self._chain.copy()
        lines = [json.dumps(record, separators=self._form.separators).encode() for record in records]
        lines = [(chain.seal(line) if self._form.sums else line) + b"\n" for line in lines]
        ends = [self._ends[-1]]
        for line in lines:
            ends.append(ends[-1] + len(line))
        if any(len(line) > LONGEST for line in lines) or ends[-1] > LARGEST:
            raise StoreError(
                f"can't write {self._form.noun} {self.path}: it may hold {LARGEST >> 20} MiB, and a record "
                f"{LONGEST >> 20} MiB"
            )
        descriptor, content = self._file.fileno(), memoryview(b"".join(lines))
        before = len(self._ends), self._chain
        try:
            try:
                # A disk that is nearly full takes a part and says so by the number; the next write then fails.
                while content:
                    content = content[os.write(descriptor, content) :]
                self._ends += ends[1:]
                self._chain = chain
            except BaseException:  # also Ctrl-C: the next record's checksum must be one behind what is in the file
                del self._ends[before[0] :]
                self._chain = before[1]
                os.ftruncate(descriptor, ends[0])  # nor may it begin in the middle of this one
                raise
            self._synced = self._sync(records)
            if self._synced:
                os.fsync(descriptor)
        except OSError as error:
            raise StoreError(f"can't write {self._form.noun} {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Wait for the disk, and let others open it.

        Raises
        ------
        StoreError
            If the disk fails.
        """
        if self._file.closed:
            return
        try:
            if not self._synced:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(f"can't write {self._form.noun} {self.path}: {error.strerror}") from error
        finally:
            self._file.close()

    def remove(self) -> None:
        """Delete it, when what it was for is done."""
        self.path.unlink(missing_ok=True)
        self.close()


def remove_journal(path: Path, form: JournalForm) -> None:
    """Delete a journal, a damaged one too. Of a link the link alone goes: its records are kept where else they are.

    Raises
    ------
    BusyError
        If another process has it open.
    StoreError
        If it can't be deleted, is no regular file, or no journal of this form.
    """
    try:
        with _opened(path, form, os.O_RDWR) as file:
            _lock(file, path, form)
            _check_form(file, path, form)
            path.unlink()
    except OSError as error:
        raise StoreError(f"can't write {form.noun} {path}: {error.strerror}") from error


def _lock(file: IO[bytes], path: Path, form: JournalForm) -> None:
    """Be the only process that has a journal open for writing."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it until now may have removed it: then this is not the file that others find at the path.
        held = os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except (BlockingIOError, FileNotFoundError):
        held = False
    if not held:
        raise BusyError(f"another process writes {form.noun} {path}: wait for it, or end it")


def _opened(path: Path, form: JournalForm, flags: int) -> IO[bytes]:
    """The file, if it is a regular one: opening a pipe would wait for its other end, opening a device act on it."""
    try:
        _check_regular(os.stat(path), path, form)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _check_regular(os.fstat(descriptor), path, form)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_regular(found: os.stat_result, path: Path, form: JournalForm) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{form.noun} {path} is no regular file")
    if found.st_size > LARGEST:
        raise StoreError(f"{form.noun} {path} is too large: {found.st_size >> 20} MiB of at most {LARGEST >> 20}")


def _check_form(file: IO[bytes], path: Path, form: JournalForm) -> None:
    if not form.recognises(file.readline(LONGEST)):
        raise StoreError(f"{form.noun} {path} is damaged, or is something else: its first line is not such a file's")
    file.seek(0)


def _lines(file: IO[bytes], path: Path, form: JournalForm, chain: Chain) -> Iterator[tuple[int, bytes]]:
    """Where each whole line ends, and the line without its checksum, as far as the file reaches now."""
    size, end, values = os.fstat(file.fileno()).st_size, 0, 0
    while end < size and (line := file.readline(LONGEST)).endswith(b"\n"):
        end += len(line)
        values += values_in(line)
        if values > _values(end):
            raise StoreError(f"{form.noun} {path} is damaged: {values} values in {end} bytes are too many")
        try:
            record = chain.check(line) if form.sums else line
        except ValueError as error:
            raise StoreError(f"{form.noun} {path} is damaged: {error}") from error
        yield end, record
    if end < size and len(line) == LONGEST:
        raise StoreError(f"{form.noun} {path} is damaged: a record is longer than {LONGEST >> 20} MiB")


def _values(size: int) -> int:
    """The values that so many bytes may hold."""
    return _VALUES + size // _VALUE_BYTES


def _parsed(line: bytes, path: Path, form: JournalForm) -> dict[str, Any]:
    try:
        record = parse_json(line, _values(len(line)))
    except ValueError as error:
        raise StoreError(f"{form.noun} {path} is damaged ({one_line(error, 200)})") from error
    if not isinstance(record, dict):
        raise StoreError(f"{form.noun} {path} is damaged: a record is no object")
    return record
