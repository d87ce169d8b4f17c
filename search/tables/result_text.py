"""The text of a tuner's results, read entry by entry: as a whole, a million of them take gigabytes."""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any

_OPEN = {"{": re.compile(r"\s*\{"), "[": re.compile(r"\s*\[")}
# Of 65,536 characters and escapes at most; what is taken is not given back, which would take 100 bytes for each.
_KEY = re.compile(r'\s*"((?:[^"\\]|\\.){0,65536}+)"\s*:\s*')
_SPACE = re.compile(r"\s*")
_AFTER = {"}": re.compile(r"\s*([,}]?)\s*"), "]": re.compile(r"\s*([,\]]?)\s*")}
_CLOSED = {"}": re.compile(r"\s*\}"), "]": re.compile(r"\s*\]")}

CACHE, T4, KTT, LIST = "cache", "results", "Results", ""
"""The member that holds the entries, by which the form of a file is known; a list has none."""

LONGEST = 1 << 22
"""Most characters of an entry, and of all that stands beside the entries. One has some 300; an empty list is 3 in the
text and 64 bytes in memory."""

_PART = 4 * LONGEST  # characters that are decoded from at a time

_BRACKETS = {CACHE: "{}", T4: "[]", KTT: "[]"}


class ResultText:
    """The results of a tuner: entries, and what else the text holds.

    A text that ends behind an entry, as Kernel Tuner leaves what it did not finish, is read so far.

    Parameters
    ----------
    text
        A JSON list of entries, or a JSON object with one of the members ``cache``, ``results`` and ``Results``.

    Attributes
    ----------
    form
        Where the entries are: `CACHE`, `T4`, `KTT` or `LIST`.
    header
        The members but the entries: those before them at first, all of them after `finish`.

    Raises
    ------
    ValueError, RecursionError
        If the text is something else, or an entry or what stands beside them is too long; here, or while it is read.
    """

    def __init__(self, text: str) -> None:
        self._text, self._reader = text, _Reader(text)
        self.header: dict[str, Any] = {}
        self.form: str | None = LIST if _OPEN["["].match(text) else None
        if self.form is None and not _OPEN["{"].match(text):
            raise ValueError("no JSON with results: of rows, as of a CSV file, make a list with an object for each")
        self._beside = 0  # characters of the header
        self._members = iter(()) if self.form == LIST else self._reader.members()
        if self.form is None:
            self._read_members()
        if self.form is None:
            raise ValueError("it has no results: a list, or one of the members cache, results and Results")
        self._start, self._finished = self._reader.at, False

    def entries(self) -> Iterator[tuple[str, Any]]:
        """The key and value of each entry, from the first one on; in a list the keys are empty."""
        self._reader.at, self._reader.ended = self._start, False
        if self.form == CACHE:
            for key in self._reader.members():
                yield key, self._reader.value()
        else:
            for value in self._reader.items():
                yield "", value

    def finish(self) -> None:
        """Read the members behind the entries, once these have been read to the last."""
        if self._finished:
            return
        self._finished = True
        self._read_members()
        if not self._reader.ended and self._text[self._reader.at :].strip():
            raise ValueError("something follows its end")

    def whole_header(self) -> dict[str, Any]:
        """The members but the entries, also those behind them; nothing may be reading the entries meanwhile."""
        if not self._finished:
            for _ in self.entries():
                pass
            self.finish()
        return self.header

    def _read_members(self) -> None:
        for key in self._members:
            if key not in _BRACKETS or self.form is not None:
                start = self._reader.at
                self.header[key] = self._reader.value()
                self._beside += self._reader.at - start
                if self._beside > LONGEST:
                    raise ValueError(f"beside its entries it has more than {LONGEST} characters")
            elif not _OPEN[_BRACKETS[key][0]].match(self._text, self._reader.at):
                raise ValueError(f"its member {key} holds no entries")
            else:
                self.form = key
                return


class _Reader:
    """A place in a JSON text.

    Attributes
    ----------
    at
        Where reading goes on.
    ended
        Whether the text ended behind an entry.
    """

    def __init__(self, text: str) -> None:
        self._text, self.at, self.ended = text, 0, False
        self._part, self._start = "", 0  # the part of the text that values are decoded from, and where it begins
        self._decode = JSONDecoder().raw_decode

    def members(self) -> Iterator[str]:
        """The keys of the object that is next. Before the next one is asked for, its value has to be read."""
        for _ in self._inner("{}", "an object"):
            key = _KEY.match(self._text, self.at)
            if key is None:
                raise ValueError(f"character {self.at}: expected a key")
            self.at = key.end()
            yield key[1]

    def items(self) -> Iterator[Any]:
        """The values in the list that is next."""
        for _ in self._inner("[]", "a list"):
            start = _SPACE.match(self._text, self.at)
            assert start is not None  # it matches anything
            self.at = start.end()
            yield self.value()

    def value(self) -> Any:
        """The value that is next."""
        if self.ended:
            raise ValueError("it ends too early")
        end = self._start + len(self._part)
        if self.at < self._start or (end - self.at <= LONGEST and end < len(self._text)):
            self._start, self._part = self.at, self._text[self.at : self.at + _PART]
        at = self.at - self._start
        try:
            value, stop = self._decode(self._part, at)
        except JSONDecodeError as error:
            # Of a value of `LONGEST` characters nothing is cut off.
            cut = self._start + len(self._part) < len(self._text)
            if cut and (error.pos - at > LONGEST or error.msg.startswith("Unterminated")):
                stop = at + LONGEST + 1
            else:
                raise ValueError(f"character {self._start + error.pos}: {error.msg}") from error
        if stop - at > LONGEST:
            raise ValueError(f"character {self.at}: a value of more than {LONGEST} characters")
        self.at = self._start + stop
        return value

    def _inner(self, brackets: str, what: str) -> Iterator[None]:
        """Stop before each thing in the brackets that are next; who iterates reads it."""
        opening, closing = brackets[0], brackets[1]
        opened = _OPEN[opening].match(self._text, self.at)
        if opened is None:
            raise ValueError(f"character {self.at}: expected {what}")
        self.at = opened.end()
        if closed := _CLOSED[closing].match(self._text, self.at):
            self.at = closed.end()
            return
        while not self.ended:
            yield
            after = _AFTER[closing].match(self._text, self.at)
            assert after is not None  # it matches anything
            if after[1] == closing:
                self.at = after.end(1)
                return
            self.at = after.end()
            if self.at == len(self._text):
                self.ended = True
            elif not after[1]:
                raise ValueError(f"character {self.at}: expected a comma")
