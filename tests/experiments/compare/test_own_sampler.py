"""The documented sampler of one's own, run by the real command line from a folder outside the repository."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.search.tables.table import Table

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "own_sampler.py"
PROBLEM, SAMPLER = "512x512x512:bf16", "own_sampler:NearestSampler:startup=3"
SUITE = f"""
from tilescout.search.samplers.testing import OptunaConformance, SamplerConformance

class TestNearest(SamplerConformance):
    tested = "{SAMPLER}"

class TestNearestAsOptunaSampler(OptunaConformance):
    tested = "{SAMPLER}"
"""
SCRIPT = """
import json, sys
import optuna
from own_sampler import NearestSampler
from tilescout.experiments.compare import compare

if __name__ == "__main__":
    samplers = ["random", NearestSampler, NearestSampler(startup=3), optuna.samplers.RandomSampler(seed=1)]
    result = compare(samplers, tables=sys.argv[1:], trials=8, seeds=2, processes=1)
    assert not any(standing.failed for standing in result.standings), result.standings
    print(json.dumps({standing.name: standing.runs for standing in result.standings}))
"""
PIPED = """
from tilescout.experiments.compare import compare

result = compare(["random"], tables=[{table!r}], trials=4, seeds=1, processes=1)
print([(standing.name, standing.runs, standing.failed) for standing in result.standings])
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def elsewhere(tmp_path: Path, copy_store: Callable[[Path], str]) -> Path:
    """A folder with nothing but the example and an empty store."""
    shutil.copy(EXAMPLE, tmp_path)
    copy_store(tmp_path / ".tilescout")
    return tmp_path


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Table:
    return part_of_table(PROBLEM, rows=400)


def called(folder: Path, *command: str) -> str:
    """The standard output of a command that is run in a folder, and succeeds."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tilescout(folder: Path, *arguments: str) -> str:
    return called(folder, str(Path(sys.executable).with_name("tilescout")), *arguments)


def test_it_is_thirty_lines_long() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 30


@pytest.mark.slow
def test_it_runs_in_tune_and_in_compare(elsewhere: Path, table: Table, run_command: Run) -> None:
    about = ("--table", str(table.path), "--trials", "12")
    tilescout(
        elsewhere, "tune", "gemm_sm90", "--problem", PROBLEM, "--device", "replay", *about, "--sampler", SAMPLER,
        "--json", "tuned.json",
    )  # fmt: skip
    tuned = json.loads((elsewhere / "tuned.json").read_text())
    assert tuned["sampler"] == "nearest:startup=3"
    assert tuned["trials"] == 12
    run_command(
        elsewhere, "compare", *about, "--samplers", f"random,{SAMPLER}", "--seeds", "2", "--processes", "1",
        "--json", "compared.json",
    ).check_returncode()  # fmt: skip
    figures = json.loads((elsewhere / "compared.json").read_text())["contenders"]
    assert {name: (found["runs"], found["failed"]) for name, found in figures.items()} == {
        "random": (2, []),
        SAMPLER: (2, []),
    }


@pytest.mark.slow
def test_a_script_compares_classes_and_objects(elsewhere: Path, table: Table) -> None:
    (elsewhere / "script.py").write_text(SCRIPT)
    printed = called(elsewhere, sys.executable, "script.py", str(table.path))
    assert json.loads(printed.splitlines()[-1]) == {
        "random": 2,
        "nearest": 2,
        "nearest:startup=3": 2,
        "RandomSampler": 1,
    }


@pytest.mark.slow
def test_it_passes_the_shipped_conformance_suite(elsewhere: Path) -> None:
    (elsewhere / "test_own_sampler.py").write_text(SUITE)
    printed = called(elsewhere, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_own_sampler.py")
    assert "passed" in printed
    assert "failed" not in printed


@pytest.mark.slow
def test_a_comparison_that_is_piped_into_python_is_run(table: Table, tmp_path: Path) -> None:
    script = PIPED.format(table=str(table.path))
    done = subprocess.run([sys.executable, "-P", "-"], input=script, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[('random', 1, ())]\n"), done.stderr
