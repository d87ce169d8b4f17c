"""``tilescout table``, and searches of kernels that only a table knows."""

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search import tune
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.studies.folders import studies
from tilescout.search.tables.shipped import shipped_tables, template_of
from tilescout.search.tables.table import Table, write_table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces import templates
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

RunCommand = Callable[..., None]

SIZES = (8, 16, 32, 64)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cache of a kernel that is not ours: 64 configurations, 4 of which fail."""
    monkeypatch.chdir(tmp_path)
    entries = {}
    for x in SIZES:
        for y in SIZES:
            for z in SIZES:
                time = "RuntimeFailedConfig" if x == y == 8 else 1 + abs(x - 32) / 8 + abs(y - 16) / 4 + z / 64
                entries[f"{x},{y},{z}"] = {"x": x, "y": y, "z": z, "time": time, "benchmark_time": 20.0}
    cache = {
        "device_name": "A GPU of another time", "kernel_name": "stencil", "problem_size": [512, 512, 64],
        "tune_params_keys": ["x", "y", "z"], "tune_params": dict.fromkeys("xyz", SIZES), "cache": entries,
    }  # fmt: skip
    (tmp_path / "rows.csv").write_text("x,time\n8,1.5\n")
    (tmp_path / "list.json").write_text(json.dumps(list(entries.values())))
    (tmp_path / "cache.json.gz").write_bytes(gzip.compress(json.dumps(cache).encode()))
    return tmp_path


@pytest.mark.slow
def test_an_imported_kernel_is_tuned_listed_and_compared(
    folder: Path, run: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    run("tables", "import", "cache.json.gz", "stencil.parquet")
    assert (
        "stencil 512x512x64 on A GPU of another time: 64 configurations of x, y, z, 4 failed" in capsys.readouterr().out
    )
    run("tables", "import", "cache.json.gz", "stencil.parquet", "--kernel", "another", code=2)
    assert "stencil.parquet is a table of stencil on A GPU of another time, 512x512x64" in capsys.readouterr().err
    run("tables", "import", "cache.json.gz", "stencil.parquet", "--problem", "64", code=2)
    assert "A GPU of another time, 512x512x64 (kernel-tuner): choose" in capsys.readouterr().err
    run("tables", "import", "cache.json.gz", "stencil.parquet")
    run("tables", "stencil.parquet")
    assert "512x512x64" in capsys.readouterr().out
    arguments = ("--problem", "512x512x64", "--table", "stencil.parquet")
    run("tune", "stencil", *arguments, "--sampler", "exhaustive", "--trials", "64", "--json", "tune.json")
    printed = capsys.readouterr().out
    assert "x=32 y=16 z=8" in printed
    assert "roofline" not in printed
    assert "not known" not in printed
    result = json.loads(Path("tune.json").read_text())
    assert result["best"]["configuration"] == {"x": 32, "y": 16, "z": 8}
    assert result["best"]["time_us"] == pytest.approx(1125)
    assert result["roofline_us"] is None
    assert result["gpu_seconds"] == pytest.approx(64 * 0.02)
    run("compare", "--table", "stencil.parquet", "--samplers", "random,lfbo:initial=5", "--trials", "20",
        "--seeds", "2", "--processes", "1", "--json", "compare.json")  # fmt: skip
    (case,) = json.loads(Path("compare.json").read_text())["cases"].values()
    assert (case["configurations"], case["timed"]) == (64, 60)


def test_another_objective_is_read_and_not_exported(
    folder: Path, run: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ("--kernel", "stencil", "--device", "A GPU", "--problem", "64")
    run("tables", "import", "list.json", "cost.parquet", *told, "--objective", "benchmark_time", "--minimize")
    assert "64 configurations of x, y, z (benchmark_time, no times), 4 failed" in capsys.readouterr().out
    run("tables", "export-kernel-tuner", "cost.parquet", "out.json", code=2)
    assert "has no times: The rows are no times but benchmark_time, of which less is better" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_no_time_is_nowhere_called_one(
    folder: Path, run: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ("--kernel", "stencil", "--device", "A GPU", "--problem", "64")
    run("tables", "import", "list.json", "cost.parquet", *told, "--objective", "benchmark_time", "--minimize")
    run("tables", "cost.parquet")
    run("tune", "stencil", "--problem", "64", "--table", "cost.parquet", "--sampler", "random", "--trials", "3")
    (name,) = (path.stem for path in Path(".tilescout/studies").glob("*.journal"))
    run("studies")
    run("studies", "show", name)
    run("report", name, "--out", "page.html")
    printed = capsys.readouterr()
    shown = printed.out + printed.err + Path("page.html").read_text()
    assert "µs" not in shown
    assert "best 100.00 relative" in printed.err


@pytest.mark.slow
def test_a_shipped_table_is_exported_and_comes_back_but_not_over_one_that_was_measured(
    folder: Path, run: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = shipped_tables()[0]
    problem = "512x512x512:bf16"
    run("tables", "export-kernel-tuner", str(shipped), "out.json.gz", "--problem", problem)
    cache = json.loads(gzip.decompress(Path("out.json.gz").read_bytes()))
    original = Table.read(shipped)
    (found,) = [known for known in original.problems if str(known) == problem]
    assert len(cache["cache"]) == len(original.rows(found))
    run("tables", "import", "out.json.gz", "again.parquet")
    again = Table.read(Path("again.parquet"))
    before = next(each for each in original.summarise() if each.problem == found)
    after = again.summarise()[0]
    assert (before.rows, before.ok, before.pruned) == (after.rows, after.ok, after.pruned)
    assert f"{before.pruned:,} pruned (no time is known, only a bound), 0 failed" in capsys.readouterr().out
    assert again.times_us == pytest.approx(original.times_us[original.rows(found)])  # infinite where it was pruned
    measured = replace(again.card, protocol=original.card.protocol)
    write_table(Path("own.parquet"), measured, again.data)
    run("tables", "import", "out.json.gz", "own.parquet", code=2)
    assert f"({measured.protocol}): choose another file" in capsys.readouterr().err
    assert Table.read_card(Path("own.parquet")).protocol == measured.protocol


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("tables", "import", "nothing.json", "out.parquet"), "can't read nothing.json"),
        (("tables", "import", "cache.json.gz", "out.txt"), "a table is a .parquet file"),
        (("tables", "import", "cache.json.gz", "."), "can't write .: it is a folder"),
        (("tables", "export-kernel-tuner", "nothing.parquet", "."), "can't write .: it is a folder"),
        (("tables", "rows.csv"), "beside it; `tilescout tables import` makes one of results of another tuner"),
        (("tables", "import", "rows.csv", "o.parquet"), "of rows, as of a CSV file, make a list with an object for"),
        (
            ("tables", "import", "cache.json.gz", "o.parquet", "--problem", "a b"),
            "malformed problem 'a b'",
        ),
        (("tables", "import", "list.json", "o.parquet", "--problem", "1"), "give --kernel, --device"),
        (("tables", "import", "cache.json.gz", "o.parquet", "--objective", "cost"), "has the figure cost, the first"),
        (
            ("tables", "import", "cache.json.gz", "o.parquet", "--objective", "benchmark_time"),
            "give --maximize or --minimize",
        ),
        (("tables", "export-kernel-tuner", "nothing.parquet", "out.json"), "does not exist"),
        (("tables", "export-kernel-tuner", "SHIPPED", "out.json"), "name one with --problem: 8192x8192x8192:bf16"),
        (("tables", "export-kernel-tuner", "SHIPPED", "out.json", "--problem", "1x1"), "holds nothing of 1x1"),
        (("compare", "--problem", "1x1x1:bf16"), "no table holds 1x1x1:bf16, held are 512x512x512:bf16"),
        (("compare", "--samplers", "random,magic"), "unknown sampler 'magic'"),
        (("compare", "--samplers", "random,random"), "random is named twice"),
        (("tune", "stencil", "--problem", "512x512x64"), "unknown space 'stencil', known are"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    run: RunCommand,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    answer: str,
) -> None:
    run(*(str(shipped_tables()[0]) if text == "SHIPPED" else text for text in arguments), code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert answer in line


def test_a_table_of_a_space_that_has_changed_is_replayed_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.read(shipped_tables()[0])
    ours = find_template("gemm_sm90")
    monkeypatch.setattr(type(ours), "knobs", ours.knobs[1:])
    template = template_of(table)
    problem = table.problems[0]
    assert template.parse(str(problem)) == problem
    with Evaluator(ReplayEngine(table, template), problem) as evaluator:
        assert len(evaluator.space) == len(table.rows(problem))


def test_tables_keep_their_numbers_on_a_terminal_of_80_columns_and_are_json_on_standard_output(
    run: RunCommand, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run("tables", "--json", "-")
    printed = capsys.readouterr()
    first = json.loads(printed.out)[0]["problems"][0]
    lines = [line.rstrip() for line in printed.err.splitlines() if re.match(r"\d+x\d+x\d+:", line)]
    cells = next(line.replace("│", " ").split() for line in lines if line.startswith(first["problem"]))
    assert cells[0] == first["problem"]
    assert cells[1] == f"{first['rows']:,}"
    shown = ("best", "default", "library_best")
    assert cells[-3:] == [f"{first[f'{name}_speedup_over_library']:.3f}" for name in shown]
    assert max(map(len, lines)) <= 80


def test_a_store_with_replayed_studies_alone_makes_no_table_and_the_line_says_why(
    run: RunCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = tmp_path / "store", tmp_path / "own.parquet"
    tune("gemm_sm90", "512x512x512:bf16", sampler="random", device="replay", budget=2, store=store, mlflow=False)

    run("tables", "from-studies", "gemm_sm90", str(out), "--store", str(store), code=2)

    assert "studies of it: 1, with times of a GPU: 0" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_what_a_search_measured_becomes_a_table(
    run: RunCommand,
    plain_gemm: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(templates._BUILT_IN, "plain_gemm", "plain_gemm:TEMPLATE")
    monkeypatch.setitem(DEVICES, "host", plain_gemm.HOST)
    store, out, problem = tmp_path / "store", tmp_path / "own.parquet", GemmProblem(16, 48, 40)
    live = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0), timeout=60)
    with LocalEngine(plain_gemm.TEMPLATE, store / "artifacts", ["cpu"], plain_gemm.HOST, live) as engine:
        result = run_study(Evaluator(engine, problem), TuneOptions("random", 0, Budget(3), studies(store)))
    Path(studies(store), "broken.journal").write_text("{}\n")

    run("tables", "from-studies", "plain_gemm", str(out), "--store", str(store), "--device", "host")

    printed = capsys.readouterr().out
    assert "own.parquet: 3 rows of 1 problem, from 1 study" in printed.replace("\n", " ")
    assert "left out:" in printed
    table = Table.read(out)
    times = {trial.configuration: trial.measurement.timing for trial in result.trials}
    assert {table.configuration(row): table.measurement(row).timing for row in range(len(table))} == times
