"""The command `claims`, on a checkout of one document and one recorded file."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tilescout.experiments.research.claims.ledger import LEDGER
from tilescout.experiments.research.claims.reading import read_ledger

CALL = "A call takes 3.82 µs of the host (one H200), `torch.mm` takes 3.02 times as long."
ENTRY = '''
[documents]
whole = ["*.md"]
openings = []

[data.call]
path = "call.json"
sha256 = ""

[claims.call]
about = "a call"
recompute = "record"
data = ["call"]
figures = { ours = "ours", library = "library over ours" }
machine = "one H200"
gpu = true
says = ["H200"]
stated = [
    { in = ["README.md"], text = """A call takes {ours:3.82} µs of the host (one H200),
      `torch.mm` takes {library:3.02} times as long.""" },
]

[[facts]]
text = "132 multiprocessors"
why = "the data sheet"
'''

Study = Callable[..., None]


@pytest.fixture
def checkout(tmp_path: Path, study: Study) -> Path:
    """A checkout whose ledger has the values of its data."""
    (tmp_path / "README.md").write_text(f"# A kernel\n\n{CALL} An H200 has 132 multiprocessors.\n")
    (tmp_path / "call.json").write_text(json.dumps({"ours": 3.8180, "library": 11.5453}))
    (tmp_path / LEDGER).parent.mkdir(parents=True)
    (tmp_path / LEDGER).write_text(ENTRY)
    study("claims", "--root", str(tmp_path), "--update")
    return tmp_path


def test_claims_that_hold_are_printed_and_written(
    checkout: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = read_ledger(checkout)
    assert ledger.claims["call"].values == {"ours": 3.818, "library": 3.02391}
    assert ledger.data["call"].sha256 == sha256((checkout / "call.json").read_bytes()).hexdigest()
    capsys.readouterr()
    study("claims", "--root", str(checkout), "--only", "call", "--out", str(checkout / "out.json"))
    printed = capsys.readouterr().out
    assert "call.ours" in printed
    assert "2 figures of 1 claims recomputed, 0 contradictions" in printed
    assert [one["recomputed"] for one in json.loads((checkout / "out.json").read_text())["result"]] == [
        3.818,
        pytest.approx(3.02391, rel=1e-5),
    ]


def test_other_data_contradict_and_an_update_changes_the_values_and_not_the_documents(
    checkout: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (checkout / LEDGER).read_text()
    (checkout / "call.json").write_text(json.dumps({"ours": 3.9, "library": 11.5453}))
    capsys.readouterr()
    study("claims", "--root", str(checkout), code=1)
    printed = capsys.readouterr().out
    assert "CONTRADICTED" in printed
    assert "call.json is not the file that the ledger names" in printed
    assert (checkout / LEDGER).read_text() == before

    study("claims", "--root", str(checkout), "--update", code=1)
    assert "README.md (call): 3.82 is now 3.9: A call takes" in capsys.readouterr().out
    assert read_ledger(checkout).claims["call"].values["ours"] == 3.9
    assert CALL in (checkout / "README.md").read_text()
    changed = [
        (old, new)
        for old, new in zip(before.splitlines(), (checkout / LEDGER).read_text().splitlines(), strict=True)
        if old != new
    ]
    assert [new.partition(" = ")[0] for _, new in changed] == ["sha256", "values"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("3.82 µs", "3.81 µs", "README.md does not state"),
        (" (one H200)", "", "README.md does not state"),
        ("An H200 has", "It is 1.4 times as fast. An H200 has", "README.md:3: the ledger lacks 1.4"),
        ("132 multiprocessors", "133 multiprocessors", "the ledger lacks 133"),
        ("132 multiprocessors", "132 MB", "the ledger lacks 132"),
    ],
)
def test_a_document_that_states_something_else_is_found(
    checkout: Path, study: Study, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    readme = checkout / "README.md"
    readme.write_text(readme.read_text().replace(old, new))
    study("claims", "--root", str(checkout), code=1)
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "`--trials 60` on 4096x4096x4096:bf16",
        "```sh\ntune --trials 64 # 12 %\n```",
        "a tile of 128×256×64, 4096³, bf16, sm_90, paired-9, SHA-256, of 2026-11-22, torch 2.11.0+cu130, format 2",
        "[more](results/2026-11-21/1.html) ![](2.png)",
        "## 3. Results\n\n1. one\n2. two",
    ],
)
def test_code_names_sizes_dates_and_numbers_of_headings_need_no_reason(checkout: Path, study: Study, text: str) -> None:
    readme = checkout / "README.md"
    readme.write_text(f"{readme.read_text()}\n{text}\n")
    study("claims", "--root", str(checkout))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('recompute = "record"', 'recompute = "os:system"', "there is no recomputation 'os:system'"),
        ('data = ["call"]', 'data = ["call"]\nwith = { command = "true" }', "command"),
        ('"call.json"', '"../call.json"', "data lie in the checkout"),
        ('ours = "ours"', 'ours = "theirs"', "theirs"),
        ("{ours:3.82}", "{theirs:3.82}", "call.theirs, which no claim has"),
        ("(one H200),", "(one),", "must be stated with the words 'H200'"),
        ("gpu = true", "gpu = true\nunit = 'furlong'", "furlong"),
        ('text = "132 multiprocessors"', 'text = "132"', "a fact says what its number is"),
        ("[[facts]]", "[[unpublished]]\ntext = 'is 2 %'\nwhy = 'lost'\nin = ['README.md']\n[[facts]]", "no data"),
    ],
)
def test_a_ledger_that_names_what_is_not_there_is_refused_in_one_line(
    checkout: Path, study: Study, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    ledger = checkout / LEDGER
    text = ledger.read_text()
    assert old in text
    ledger.write_text(text.replace(old, new))
    capsys.readouterr()
    study("claims", "--root", str(checkout), code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_claim_that_there_is_not_is_refused_with_those_that_there_are(
    checkout: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    study("claims", "--root", str(checkout), "--only", "speed", code=2)
    assert "there is no claim 'speed'" in capsys.readouterr().err


TABLE = """| problem | µs | over the library |
| --- | ---: | ---: |
| 16×16×16 | **3.8** | 12.5 % |
| 32×32×32 | 7.6 | **\u2013** |
"""
COLUMNS = """
[data.rows]
path = "rows.json"
sha256 = ""

