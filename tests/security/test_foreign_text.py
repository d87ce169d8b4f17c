"""Names, labels and messages of others are shown as they are: nothing acts on them, and none leaves its folder."""

import json
import logging
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tilescout.experiments.commands.cli import _Handler
from tilescout.experiments.compare.play import Case, Run, _Named
from tilescout.search.tables.table import Table
from tilescout.search.tracking.description import as_code, as_text
from tilescout.search.tracking.fields import param_name
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.inputs import parse_json
from tilescout.spaces.texts import file_name, plain

if TYPE_CHECKING:
    from conftest import ForkedScene, Rename, Scene  # type: ignore[import-not-found]

NASTY = [
    "[/red]",
    "[bold",
    "[link=file:///etc/passwd]x[/link]",
    r"$\frac{$",
    "$x$ and $",
    "\x1b]0;title\x07\x1b[2J\x1b[31mred",
    "\u202egnp.exe",
    "\x9b31m",
    "../../x",
    "/etc/x",
    "a\nb\r\nc",
    "\x00",
    ":smile: :warning:",
    "<script>alert(1)</script>",
    "{0.__class__}",
    "%s%n",
    "n" * 3000,
]
"""Texts on which something acts: Rich, Matplotlib, a terminal, a file system, a page, a formatter."""


@given(text=st.text() | st.sampled_from(NASTY))
def test_plain_text_is_one_line_that_prints(text: str) -> None:
    assert plain(text).isprintable()
    assert str(TilescoutError(text)) == plain(text)
    assert plain(plain(text)) == plain(text)


MARKUP = [
    "v` ![p](http://x/p.png) <img src=x onerror=alert(1)> `",
    "n\n\n# a heading\n\n",
    "``",
    "a|b",
    "&lt;b&gt;",
    "\\`",
]


@given(text=st.text() | st.sampled_from([*NASTY, *MARKUP]) | st.text("`\\*_[]<>|~#&!() \nx"))
def test_markdown_shows_text_as_it_is(text: str) -> None:
    def shown(markdown: str) -> tuple[set[str], str]:
        (_, paragraph, _) = MarkdownIt().parse(markdown)
        parts = [part for part in paragraph.children or [] if part.content]
        return {part.type for part in parts}, "".join(part.content for part in parts)

    kinds, content = shown(f"x{as_text(text)}x")
    assert kinds <= {"text", "text_special"}
    assert content == f"x{plain(text)}x"
    if plain(text):
        assert shown(as_code(text)) == ({"code_inline"}, plain(text))


@given(texts=st.lists(st.text() | st.sampled_from(NASTY), min_size=2, max_size=2, unique=True))
def test_the_name_of_a_file_stays_in_its_folder_and_is_its_own(texts: list[str]) -> None:
    first, second = map(file_name, texts)

    assert (Path("folder") / first).parent == Path("folder")
    assert first not in ("", ".", "..")
    assert len(os.fsencode(first)) <= 200
    assert not first.startswith(("-", "."))
    assert first != second


@given(texts=st.lists(st.text() | st.sampled_from(NASTY), min_size=2, max_size=2, unique=True))
def test_the_name_of_a_knob_is_one_that_mlflow_takes_and_its_own(texts: list[str]) -> None:
    from mlflow.utils.validation import _validate_param

    first, second = map(param_name, texts)

    _validate_param(first, "1")
    assert first != second
    assert param_name("tile_m") == "tile_m"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("text", [r'{"a": "x\ud800"}', r'["\udc00\ud800"]', '{"\ud800": 1}'])
def test_half_a_character_is_no_text(text: str, encoding: str) -> None:
    with pytest.raises(ValueError, match="surrogates"):
        parse_json(text.encode(encoding, "surrogatepass"))
    assert parse_json(r'["\ud83d\ude00", "훟"]'.encode(encoding)) == ["\U0001f600", "훟"]


def test_our_own_names_stay() -> None:
    name = "gemm_sm90-2048x4096x4096-bf16-kn-bias+gelu-h200-replay-gp,startup=20-s0"
    assert file_name(name) == name


def shown(output: str) -> str:
    """The output of a command, none of whose characters does anything."""
    assert all(each.isprintable() or each == "\n" for each in output), ascii(output)
    return output


@pytest.fixture
def hostile_table(forked_scene: "ForkedScene") -> str:
    """A table that was made from a cache in which every text is one on which something acts."""

    def cache(number: int, text: str) -> str:
        knob = f"k{text}"
        record = {
            "device_name": text,
            "kernel_name": text,
            "problem_size": [8, 8],
            "tune_params_keys": [knob, "b"],
            "tune_params": {knob: [text, "2"], "b": [1, 2, 3]},
            "objective": "time",
            "cache": {
                f"{one},{two}": {knob: one, "b": two, "time": 1.0 + two, "times": [1.0 + two]}
                for one in (text, "2")
                for two in (1, 2, 3)
            },
        }
        path = forked_scene.folder / f"cache{number}.json"
        path.write_text(json.dumps(record))
        return path.name

    names = []
    for number, text in enumerate(NASTY):
        done = forked_scene.tilescout("tables", "import", cache(number, text), f"t{number}.parquet")
        forked_scene.check(done)
        shown(done.stdout + done.stderr)
        names += [f"t{number}.parquet"] * (done.returncode == 0)
    assert len(names) > 8
    return " ".join(names)


