"""The study of the library's best algorithm, from the command line to the file, on a library that runs on the host."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from tilescout.experiments.research.studies import library_best, library_best_cards
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table, card_path
from tilescout.spaces import devices
from tilescout.spaces.errors import TableError

FOUND = Path(__file__).parents[3] / "experiments/results/library-best-2026-11-22/library-best.json"


@pytest.fixture(autouse=True)
def on_the_host(host_library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.DEVICES, "CPU", host_library.HOST)
    monkeypatch.setattr(library_best, "SPACE", host_library.TEMPLATE.name)


def run(folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Run the study; its output and its result."""
    out = folder / "out.json"
    asked = ["--device", "cpu", "--out", str(out), "--store", str(folder)]
    done = CliRunner().invoke(library_best.main, [*asked, *options])
    assert done.exit_code == 0, done.output
    return done.output, json.loads(out.read_text())["result"]


def test_guesses_and_all_algorithms_are_timed_and_raced(tmp_path: Path) -> None:
    suite = tmp_path / "one.toml"
    suite.write_text('title = "one"\nsource = "none"\nproblems = ["32x48x40:bf16"]\n')

    printed, result = run(tmp_path, "--suite", str(suite), "--all", "16x8x16:bf16", "--most", "6")

    listed, every = result["problems"]["32x48x40:bf16"], result["problems"]["16x8x16:bf16"]["all"]
    assert [row["configuration"][0] for row in listed["guesses"]] == [1, 2, 3]
    assert listed["best of list"] >= listed["first guess"] > 0
    assert every["asked about all"]
    assert every["tried"] == 6 < every["legal"]
    assert set(every["legal of each algorithm"]) == {"7", "9"}
    assert result["means"]["all"]["best of list over first guess"][0] >= 1
    assert "best of list over first guess" in printed


@pytest.mark.slow
def test_without_a_signature_problems_have_their_own_types_and_all_may_be_tried_on_none(tmp_path: Path) -> None:
    suite = tmp_path / "two.toml"
    suite.write_text('title = "two"\nsource = "none"\nproblems = ["32x48x40:bf16", "32x48x40:e4m3-bf16"]\n')

    _, result = run(tmp_path, "--suite", str(suite), "--signature", "", "--all", "16x8x16:bf16", "--most", "0")

    assert list(result["problems"]) == ["32x48x40:bf16", "32x48x40:e4m3-bf16"]


def test_a_problem_that_the_library_has_nothing_for_ends_nothing(tmp_path: Path) -> None:
    printed, result = run(tmp_path, "--suite", "llama3-8b:decode", "--all", "16x8x16", "--signature", "fp16")

    assert {one.get("error") or one["all"]["error"] for one in result["problems"].values()} != set()
    assert all("not supported" in (one.get("error") or one["all"]["error"]) for one in result["problems"].values())
    assert "not supported" in printed


def test_the_librarys_best_is_noted_in_a_card_unless_it_was_measured_otherwise(tmp_path: Path) -> None:
    measured = json.loads(FOUND.read_text())["result"]["problems"]
    shipped = next(path for path in shipped_tables() if path.name == "gemm_sm90-h200-bf16.parquet")
    card, path = Table.read_card(shipped), tmp_path / "table.parquet"
    bare = {problem: replace(baseline, library_best=None) for problem, baseline in card.baselines.items()}
    card_path(path).write_text(replace(card, baselines=bare).to_json())

    done = CliRunner().invoke(library_best_cards.main, [str(FOUND), "--table", str(path)])

    assert done.exit_code == 0, done.output
    told = {str(problem): baseline.library_best for problem, baseline in Table.read_card(path).baselines.items()}
    for text, best in told.items():
        assert best is not None
        assert 1 / best.ratio.value == pytest.approx(measured[text]["best of list"])
    card_path(path).write_text(replace(card, protocol="paired-1").to_json())
    with pytest.raises(TableError, match="'protocol': 'paired-1'"):
        CliRunner().invoke(library_best_cards.main, [str(FOUND), "--table", str(path)], catch_exceptions=False)
