"""Text that comes from data, made safe for where it is shown, and for the name of a file.

Tables, studies, suites and caches of others have names, labels and messages in them. A terminal acts on escape
sequences, and a file system on slashes.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from difflib import SequenceMatcher
from reprlib import Repr

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Each of these takes linear time, whatever the text is: a message may quote what somebody else wrote.
_WORD = re.compile(r"\S+", re.ASCII)
_USER = re.compile(r"://[^/:@]*:")
_NAME = re.compile(r"[?&;]([^\s=&?;]*)=", re.ASCII)
_SECRET = re.compile("pass|pwd|secret|token|key|credential|auth|sig", re.IGNORECASE)
_VALUE = re.compile(r"[^\s&#'\"]*", re.ASCII)
_LONGEST_NAME = 200  # bytes of a file's name, which suffixes are added to; file systems take 255
_QUOTES = Repr()
_QUOTES.maxstring = 82  # 80 characters and the quotes


def number_of(count: int, thing: str, things: str = "") -> str:
    """So many of what is counted, in words: ``1 problem``, ``2,000 problems``; `things` where an s is not enough."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def plain(text: object) -> str:
    """Text on one line, in which nothing moves the cursor, changes colours or turns the direction of writing.

    Colours are taken away, white space becomes a space, and any other character that does not print is written as an
    escape, as in Python.
    """
    return printable(" ".join(_COLOURS.sub("", str(text)).split()))


def quoted(text: str) -> str:
    """A text in a message, in quotes: all of it, or the ends of one of more than 80 characters."""
    return _QUOTES.repr(text)


def is_one_line(text: str) -> bool:
    """Whether a text ends no line: of a name that did, the rest would look like another message."""
    return text.splitlines() in ([], [text])


def check_several(given: object, name: str, error: type[Exception]) -> None:
    """Refuse a text in the place of several: each of its letters would be taken for one.

    Parameters
    ----------
    given
        The argument of a caller.
    name
        The argument's name.
    error
        Raised if it is a text.
    """
    if isinstance(given, str):
        raise error(f"`{name}` is {given!r}, expected a sequence, as [{given!r}]")


def without_secrets(text: str) -> str:
    """Text whose addresses have no passwords: neither before the host, nor in values that are named like one."""
    return _replaced(text, lambda length: "***")


def starred(argument: bytes) -> bytes:
    """An argument of a command, as long as it was, with a star for every byte of the passwords of addresses in it."""
    return _replaced(argument.decode("latin-1"), lambda length: "*" * length).encode("latin-1")


def _replaced(text: str, stars: Callable[[int], str]) -> str:
    """Text with stars for passwords, by the length of each."""
    made, reached = list[str](), 0
    for start, end in _secrets(text):
        made += [text[reached:start], stars(end - start)]
        reached = end
    return "".join([*made, text[reached:]])


def _secrets(text: str) -> list[tuple[int, int]]:
    """Where passwords of addresses begin and end, in order."""
    found: list[tuple[int, int]] = []
    for word in _WORD.finditer(text):
        at = text.rfind("@", *word.span())
        user = _USER.search(text, word.start(), at) if at >= 0 else None
        if user is not None:
            found.append((user.end(), at))
    reached = 0
    for name in _NAME.finditer(text):
        if name.start() < reached or not _SECRET.search(name[1]):
            continue
        value = _VALUE.match(text, name.end())
        if value is not None and value[0]:
            reached = value.end()
            found.append(value.span())
    return _joined(sorted(found))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, those that overlap made one."""
    made: list[tuple[int, int]] = []
    for start, end in spans:
        if made and start <= made[-1][1]:
            made[-1] = made[-1][0], max(end, made[-1][1])
        else:
            made.append((start, end))
    return made


def printable(text: str) -> str:
    """Text whose characters print, but for ends of lines: each other one is written as an escape, as in Python."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


def printable_line(text: str) -> str:
    """The same on one line: ends of lines are spaces."""
    return printable(text.replace("\n", " "))


def alternatives(given: str, known: Collection[str], most: int = 6) -> str:
    """Names in the place of one that is not known: those most alike, where they are many; ``none`` without any."""
    if len(known) <= most:
        return ", ".join(known) or "none"
    alike = sorted(known, key=lambda name: SequenceMatcher(None, given, name).ratio(), reverse=True)
    return some_of(alike, most)


def some_of(names: Sequence[object], most: int) -> str:
    """Names in a message: the first ones, where they are many, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def is_address(text: str) -> bool:
    """Whether a text is the address of a store, ``sqlite:///mlflow.db`` or ``databricks``, and no path of a file."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|databricks", text) is not None


def file_name(text: object) -> str:
    """A file's name that is made of a text: of one folder, and of no more than 200 bytes.

    Letters, digits, and what our own names have beside them stay. A name of which something else was replaced ends in
    digits of a hash, so that two names stay two.
    """
    given = str(text)
    kept = re.sub(r"[^A-Za-z0-9._+=,@-]", "_", given).lstrip(".-")
    if kept and kept == given and len(kept) <= _LONGEST_NAME:
        return kept
    digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{kept[: _LONGEST_NAME - 9]}-{digest}" if kept else digest