@pytest.mark.slow
def test_tables_of_others(forked_scene: "ForkedScene", hostile_table: str) -> None:
    before = sorted(path for path in forked_scene.folder.parent.iterdir())

    shown(forked_scene.survives("tables", *hostile_table.split()).stdout)
    drawn = [f"t{NASTY.index(text)}.parquet" for text in (r"$\frac{$", "[/red]")]
    together = [argument for table in drawn for argument in ("--table", table)]
    compare = ("compare", *together, "--samplers", "random", "--trials", "3", "--seeds", "1", "--out", "out")
    shown(forked_scene.survives(*compare, "--store", "store", "--processes", "1", codes=(0,)).stdout)
    for text in ("../../x", "[/red]", "\u202egnp.exe"):
        table = f"t{NASTY.index(text)}.parquet"
        tune = ("tune", text, "--table", table, "--problem", "8x8", "--trials", "3", "--sampler", "random")
        shown(forked_scene.survives(*tune, "--store", "store", codes=(0,)).stdout)
    studies = sorted((forked_scene.folder / "store" / "studies").iterdir())
    assert len(studies) == 3
    for study in studies:
        forked_scene.survives("report", study, "--out", f"{study.stem}.html", codes=(0,))
        shown((forked_scene.folder / f"{study.stem}.html").read_text())

    assert sorted(path for path in forked_scene.folder.parent.iterdir()) == before


@pytest.mark.slow
def test_a_suite_of_others(forked_scene: "ForkedScene") -> None:
    for text in NASTY:
        quoted = json.dumps(text, ensure_ascii=True)
        (forked_scene.folder / "suite.toml").write_text(
            f'title = {quoted}\nsource = {quoted}\nproblems = [{{ problem = "8x8x8", label = {quoted} }}]\n'
            f"[tokens]\ndecode = [1]\n[[product]]\nname = {json.dumps(text[:200])}\nn = 8\nk = 8\n"
        )

        done = forked_scene.survives("suites", "suite.toml", codes=(0,))

        assert shown(done.stdout).startswith(f"suite: {text[:1] if text[:1].isprintable() else chr(92)}")


def test_a_suite_of_others_has_its_title_on_a_line(forked_scene: "ForkedScene") -> None:
    text = '"a title\\ntilescout: a forged message"'
    (forked_scene.folder / "suite.toml").write_text(f"title = {text}\nsource = {text}\nproblems = ['8x8x8']\n")
    done = forked_scene.survives("suites", "suite.toml", codes=(0,))
    assert done.stdout.count("a title tilescout: a forged message\n") == 2


FORGED = "tilescout: a forged message"


def test_the_name_of_a_file_stays_on_its_line(
    forked_scene: "ForkedScene", small_table: Table, searched: Path, renamed: "Rename"
) -> None:
    folder = forked_scene.folder / f"a\n{FORGED}"
    shutil.copytree(small_table.path.parent, folder)
    suite = folder / f"s\n{FORGED}.toml"
    suite.write_text("title = 't'\nsource = 's'\nproblems = ['8x8x8']\n")
    (study,) = (searched / "store" / "studies").glob("*.journal")
    (folder / study.name).write_text(renamed(study.read_text()))  # which has no checksums then, and a message says so

    for arguments in (
        ("tables", folder),
        ("suites", suite),
        ("report", folder / study.name, "--out", "report.html"),
    ):
        done = forked_scene.survives(*arguments, codes=(0,))
        lines = (done.stdout + done.stderr).splitlines()
        assert any(FORGED in line for line in lines)
        assert not any(line.startswith(FORGED) for line in lines)


def test_a_message_stays_on_its_line_unless_it_shows_where_something_failed() -> None:
    named = _Named(Run("random", Case("t.parquet", "", "p"), 1, 0))
    for format_ in (_Handler().format, named.format):
        record = logging.LogRecord("tilescout", logging.INFO, "file", 1, "%s is read", (f"a\n{FORGED}",), None)
        assert format_(record).endswith(f"a {FORGED} is read")
        try:
            raise ValueError("x")
        except ValueError:
            record.exc_info = sys.exc_info()
        assert format_(record).endswith("\nValueError: x")


@pytest.mark.parametrize("store", ["a#b?c", "x%41", "x\udcff", "%2e%2e"])
def test_a_store_whose_address_would_be_another(forked_scene: "ForkedScene", store: str) -> None:
    done = forked_scene.survives(
        *("tune", "gemm_sm90", "--problem", "1024x1024x1024:bf16", "--device", "replay", "--trials", "3"),
        *("--sampler", "random", "--store", store),
        codes=(2,),
    )

    assert "choose a folder without" in done.stderr
    assert [path.name for path in forked_scene.folder.iterdir()] == ["evil.py"]


@pytest.mark.slow
def test_names_of_files_that_are_no_text_or_end_a_condition(forked_scene: "ForkedScene") -> None:
    suite = 'title = "t"\nsource = "s"\ndtype = "bf16"\nproblems = ["1024x1024x1024:bf16"]\n'
    search = ("--device", "replay", "--sampler", "random", "--trials", "2", "--store", "store")
    for name in ("a'b.toml", "b\udcff.toml"):
        (forked_scene.folder / name).write_text(suite)
        for more in ((), ("--resume",)):
            forked_scene.survives("tune", "gemm_sm90", "--suite", name, *search, *more, codes=(0,))
    (forked_scene.folder / "t\udcff.parquet").write_bytes(b"PAR1")
    done = forked_scene.survives("tables", "t\udcff.parquet", codes=(0, 2))
    assert "not in UTF-8" in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_characters(scene: "Scene", encoding: str) -> None:
    program = Path(sys.executable).with_name("tilescout")
    for arguments in (["tables"], ["suites", "µ漢.toml"]):
        done = scene.run(program, *arguments, environment={"PYTHONIOENCODING": encoding, "LC_ALL": "C"})
        scene.check(done)
