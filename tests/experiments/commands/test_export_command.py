"""`tilescout export`, from a search that measured for real, on the host, to the compiled model."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from tilescout.experiments.commands.export import ranges_of_tokens
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.export import from_studies
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.export.grouped.dispatch import GroupedDispatch
from tilescout.search.export.ranges import Range
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.templates import find_template

export_command = import_module("tilescout.experiments.commands.export")
ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "tests" / "search" / "kernels"

# The command line, with the plain GEMM among the spaces and the host among the devices.
COMMAND = f"""
import sys
sys.path.insert(0, {str(KERNELS)!r})
import plain_gemm
from tilescout.spaces import devices, templates
templates._BUILT_IN["plain_gemm"] = "plain_gemm:TEMPLATE"
devices.DEVICES["host"] = plain_gemm.HOST
from tilescout.experiments.commands.cli import main
main()
"""

SEARCH = f"""
import sys
sys.path.insert(0, {str(KERNELS)!r})
from pathlib import Path
import numpy as np
import plain_gemm
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.tuning.budget import Budget
from tilescout.search.measure.race import RaceOptions
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.gemm import GemmProblem

class Raced(Evaluator):
    # Everything is real but for the outcome of the race: a test can't depend on how fast this machine is.
    def race(self, indices, rounds, pairs, seed):
        return RATIO[self.space.problem] * np.random.default_rng(seed).uniform(0.999, 1.001, (rounds, len(indices)))

RATIO = {{GemmProblem(16, 64, 32): 0.9, GemmProblem(64, 64, 32): 1.1}}

if __name__ == "__main__":
    store = Path(sys.argv[1])
    live = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0))
    race = RaceOptions(looks=1, look=8)
    options = TuneOptions("random", 0, Budget(trials=1), store / "studies", race=race)
    for problem in RATIO:
        with LocalEngine(plain_gemm.TEMPLATE, store / "artifacts", ["cpu"], plain_gemm.HOST, live) as engine:
            run_study(Raced(engine, problem), options)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]
