"""The text of a cache of Kernel Tuner, read entry by entry: as a whole, a million of them take gigabytes."""

import re
from collections.abc import Callable, Iterator
from json import JSONDecoder
from typing import Any

_OPEN = re.compile(r"\s*\{")
_KEY = re.compile(r'\s*"([^"\\]*(?:\\.[^"\\]*)*)"\s*:\s*')
_AFTER = re.compile(r"\s*([,}]?)\s*")
_CLOSED = re.compile(r"\s*\}")

_ENTRIES, _KNOBS = "cache", "tune_params_keys"


def read_cache_text(text: str, begin: Callable[[dict[str, Any]], Callable[[Any], None]]) -> dict[str, Any]:
    """Read a cache; one that ends behind an entry, as Kernel Tuner leaves what it did not finish, is read so far.

    Parameters
    ----------
    text
        A JSON object whose member ``cache`` is an object of entries.
    begin
        Called once, before the first entry, with the members that were read so far, the names of the knobs among them.
        It returns what is called with each entry.

    Returns
    -------
    dict
        All members but the entries.

    Raises
    ------
    ValueError, RecursionError
        If the text is something else.
    """
    reader, found = _Reader(text), dict[str, Any]()
    entries: int | None = None
    read = False
    for key in reader.members():
        if key != _ENTRIES:
            found[key] = reader.value()
            continue
        if not _OPEN.match(text, reader.at):
            raise ValueError("it has no cache")
        entries, read = reader.at, _KNOBS in found
        reader.each(begin(found) if read else lambda entry: None)
    if entries is None:
        raise ValueError("it has no cache")
    if not reader.ended and text[reader.at :].strip():
        raise ValueError("something follows its end")
    if not read:
        reader.at = entries
        reader.each(begin(found))
    return found


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
        self._decode = JSONDecoder().raw_decode

    def members(self) -> Iterator[str]:
        """The keys of the object that is next. Before the next one is asked for, its value has to be read."""
        opened = _OPEN.match(self._text, self.at)
        if opened is None:
            raise ValueError(f"character {self.at}: expected an object")
        self.at = opened.end()
        if closed := _CLOSED.match(self._text, self.at):
            self.at = closed.end()
            return
        while not self.ended:
            key = _KEY.match(self._text, self.at)
            if key is None:
                raise ValueError(f"character {self.at}: expected a key")
            self.at = key.end()
            yield key[1]
            after = _AFTER.match(self._text, self.at)
            assert after is not None  # it matches anything
            if after[1] == "}":
                self.at = after.end(1)
                return
            self.at = after.end()
            if self.at == len(self._text):
                self.ended = True
            elif not after[1]:
                raise ValueError(f"character {self.at}: expected a comma")

    def value(self) -> Any:
        """The value that is next."""
        if self.ended:
            raise ValueError("it ends too early")
        value, self.at = self._decode(self._text, self.at)
        return value

    def each(self, take: Callable[[Any], None]) -> None:
        """Hand over the values of the object that is next."""
        for _ in self.members():
            take(self.value())
