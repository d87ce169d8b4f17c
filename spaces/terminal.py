"""The terminal: where text from data is shown, and acts on nothing."""

import os
import re
import textwrap
from collections.abc import Iterator
from copy import copy
from typing import Any

from rich import console, table
from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from tilescout.spaces.texts import printable

WIDTH = 160
"""Columns of what goes to a file or a pipe, which no terminal cuts: tables of tilescout fit."""

_LONGEST_COLOURED = 500
"""Characters of a text in which Rich looks for numbers and the like. That takes quadratic time: 80 s of 100,000."""


class Console(console.Console):
    """Rich's console, for which a text is a text: no markup, no emoji, no escape sequences, unless asked for.

    Standard error that can't be written, because its disk is full or nobody reads it any more, ends no work: from then
    on nothing is shown there.

    Parameters
    ----------
    patient
        Whether the same holds for standard output. Whoever works on looks at `unwritten` in the end.
    options
        See Rich's console.

    Attributes
    ----------
    unwritten
        Why something could not be written, if that is so and ended no work.
    """

    def __init__(self, *, patient: bool = False, **options: Any) -> None:
        # Rich takes a width of zero as told, and prints nothing; and it fails at digits that `int` does not read.
        worthless = not re.fullmatch("0*[1-9][0-9]{0,5}", os.environ.get("COLUMNS", ""), re.ASCII)
        environ = {name: value for name, value in os.environ.items() if name != "COLUMNS" or not worthless}
        super().__init__(**{"markup": False, "emoji": False, "_environ": environ, **options})
        self._patient = patient or self.stderr
        self.unwritten: OSError | None = None
        told = "width" in options or not worthless
        if not (told or self.is_terminal or self.is_jupyter):
            self.width = WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """A text as it is shown; Rich has all strings pass through here, those in tables too."""
        if len(text) > _LONGEST_COLOURED:
            options["highlight"] = False
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Do what Rich does where nobody reads any more: end the program; a patient console does not."""
        if self._patient:
            raise  # the error that Rich handles meanwhile
        super().on_broken_pipe()

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            if not self._patient:
                raise
            self.quiet, self.unwritten = True, error

    def say(self, text: str, **options: Any) -> None:
        """Print a text: on a terminal wrapped at words, elsewhere on the lines that it has."""
        shown = wrapped(text, self.width) if self.is_terminal else text
        self.print(shown, highlight=False, soft_wrap=True, **options)


def wrapped(text: str, width: int) -> str:
    """A text wrapped at words. One that is too long, as a path, is left whole to the terminal, to be copied whole."""
    lines = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(line) for line in lines)


class Grid(table.Table):
    """A table that loses nothing on a narrow terminal.

    Where it does not fit, it has no lines between its columns; where they do not fit either, each row is a paragraph.
    """

    def __rich_console__(self, console: console.Console, options: console.ConsoleOptions) -> console.RenderResult:
        """The title, as wide as the terminal, and the table, or its paragraphs."""
        if self.title:
            yield Text(printable(_plain(self.title)), style="table.title")
        for column in self.columns:  # Rich would cut words to make room, those without a space first
            column.no_wrap = column.no_wrap or not any(" " in text for text in _texts(column))
        room = options.max_width - sum(map(_least_width, self.columns))
        body = copy(self)
        body.title = None
        if room < 3 * len(self.columns) + (1 if self.show_edge else -3):
            body.box, body.pad_edge = None, False
        if room >= 2 * len(self.columns) - 2:
            yield from super(Grid, body).__rich_console__(console, options)
        else:
            yield from self._paragraphs()

    def _paragraphs(self) -> Iterator[console.RenderableType]:
        names = [_plain(column.header).replace("\n", " ") for column in self.columns]
        for row in zip(*map(_texts, self.columns), strict=True):
            first, *others = row
            said = (f"{name} {text}" for name, text in zip(names[1:], others, strict=True) if text)
            yield f"{first or names[0]}:"
            yield Padding("; ".join(said), (0, 0, 0, 2))
        if self.caption:
            yield self.caption


def _plain(cell: console.RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _texts(column: table.Column) -> list[str]:
    return list(map(_plain, column.cells))


def _least_width(column: table.Column) -> int:
    """Of a column: of its longest line where it is not wrapped, else of its longest word."""
    texts = [_plain(column.header), *_texts(column)]
    pieces = (piece for text in texts for piece in (text.split("\n") if column.no_wrap else text.split()))
    return max(map(cell_len, pieces), default=0)