[claims.rows]
about = "rows"
recompute = "record"
data = ["rows"]
figures = { us = "{row}/us", over = "{row}/over" }
machine = "one H200"
gpu = true
[claims.rows.table]
in = "README.md"
behind = "| problem |"
form = "| {row} | {us} | {over:%} % |"
rows = ["16×16×16"]

[claims.never]
about = "a row without an end"
recompute = "record"
data = ["rows"]
figures = { us = "{row}/us", over = "{row}/over" }
machine = "one H200"
[claims.never.table]
in = "README.md"
behind = "| problem |"
form = "| {row} | {us} | {over} |"
rows = { "32×32×32" = "32x32x32" }
"""


@pytest.fixture
def with_table(checkout: Path, study: Study) -> Path:
    """The checkout with a table whose cells are held to the ledger."""
    readme, ledger = checkout / "README.md", checkout / LEDGER
    readme.write_text(f"{readme.read_text()}\n{TABLE}")
    rows = {"16x16x16": {"us": 3.81, "over": 0.1251}, "32x32x32": {"us": 7.6, "over": None}}
    (checkout / "rows.json").write_text(json.dumps(rows))
    ledger.write_text(COLUMNS + ledger.read_text())
    study("claims", "--root", str(checkout), "--update")
    return checkout


def test_the_cells_of_a_table_are_claims_by_column(
    with_table: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    study("claims", "--root", str(with_table), "--only", "rows")
    assert "2 figures of 2 claims recomputed, 0 contradictions" in capsys.readouterr().out
    ledger = read_ledger(with_table)
    assert ledger.claims["rows.over"].values == {"16×16×16": 12.51}
    assert ledger.claims["never.over"].values == {"32×32×32": float("inf")}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("**3.8**", "**3.7**", "rows.us.16×16×16 is 3.81, stated is 3.7"),
        ("12.5 %", "12.6 %", "rows.over.16×16×16 is 12.51, stated is 12.6"),
        ("**\u2013**", "9", "never.over.32×32×32 is inf, stated is 9"),
        ("12.5 %", "12.5", "README.md has 0 of the 1 rows of rows"),
        ("| 32×32×32 | 7.6 | **\u2013** |\n", "", "README.md has 0 of the 1 rows of never"),
        ("| --- | ---: | ---: |\n", "| --- | ---: | ---: |\n| 64×64×64 | 8.1 | 1 |\n", "the ledger lacks 8.1"),
    ],
)
def test_a_cell_that_states_something_else_is_found(
    with_table: Path, study: Study, capsys: pytest.CaptureFixture[str], old: str, new: str, told: str
) -> None:
    readme = with_table / "README.md"
    assert old in readme.read_text()
    readme.write_text(readme.read_text().replace(old, new))
    study("claims", "--root", str(with_table), code=1)
    assert told in capsys.readouterr().out
