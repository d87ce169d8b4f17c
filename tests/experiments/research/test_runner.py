"""The common command line of the studies: the list of them, their files, their figures again, their runs in MLflow."""

import json
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import click
import mlflow
import pytest

import tilescout.experiments.research as research
from tilescout.experiments.research.__main__ import cli
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Study
from tilescout.search.tables.shipped import shipped_tables
from tilescout.spaces.errors import StoreError

FOLDER = Path(research.__file__ or "").parent
RESULTS = FOLDER.parent / "results"
MODULES = {
    path.stem.replace("_", "-") for kind in ("studies", "benchmarks") for path in (FOLDER / kind).glob("[!_]*.py")
}
TABLE = str(shipped_tables()[0])
ROOT = Path(__file__).resolve().parents[3]


def test_every_module_of_the_folders_is_a_study_that_says_what_it_asks_and_what_it_needs() -> None:
    context = click.Context(cli)
    assert set(cli.list_commands(context)) == MODULES
    for name in MODULES:
        command = cli.get_command(context, name)
        assert isinstance(command, Study)
        assert command.needs
        assert command.help
        for parameter in command.params:
            assert isinstance(parameter, click.Argument) or parameter.help, (name, parameter.opts)


def test_no_study_takes_a_number_that_ends_nothing() -> None:
    context = click.Context(cli)
    for name in MODULES:
        for parameter in cli.get_command(context, name).params:  # type: ignore[union-attr]
            if isinstance(parameter.type, click.types.FloatParamType):
                for text in ("nan", "inf"):
                    with pytest.raises(click.BadParameter):
                        parameter.type(text, parameter, context)


def test_without_a_name_the_studies_are_listed_with_what_they_need() -> None:
    command = [sys.executable, "-m", "tilescout.experiments.research"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    studies, _, benchmarks = done.stdout.partition("Studies:\n")[2].partition("Benchmarks:\n")
    lines = [line for line in (studies + benchmarks).splitlines() if line.startswith("  ") and line[2] != " "]
    listed = [line.split()[0] for line in lines]
    assert set(listed) == MODULES
    assert done.stdout.split().count("Needs") == len(MODULES)


def test_a_name_that_is_none_is_refused_in_one_line(
    study: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    study("nothing", code=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert "nothing" in line


def test_a_file_says_when_and_how_its_result_was_measured_and_names_no_folder_of_this_machine(
    study: Callable[..., None], tmp_path: Path
) -> None:
    out = tmp_path / "worth.json"
    study("knob-worth", TABLE, "--out", str(out))
    record = Record.read(out)
    assert record.about["study"] == "knob-worth"
    table = Path(TABLE).relative_to(ROOT)
    assert record.about["command"] == f"python -m tilescout.experiments.research knob-worth {table} --out worth.json"
    assert record.about["date"].endswith("+00:00")
    assert record.about["machine"]["cores"] >= 1
    assert record.about["versions"]["python"] == platform.python_version()
    assert record.about["versions"]["tilescout"] == version("tilescout")
    assert "swizzle" in record.result
    assert json.loads(out.read_text()) == {"about": record.about, "result": record.result}


@pytest.mark.parametrize("name", ["found.json", "found.json.gz"])
def test_a_record_is_read_as_it_was_written_and_so_is_an_older_file(tmp_path: Path, name: str) -> None:
    record = Record.of("a-study", "a command", {"problems": {"1x1": [1.5, None]}})
    record.write(tmp_path / name)
    assert Record.read(tmp_path / name) == record
    (tmp_path / "older.json").write_text(json.dumps(record.result))
    assert Record.read(tmp_path / "older.json") == Record({}, record.result)
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_a_file_that_is_no_json_is_refused_in_one_line(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in (b"nothing", b"\x1f\x8bnothing"):
        (tmp_path / "damaged").write_bytes(content)
        study("timelines", "--again", str(tmp_path / "damaged"), code=2)
        (line,) = capsys.readouterr().err.splitlines()
        assert "damaged as the record of a study" in line


@pytest.mark.parametrize(
    ("name", "file", "options", "printed"),
    [
        (
            "race-designs",
            "tunings-2026-11-22/races.json.gz",
            ["--races", "3"],
            "4096x4096x4096:bf16: 13 kernels, 12 heats of 60 rounds",
        ),
        (
            "timelines",
            "measurement-2026-11-22-paired-8/timelines-64.json.gz",
            [],
            "64x8192x8192:bf16, dense: spread by neighbours",
        ),
        (
            "reference",
            "measurement-2026-11-21-paired-4/reference-b.json",
            [],
            "16x4096x4096:bf16, blocks of 300 us, inputs of 4 L2: nothing",
        ),
    ],
)
def test_the_files_among_the_results_are_still_read(
    study: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    name: str,
    file: str,
    options: list[str],
    printed: str,
) -> None:
    study(name, "--again", str(RESULTS / file), *options)
    assert capsys.readouterr().out.startswith(printed)


def test_a_result_is_logged_to_mlflow_with_its_options_its_numbers_and_its_file(
    study: Callable[..., None], tmp_path: Path, copy_store: Callable[[Path], str]
) -> None:
    uri = copy_store(tmp_path)
    study("knob-worth", TABLE, "--mlflow", uri)
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("tilescout/knob-worth")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"tables": TABLE}
    assert run.data.metrics["swizzle/loss/4096x4096x4096-bf16"] >= 0
    assert [artifact.path for artifact in client.list_artifacts(run.info.run_id)] == ["result.json"]


@pytest.mark.parametrize("content", ['{"cache": {}}', '[{"time": 1.0}]', "block,time\n1,2\n", 'title = "mine"\n'])
def test_what_no_study_wrote_is_not_written_over(tmp_path: Path, content: str) -> None:
    for name in ("measured.json", "measured.toml"):
        out = tmp_path / name
        out.write_text(content)
        with pytest.raises(StoreError, match="is there already and is not what a study wrote"):
            cli.main(["draw-problems", "--out", str(out)], standalone_mode=False)
        assert out.read_text() == content


def test_what_a_study_wrote_is_written_anew(tmp_path: Path) -> None:
    out = tmp_path / "drawn.toml"
    for seed in ("0", "1"):
        cli.main(["draw-problems", "--seed", seed, "--out", str(out)], standalone_mode=False)
    assert "drawn with seed 1" in out.read_text()
