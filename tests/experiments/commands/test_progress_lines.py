"""Progress on standard error: a bar on a terminal, lines now and then in a file."""

import time

import pytest

from tilescout.experiments import progress as lines
from tilescout.experiments.progress import LINE_SECONDS, LineProgress, progress_bar, waiting


def test_a_file_gets_a_line_now_and_then_and_one_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = progress_bar()
    assert isinstance(progress, LineProgress)  # pytest's standard error is no terminal
    now = 0.0
    monkeypatch.setattr(progress, "get_time", lambda: now)
    with progress:
        task = progress.add_task("search", total=100)
        for _ in range(7):
            now += LINE_SECONDS / 3
            progress.update(task, advance=10, description="search [a]")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "30 of 100, 0:00:30, search [a]",
        "60 of 100, 0:01:00, search [a]",
        "70 of 100, 0:01:10, search [a]",
    ]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not isinstance(progress_bar(), LineProgress)


def test_a_file_is_told_what_is_waited_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_SECONDS", 0.05)
    said, until = "", time.monotonic() + 30
    with waiting("compile [a] kernel"):
        while not said and time.monotonic() < until:
            time.sleep(0.05)
            said = capsys.readouterr().err
    assert said.splitlines()[0].startswith("0:00:")
    assert said.splitlines()[0].endswith(", compile [a] kernel")
    capsys.readouterr()
    monkeypatch.setattr(lines, "LINE_SECONDS", LINE_SECONDS)
    with waiting("nothing that takes long"):
        pass
    assert capsys.readouterr().err == ""


def test_a_step_that_lasts_has_its_lines_though_nothing_is_updated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lines, "LINE_SECONDS", 0.05)
    with progress_bar() as bar:
        bar.add_task("train cost models", total=1)
        told, until = "", time.monotonic() + 20
        while told.count("0 of 1") < 2 and time.monotonic() < until:
            time.sleep(0.05)
            told += capsys.readouterr().err
    assert told.count("train cost models") >= 2
    capsys.readouterr()
    time.sleep(0.2)
    assert not capsys.readouterr().err, "nothing is told of what has ended"
