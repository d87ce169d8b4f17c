"""A file that only grows: records, a line of JSON each, that survive the death of the process that wrote them."""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tilescout.search.build.closing import Closing
from tilescout.spaces.errors import StoreError, one_line

_SYNC_SECONDS = 0.2  # between two waits for the disk, 5 ms each: what a power failure may take


class Journal(Closing):
    """Records on disk, for one writer at a time.

    What is appended survives a kill at once, and a power failure after a fraction of a second. A record that was cut
    off at the end of the file is removed when it is opened.

    Parameters
    ----------
    path
        The file; it is made if it does not exist.

    Attributes
    ----------
    earlier
        The records that were there when it was opened.

    Raises
    ------
    StoreError
        If it can't be written, is damaged, or another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("ab+", buffering=0)
        except OSError as error:
            raise StoreError(f"can't write the journal {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.earlier: Sequence[dict[str, Any]] = self._read()
        except BlockingIOError as error:
            self._file.close()
            raise StoreError(f"another process writes the journal {path}: wait for it, or end it") from error
        except (ValueError, OSError) as error:
            self._file.close()
            raise StoreError(f"the journal {path} is damaged ({one_line(error)}): remove it to start anew") from error
        self._synced = 0.0

    def append(self, records: Iterable[dict[str, Any]]) -> None:
        """Write records.

        Raises
        ------
        StoreError
            If the disk is full, or fails.
        """
        content = "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
        try:
            while content:
                content = content[self._file.write(content) :]
            if time.monotonic() - self._synced >= _SYNC_SECONDS:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            raise StoreError(f"can't write the journal {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Wait for the disk, and let others open it."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def remove(self) -> None:
        """Delete it, when what it was for is done."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _read(self) -> list[dict[str, Any]]:
        self._file.seek(0)
        content = self._file.read() or b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        return [json.loads(line) for line in content[:whole].splitlines()]
