"""The documentation: what it tells a newcomer to type runs as written, and prints what it shows."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from tilescout.experiments.commands.cli import cli
from tilescout.search.engines.gpus import visible_gpus

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """The language and text of each block of a page: ``sh`` is run here, ``bash`` installs, serves or takes long."""
    yield from FENCE.findall((DOCS / page).read_text(encoding="utf-8"))


@pytest.mark.skipif(bool(visible_gpus()), reason="there is a GPU here: searches are not replayed")
def test_the_tutorial_runs_as_written_and_prints_what_it_shows(
    tmp_path: Path,
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    commands, shown = [], 0
    printed = ""
    for language, text in blocks("tutorial.md"):
        if language == "sh":
            commands += text.splitlines()
            name, *arguments = text.split()
            assert name == "tilescout"
            run(*arguments)
            captured = capfd.readouterr()
            printed = captured.out
            assert arguments[0] != "tune" or "no GPU was used" in captured.err
        elif language == "text":
            for line in text.splitlines():
                assert line in printed.splitlines(), f"{commands[-1]} no longer prints: {line}"
                shown += 1
    called = [command.split()[1] for command in commands]
    assert called == ["doctor", "tune", "report", "tune", "predict", "compile", "export"]
    assert shown > 5
    assert (tmp_path / "bundle" / "bundle.json").exists()
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize("page", ["how-to/add-a-sampler.md", "how-to/use-it-from-python.md"])
def test_the_python_of_a_page_runs_from_top_to_bottom(
    tmp_path: Path,
    page: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    copy_store: Callable[[Path], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_store(tmp_path / ".tilescout")
    source = "\n".join(text for language, text in blocks(page) if language == "python")
    exec(compile(source, page, "exec"), {"__name__": "page"})
    assert re.search(r"\d\.\d\d µs", capfd.readouterr().out)


def test_every_command_and_option_that_a_page_names_exists() -> None:
    context = click.Context(cli)
    for page in sorted(DOCS.rglob("*.md")):
        shell = (text for language, text in blocks(str(page)) if language in ("sh", "bash"))
        for call in re.findall(r"^\s*tilescout (.*)", "\n".join(shell).replace("\\\n", " "), re.MULTILINE):
            words = call.split()
            command: click.Command = cli
            while isinstance(command, click.Group):
                name = words.pop(0)
                below = command.get_command(context, name)
                assert below is not None, f"{page.name}: there is no {name}: tilescout {call}"
                command = below
            known = {name for parameter in command.params for name in parameter.opts}
            unknown = [word for word in words if word.startswith("--") and word not in known]
            assert not unknown, f"{page.name}: unknown {unknown}: tilescout {call}"
