"""Documents as plain text, and the numbers in them that need a reason."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from tilescout.spaces.inputs import read_regular

_FENCE = re.compile(r"^(```+)[^\n]*\n.*?^\1[ ]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"(!?\[)((?:[^\[\]]|\[[^\[\]]*\])*)(\]\([^)\s]*\))")
_ENUMERATION = re.compile(r"^(?:#+ )?\d+\.(?= )", re.MULTILINE)
_HEADING = re.compile(r" ## ")
_CODE = re.compile(r"`[^`\n]+(?:\n[^`\n]+)*`")

_NO_FIGURE = re.compile(
    r"\d{4}-\d\d-\d\d"  # a date
    r"|\d+(?:[×x]\d+)+"  # sizes of a problem or a tile
    r"|\d+[²³]"  # a square or cubic problem
    r"|\d+(?:\.\d+){2,}[\w+.]*"  # a version
    r"|(?<=\bformat )\d+\b(?!\.\d)|(?<=\bformat is )\d+\b|(?<=\bformats )\d+ to \d+\b"  # the number of a format
    r"|[^\W\d]\w*(?:-\d[\w.]*)?"  # a name that holds digits: bf16, e4m3, H200, paired-8, SHA-256
)
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")

LARGEST_BYTES = 2_000_000
"""A document that is larger is refused."""

_DROPPED, _HIDDEN = "\x01", "\x02"


@dataclass(frozen=True)
class Number:
    """A number in a document's text: its digits, where they stand in it, and in which line of the file."""

    digits: str
    start: int
    end: int
    line: int


@dataclass(frozen=True)
class Document:
    """A document without code blocks and the targets of links, its white space single spaces.

    Attributes
    ----------
    name
        Its path in the checkout.
    text
        What is left of it.
    lines
        Of each character, the line of the file that it stands in.
    """

    name: str
    text: str
    lines: tuple[int, ...]

    @classmethod
    def parse(cls, name: str, source: str) -> Self:
        """Read the Markdown of a document."""
        kept = _FENCE.sub(_drop, source)
        kept = _COMMENT.sub(_drop, kept)
        kept = _ENUMERATION.sub(_drop, kept)
        kept = _LINK.sub(lambda link: _drop(link, 1) + link[2] + _drop(link, 3), kept)
        codes = np.frombuffer(kept.encode("utf-32-le"), dtype="<u4")
        ends_line = codes == ord("\n")
        lines = 1 + np.cumsum(ends_line) - ends_line
        stays = codes != ord(_DROPPED)
        codes, lines = codes[stays], lines[stays]
        is_space = np.isin(codes, [ord(character) for character in set(kept) if character.isspace()])
        stays = ~is_space | np.append(False, ~is_space[:-1])[: len(codes)]  # of white space in a row the first
        text = np.where(is_space, np.uint32(ord(" ")), codes)[stays].astype("<u4").tobytes().decode("utf-32-le")
        return cls(name, text, tuple(lines[stays].tolist()))

    def opening(self) -> Self:
        """The part before its first heading of the second level."""
        heading = _HEADING.search(self.text)
        end = heading.start() if heading else len(self.text)
        return replace(self, text=self.text[:end], lines=self.lines[:end])

    def numbers(self) -> Iterator[Number]:
        """The numbers that need a reason to stand here: all but those of code, names, sizes and dates."""
        shown = _CODE.sub(lambda code: _HIDDEN * len(code[0]), self.text)
        shown = _NO_FIGURE.sub(lambda name: _HIDDEN * len(name[0]), shown)
        for number in _NUMBER.finditer(shown):
            yield Number(number[0], number.start(), number.end(), self.lines[number.start()])

    def places(self, passage: str) -> Iterator[int]:
        """Where a passage begins in the text; a number at its ends is a whole one there."""
        before = r"(?<![\d])(?<!\d[.,])" if passage[:1].isdigit() else ""
        after = r"(?![\d])(?![.,]\d)" if passage[-1:].isdigit() else ""
        return (found.start() for found in re.finditer(before + re.escape(passage) + after, self.text))

    def around(self, number: Number) -> str:
        """The words that a number stands in."""
        return self.text[max(number.start - 50, 0) : number.end + 50].strip()


def _drop(found: re.Match[str], group: int = 0) -> str:
    return re.sub(r"[^\n]", _DROPPED, found[group])


def document_names(root: Path, patterns: Iterable[str]) -> list[str]:
    """The documents of a checkout that match a pattern, each once, in order."""
    return sorted({path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern)})


def read_document(root: Path, name: str) -> Document:
    """A document of a checkout by its path there."""
    return Document.parse(name, read_regular(root / name, LARGEST_BYTES).decode())
