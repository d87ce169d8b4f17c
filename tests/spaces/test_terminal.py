"""Output loses nothing, however narrow the terminal is."""

import errno
import os
import sys
import time
from io import StringIO

import pytest

from tilescout.spaces.terminal import WIDTH, Console, Grid

PROBLEM = "4096x14336x4096:e4m3-bf16"
PATH = "/a/folder/whose/name/is/longer/than/the/terminal/is/wide.parquet"


def shown(width: int) -> str:
    grid = Grid(title="times of a table", title_justify="left", show_edge=False, pad_edge=False)
    grid.add_column("problem")
    for heading in ("rows", "library\nµs", "best"):
        grid.add_column(heading, justify="right")
    grid.add_column("why")
    grid.add_row(PROBLEM, "1,486", "13.66", "1.330", "measured in three rounds of the race")
    file = StringIO()
    Console(file=file, width=width).print(grid)
    return file.getvalue()


@pytest.mark.parametrize("width", range(28, 100, 6))
def test_a_table_keeps_every_word_and_figure_whole(width: int) -> None:
    words = shown(width).replace(";", " ").replace(f"{PROBLEM}:", PROBLEM).split()
    assert {PROBLEM, "1,486", "13.66", "1.330", *["measured", "in", "three", "rounds", "of", "the", "race"]} <= set(
        words
    )


def test_a_table_is_drawn_by_what_fits_with_lines_without_or_as_a_paragraph_a_row() -> None:
    assert f"{PROBLEM} │ 1,486 │   13.66 │ 1.330 │ measured in three" in shown(80)
    assert f"{PROBLEM}  1,486    13.66  1.330  measured in" in shown(61)
    assert shown(50).splitlines()[:2] == ["times of a table", f"{PROBLEM}:"]
    assert "  rows 1,486; library µs 13.66; best 1.330; why" in shown(50)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_text_is_wrapped_at_words_on_a_terminal_alone_and_a_path_is_left_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = f"the table that is replayed was recorded without it: {PATH}"
    terminal, pipe = Terminal(), StringIO()
    Console(file=terminal, color_system=None).say(text)
    Console(file=pipe).say(text)
    assert terminal.getvalue() == f"the table that is replayed was recorded\nwithout it:\n{PATH}\n"
    assert pipe.getvalue() == f"{text}\n"


def test_what_goes_to_a_pipe_is_as_wide_as_our_tables_are_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert Console(file=StringIO()).width == WIDTH
    assert Console(file=StringIO(), width=30).width == 30
    monkeypatch.setenv("COLUMNS", "70")
    assert Console(file=StringIO()).width == 70


def test_a_long_text_of_a_table_takes_no_quadratic_time() -> None:
    grid = Grid()
    grid.add_column("name")
    grid.add_row("x" * 30_000)
    began = time.process_time()
    Console(file=StringIO()).print(grid)
    assert time.process_time() - began < 2  # 7 s where each text is searched for numbers


class Unwritable(StringIO):
    """A stream that fails as a full disk, or as a pipe that nobody reads."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def flush(self) -> None:
        raise OSError(self.number, os.strerror(self.number))  # of EPIPE a BrokenPipeError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_standard_error_that_can_not_be_written_ends_no_work(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(sys, "stderr", Unwritable(number))
    console = Console(stderr=True)
    for _ in range(2):
        console.say("best 10.90 µs")
    assert console.unwritten is not None
    assert console.unwritten.errno == number


def test_a_full_disk_is_told_at_once_unless_the_console_is_patient() -> None:
    with pytest.raises(OSError, match="No space left"):
        Console(file=Unwritable(errno.ENOSPC)).say("best 10.90 µs")
    Console(file=Unwritable(errno.ENOSPC), patient=True).say("best 10.90 µs")


@pytest.mark.parametrize("columns", ["", "0", "-5", "wide", "²", "9" * 5000])
def test_a_width_that_can_not_be_is_as_none_told(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    terminal, pipe = Terminal(), StringIO()
    Console(file=pipe).print("a word")
    assert pipe.getvalue() == "a word\n"
    assert Console(file=pipe).width == WIDTH
    assert Console(file=terminal).width == 80
