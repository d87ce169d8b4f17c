"""Text that comes from data, made safe for where it is shown, and for the name of a file.

Tables, studies, suites and caches of others have names, labels and messages in them. A terminal acts on escape
sequences, and a file system on slashes.
"""

import hashlib
import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PASSWORD = re.compile(r"(://[^\s/:@]*:)(?P<secret>\S*)@")
_SECRET_VALUE = re.compile(
    r"([?&;][^\s=&]*(?:pass|pwd|secret|token|key|credential|auth|sig)[^\s=&]*=)(?P<secret>[^\s&#'\"]+)", re.IGNORECASE
)
_LONGEST_NAME = 200  # bytes of a file's name, which suffixes are added to; file systems take 255


def plain(text: object) -> str:
    """Text on one line, in which nothing moves the cursor, changes colours or turns the direction of writing.

    Colours are taken away, white space becomes a space, and any other character that does not print is written as an
    escape, as in Python.
    """
    return printable(" ".join(_COLOURS.sub("", str(text)).split()))


def without_secrets(text: str) -> str:
    """Text whose addresses have no passwords: neither before the host, nor in values that are named like one."""
    return _SECRET_VALUE.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))


def starred(argument: bytes) -> bytes:
    """An argument of a command, as long as it was, with a star for every byte of the passwords of addresses in it."""
    for pattern in (_PASSWORD, _SECRET_VALUE):
        found = re.finditer(pattern.pattern.encode(), argument, pattern.flags & re.IGNORECASE)
        for start, end in [match.span("secret") for match in found]:
            argument = argument[:start] + b"*" * (end - start) + argument[end:]
    return argument


def printable(text: str) -> str:
    """Text whose characters print, but for ends of lines: each other one is written as an escape, as in Python."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


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