RunCommand = Callable[..., None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two searches that ended: in one's race our kernel took 0.9 of the library's time, in the other's
    1.1 of it."""
    folder = tmp_path_factory.mktemp("searched")
    (folder / "search.py").write_text(SEARCH)
    subprocess.run([sys.executable, str(folder / "search.py"), str(folder / "store")], check=True, timeout=240)
    return folder / "store"


@pytest.fixture
def export(store: Path, tmp_path: Path) -> Run:
    """A function: runs the command in an empty folder."""

    def export(*arguments: str, store: Path = store) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", COMMAND, "export", "--store", str(store), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)

    return export


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_what_a_search_proved_reaches_a_compiled_model(export: Run, tmp_path: Path) -> None:
    done = export("--out", "bundle")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 problems to our kernels, 1 kernel for host" in done.stdout
    record = json.loads((tmp_path / "bundle" / "bundle.json").read_text())
    choices = {decision["problem"]: decision["choice"] for decision in record["decisions"]}
    assert choices == {"16x64x32:bf16": "ours", "64x64x32:bf16": "library"}
    for decision in record["decisions"]:
        assert decision["evidence"]["rounds"] == 8
        expected = 0.9 if decision["choice"] == "ours" else 1.1
        assert decision["evidence"]["low"] < expected < decision["evidence"]["high"]
    model = (
        "import torch\n"
        "from tilescout.search.export.inductor import use\n"
        "layer = torch.nn.Linear(32, 64, bias=False, dtype=torch.bfloat16)\n"
        "x = torch.randn(16, 32, dtype=torch.bfloat16)\n"
        "with use('bundle') as tuned, torch.no_grad():\n"
        "    torch.testing.assert_close(torch.compile(layer)(x), layer(x), rtol=2e-2, atol=2e-2)\n"
        "print(dict(tuned.report.replaced))\n"
    )
    cold = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}  # a cached graph would replace nothing
    compiled = subprocess.run(
        [sys.executable, "-c", model], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120, env=cold
    )
    assert compiled.stdout.splitlines()[-1:] == ["{'16x64x32:bf16': 1}"], compiled.stderr


@pytest.mark.slow
def test_of_a_suite_what_was_tuned_is_exported(export: Run, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text('title = "mine"\nsource = "a test"\nproblems = ["16x64x32:bf16", "128x64x32:bf16"]\n')
    done = export("--suite", "mine.toml", "--out", "bundle")
    assert done.returncode == 0, done.stderr
    assert "tuned: 1 of 2 problems of mine.toml" in done.stdout
    assert "1 of 1 problem to our kernels" in done.stdout
    suite.write_text('title = "mine"\nsource = "a test"\nproblems = ["128x64x32:bf16"]\n')
    assert "no study of a problem of mine.toml ended" in refused(export("--suite", "mine.toml", "--out", "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_the_lookup_table_pins_what_is_the_librarys(export: Run, tmp_path: Path) -> None:
    done = export("--format", "inductor-lookup-table", "--out", "table.json")
    assert done.returncode == 0, done.stderr
    assert "1 problem pinned to ATen" in done.stdout
    ((key, entries),) = json.loads((tmp_path / "table.json").read_text()).items()
    assert "[64, 32]" in key
    assert key.startswith("CPU+")
    assert entries == [{"template_id": "aten::mm"}]


@pytest.mark.slow
def test_one_study_can_be_exported_by_name_journal_or_result(export: Run, store: Path, tmp_path: Path) -> None:
    names = sorted(path.stem for path in (store / "studies").glob("*.journal"))
    (small,) = [name for name in names if "-16x64x32" in name]
    forms = [small, str(store / "studies" / f"{small}.journal")]
    for number, name in enumerate(forms):
        done = export("--study", name, "--out", str(number))
        assert "1 of 1 problem to our kernels" in done.stdout, done.stderr
    digests = [json.loads((tmp_path / str(number) / "bundle.json").read_text())["digest"] for number in (0, 1)]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_searches_that_did_not_end_are_left_out_and_told(export: Run, store: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    small, large = sorted((copy / "studies").glob("*.journal"))
    end_early(large)
    done = export("--out", "bundle", store=copy)
    assert done.returncode == 0, done.stderr
    assert "1 of 1 problem to our kernels" in done.stdout
    told = f"left out: 1 search did not end ({large.stem}): finish each by its `tilescout tune` command with --resume"
    assert told in done.stdout.splitlines()
    end_early(small)
    told = refused(export("--out", "other", store=copy))
    assert f"ended: 2 searches did not end ({small.stem}, {large.stem}): resume them first" in told


def end_early(journal: Path) -> None:
    """Leave of a study what was there before its result was, as if the search had been killed."""
    lines = journal.read_bytes().splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if b'"result":' in line]
    journal.write_bytes(b"".join(lines[:at]))


@pytest.mark.slow
def test_what_can_not_be_exported_is_refused_in_one_line(export: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert "is there already" in refused(export("--out", "taken"))
    assert "there is no study" in refused(export("--study", "nobody", "--out", "out"))
    assert "no study in" in refused(export("--out", "out", store=tmp_path / "empty"))
    (tmp_path / "result.json").write_text('{"study": "old"}')
    assert "no result that can be exported" in refused(export("--study", "result.json", "--out", "out"))
    (tmp_path / "result.json").write_text("not JSON")
    assert "is no JSON" in refused(export("--study", "result.json", "--out", "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("given", "standby"), [((), True), (("--no-standby",), False)])
def test_a_kernel_that_the_store_lacks_is_compiled_by_a_process_that_stands_by_unless_told_otherwise(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], standby: bool
) -> None:
    template, problem = find_template("gemm_sm90"), GemmProblem(512, 512, 512)
    evidence = Evidence(
        "study", "faster", 0.9, 0.8, 1.0, 12, "a test", {from_studies.COMPILER: version(from_studies.COMPILER)}
    )
    default = template.default(problem, find_device("h200"))
    outcome = Outcome(problem, template.name, template.source_hash, "h200", Choice.OURS, evidence, default)
    asked: list[CompileOptions] = []

    def refuse(*arguments: object) -> None:
        asked.extend(each for each in arguments if isinstance(each, CompileOptions))
        raise ExportError("nothing is compiled here")

    monkeypatch.setattr(from_studies, "CompilePool", refuse)
    monkeypatch.setattr(export_command, "read_outcomes", lambda *_: from_studies.Decided([outcome], {}))
    run("export", "--store", str(tmp_path), "--out", str(tmp_path / "bundle"), *given, code=2)
    assert [options.standby for options in asked] == [standby]


def test_ranges_between_numbers_of_tokens_are_not_called_proven() -> None:
    ranges = Range(1, 9, "a", True), Range(10, 24, "b"), Range(25, 40, "a", True), Range(41, 64, "", True)
    dispatch = GroupedDispatch(GroupedProblem(4, 1, 48, 16), ranges, "a.parquet", "a test", sizes=(2, 32, 64))
    assert ranges_of_tokens(dispatch) == (
        "4x*x48x16:bf16: 4 ranges of tokens, 3 of them to our kernels: 2 proven at all measured numbers of tokens and "
        "routings in them, 1.000 of the library's time or less, and 1 between such numbers, by an estimate"
    )
