"""Checksums of what was recorded, so that what was changed since, by a fault or by hand, is seen when it is read.

They are no signature: who changes a record can give it a checksum that fits.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FORMAT = 2
"""The format of a result; those of format 1 have no checksum, and no number."""

SUM = "sum"
"""The key of a record's checksum, the last one of the record."""

_KEY = f',"{SUM}":"'.encode()
_DIGITS = 16
_TAIL = len(_KEY) + _DIGITS + len(b'"}')


class Chain:
    """The checksums of the records of a file, each over a record and the checksum before it.

    So a record that is changed, left out, repeated or moved is seen. A file of an older format has none; once a record
    has one, all later ones do.
    """

    def __init__(self) -> None:
        self._last = b""

    @property
    def begun(self) -> bool:
        """Whether a record with a checksum was met."""
        return bool(self._last)

    def copy(self) -> "Chain":
        """A chain that goes on from the same record."""
        made = Chain()
        made._last = self._last
        return made

    def seal(self, record: bytes) -> bytes:
        """A record, the text of a JSON object that is not empty, with its checksum as the last of its keys."""
        self._last = self._next(record)
        return record[:-1] + _KEY + self._last + b'"}'

    def check(self, line: bytes) -> bytes:
        """The record without its checksum.

        Raises
        ------
        ValueError
            If the checksum is missing or wrong.
        """
        line = line.rstrip(b"\n")
        if line[-_TAIL:].startswith(_KEY) and line.endswith(b'"}'):
            record, found = line[:-_TAIL] + b"}", line[-_DIGITS - 2 : -2]
            if found != self._next(record):
                raise ValueError("a record is not what was written, or not where it was: its checksum is wrong")
            self._last = found
            return record
        if self.begun:
            raise ValueError("a record has no checksum: something else than tilescout wrote it, or it was changed")
        return line

    def _next(self, record: bytes) -> bytes:
        return hashlib.sha256(self._last + record).hexdigest()[:_DIGITS].encode()


def sealed(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the number of its format and the SHA-256 of all that is in it."""
    content = {"format": FORMAT, **{key: value for key, value in result.items() if key not in ("format", "digest")}}
    return content | {"digest": digest_of(content)}


def check_sealed(result: Mapping[str, Any]) -> bool:
    """Check a result against its SHA-256; False if it is of format 1, which has none.

    Raises
    ------
    ValueError
        If it was changed, or is of a newer format.
    """
    if "format" not in result and "digest" not in result:
        return False
    if result.get("format") != FORMAT:
        raise ValueError(f"its format is {result.get('format')!r:.20}, this tilescout reads {FORMAT}")
    content = {key: value for key, value in result.items() if key != "digest"}
    if result.get("digest") != digest_of(content):
        raise ValueError("it is not what was written: its digest is wrong")
    return True


def digest_of(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a record as JSON, its keys sorted."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
