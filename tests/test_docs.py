"""The documentation: what it tells a newcomer to type runs as written and prints what it shows; links are whole."""

import ast
import importlib
import importlib.util
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from tilescout.experiments.commands.cli import cli
from tilescout.experiments.commands.listing import LIST
from tilescout.experiments.research.__main__ import cli as research
from tilescout.search.engines.gpus import visible_gpus
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "experiments" / "results"
GENERATED = (DOCS / "reference" / "api", DOCS / "results")
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(path for path in sorted(DOCS.rglob("*.md")) if path.parent not in GENERATED),
    *sorted(RESULTS.glob("*.md")),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language and text of each block of a page: ``sh`` is run here, ``bash`` installs, serves or takes long."""
    yield from FENCE.findall(page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and Sphinx make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.slow
@pytest.mark.skipif(bool(visible_gpus()), reason="there is a GPU here: searches are not replayed")
def test_the_tutorial_runs_as_written_and_prints_what_it_shows(
    tmp_path: Path,
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "docs").symlink_to(DOCS)  # it is run in the clone
    commands, shown = [], 0
    printed = ""
    for language, text in blocks(DOCS / "tutorial.md"):
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
    assert called == ["doctor", "tune", "report", "samplers", "tune", "predict", "compile", "export"]
    assert shown > 5
    assert (tmp_path / "bundle" / "bundle.json").exists()
    assert (tmp_path / "result.json").exists()


def test_readme_shows_what_the_tutorial_shows_and_is_short() -> None:
    def shown(page: Path) -> set[str]:
        return {line for language, text in blocks(page) if language == "text" for line in text.splitlines()}

    readme = ROOT / "README.md"
    assert shown(readme)
    assert shown(readme) <= shown(DOCS / "tutorial.md")
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120
    targets = [line.split()[1] for line in lines if line.startswith("make ")]
    assert targets == ["tune", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


@pytest.mark.parametrize("page", ["how-to/add-a-sampler.md", "how-to/use-it-from-python.md"])
def test_the_python_of_a_page_runs_from_top_to_bottom(
    tmp_path: Path,
    page: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    copy_store: Callable[[Path], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DOCS / "examples"))
    copy_store(tmp_path / ".tilescout")
    source = "\n".join(text for language, text in blocks(DOCS / page) if language == "python")
    exec(compile(source, page, "exec"), {"__name__": "page"})
    assert re.search(r"\d\.\d\d µs", capfd.readouterr().out)


COMMAND_LINES = {"tilescout": cli, "python -m tilescout.experiments.research": research}


@pytest.mark.parametrize("program", COMMAND_LINES)
def test_every_command_and_option_that_a_page_names_exists(program: str) -> None:
    checked = 0
    for page in PAGES:
        shell = "\n".join(text for language, text in blocks(page) if language in ("sh", "bash")).replace("\\\n", " ")
        for call in re.findall(rf"^\s*{re.escape(program)} (.*)", shell, re.MULTILINE):
            words = shlex.split(call, comments=True)
            command: click.Command = COMMAND_LINES[program]
            while isinstance(command, click.Group):
                context = click.Context(command)
                named = words and words[0] in command.list_commands(context)
                name = words.pop(0) if named or command is COMMAND_LINES[program] else LIST
                below = command.get_command(context, name)
                assert below is not None, f"{name_of(page)}: there is no {name}: {program} {call}"
                command = below
            known = {name for parameter in command.params for name in parameter.opts + parameter.secondary_opts}
            unknown = [word for word in words if word.startswith("--") and word not in known]
            assert not unknown, f"{name_of(page)}: unknown {unknown}: {program} {call}"
            checked += 1
    assert checked > 5


def test_every_module_that_a_page_runs_exists() -> None:
    for page in PAGES:
        shell = "\n".join(text for language, text in blocks(page) if language in ("sh", "bash"))
        for module in re.findall(r"python -m (tilescout[.\w]*)", shell):
            assert importlib.util.find_spec(module) is not None, f"{name_of(page)}: there is no {module}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        path = page.parent / target if target else page
        written = "reference/api/" in target  # by the build of the docs
        if not written and (not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path))):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert not broken, f"{name_of(page)}: {broken}"


def test_every_page_of_results_is_in_the_index_and_says_how_it_was_measured() -> None:
    index = (RESULTS / "README.md").read_text(encoding="utf-8")
    for page in sorted(RESULTS.glob("*.md")):
        if page.name != "README.md":
            text = page.read_text(encoding="utf-8")
            assert f"]({page.name})" in index, f"the index lacks {page.name}"
            assert re.match(r"# .*\?\n\n\*\*Answer\.\*\* ", text), page.name
            assert "\n## How it was measured\n" in text, page.name


def test_the_counts_of_spilling_rows_are_those_of_the_shipped_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    found = list(blocks(RESULTS / "best-of-gemm.md"))
    (source,) = (text for language, text in found if language == "python")
    (shown,) = (text for language, text in found if language == "text")
    exec(compile(source, "best-of-gemm.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == shown


def imported_rooms(room: Path) -> set[str]:
    """The other rooms of search/ that the modules of one import."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in room.rglob("*.py"))
    return set(re.findall(r"(?:from|import) tilescout\.search\.(\w+)", source)) - {room.name}


def test_the_protocol_that_the_shipped_tables_are_said_to_be_of_is_theirs() -> None:
    said = re.findall(
        r"shipped tables were measured by `([\w-]+)`", (DOCS / "explanation" / "measuring-protocol.md").read_text()
    )
    assert said == list({Table.read_card(path).protocol for path in shipped_tables()})


def test_the_architecture_says_which_room_of_search_imports_which() -> None:
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    table = page[page.index("| room of `search/` |") :].partition("\n\n")[0].splitlines()[2:]
    told: dict[str, set[str]] = {}
    for line in table:
        name, _, below = line.strip("| ").split(" | ")
        told[name.strip("`")] = set(re.findall(r"`(\w+)`", below))
    rooms = {path.parent.name for path in (ROOT / "search").glob("*/__init__.py")} - {"testing"}
    assert set(told) == rooms
    seen: set[str] = set()
    for room, imports in told.items():
        assert imports <= seen, f"{room} stands above a room that it imports"
        assert imported_rooms(ROOT / "search" / room) <= imports, room
        seen.add(room)


def test_every_extra_is_among_what_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    told = (DOCS / "how-to" / "install.md").read_text(encoding="utf-8")
    assert {name for name in extras if f"`{name}`" not in told} == set()


def test_every_file_that_the_architecture_names_exists() -> None:
    named = re.findall(
        r"`((?:spaces|costmodel|search|experiments|tests|docs)/[\w/.]*)`",
        (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8"),
    )
    assert len(named) > 20
    assert not [name for name in named if not (ROOT / name).exists()]


ROOMS_PUBLIC = re.compile(r"tilescout(\.(spaces|costmodel|search\.\w+)(\.testing)?|\.search|\.experiments\.compare)?")
"""Modules that the documentation imports from: the rooms, the folders of search/, the checks, and what compares."""


def is_room(name: str) -> bool:
    return ROOMS_PUBLIC.fullmatch(name) is not None and importlib.util.find_spec(name) is not None


def test_the_documentation_imports_nothing_deeper_than_what_is_public() -> None:
    sources = [(name_of(page), text) for page in PAGES for language, text in blocks(page) if language == "python"]
    sources += [(name_of(path), path.read_text(encoding="utf-8")) for path in sorted((DOCS / "examples").glob("*.py"))]
    seen, deeper = 0, []
    for place, source in sources:
        for node in ast.walk(ast.parse(source)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in (module for module in modules if module.partition(".")[0] == "tilescout"):
                seen += 1
                if not ROOMS_PUBLIC.fullmatch(module):
                    deeper.append(f"{place}: {module}")
                elif isinstance(node, ast.ImportFrom):
                    public = getattr(importlib.import_module(module), "__all__", ())  # the namespace has none
                    deeper += [
                        f"{place}: {module} does not name {alias.name}"
                        for alias in node.names
                        if alias.name not in public and not is_room(f"{module}.{alias.name}")
                    ]
    assert seen > 10
    assert not deeper, "\n".join(deeper)


ENTRY_POINTS = {"tilescout.samplers"}  # a group of entry points, and no module


def test_every_dotted_name_in_the_documentation_is_there() -> None:
    dated = {ROOT / "CHANGELOG.md", *RESULTS.glob("*.md")}  # say what was called so when they were written
    names = {
        (name, name_of(page))
        for page in PAGES
        if page not in dated
        for name in re.findall(r"`(tilescout(?:\.[a-zA-Z_]\w*)+)`", page.read_text(encoding="utf-8"))
    }
    assert len(names) > 10
    missing = []
    for name, page in sorted((name, page) for name, page in names if name not in ENTRY_POINTS):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(f"{page}: {name}")
    assert not missing, "\n".join(missing)
