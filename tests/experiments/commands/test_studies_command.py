"""``tilescout studies``, ``best`` and ``spaces``: what is stored and what can be tuned."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click
import mlflow
import optuna
import pytest
from optuna.samplers import RandomSampler

from tilescout.experiments.commands.completion import complete_studies
from tilescout.experiments.commands.studies import list_studies
from tilescout.experiments.commands.studies_diff import incomparable
from tilescout.search import load_study, tune
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.studies.database import Database
from tilescout.search.studies.folders import studies
from tilescout.search.studies.journal_folder import JournalFolder, make_journal, open_study
from tilescout.search.tracking.standing.unlogged import mark
from tilescout.spaces.errors import StoreError

Run = Callable[..., None]
PROBLEM = "512x512x512:bf16"
ALONE = LiveOptions(CompileOptions(standby=False))
NAME = "gemm_sm90-512x512x512-bf16-h200-replay-{}-s0"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two studies of a problem, and one that is damaged."""
    store = tmp_path_factory.mktemp("store")
    for sampler, trials in (("random", 12), ("tpe", 1)):
        tune("gemm_sm90", PROBLEM, sampler=sampler, device="replay", budget=trials, store=store, mlflow=False)
    (store / "studies" / "broken.journal").write_text("{}\n")
    return store


def test_studies_are_listed_and_one_that_can_not_be_read_is_named(
    run: Run, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run("studies", "--store", str(store))
    printed = capsys.readouterr().out
    for sampler, trials in (("random", "12"), ("tpe", "1")):
        [line] = [line for line in printed.splitlines() if line.startswith(NAME.format(sampler))]
        assert line.split("│")[1].strip() == trials
        over = load_study(NAME.format(sampler), store=store).over_library_best
        assert over is not None
        assert line.split("│")[4].strip() == f"{over.value:.3f}"
    assert "broken.journal" in printed.splitlines()[-1]


def test_a_study_is_shown_by_its_name(run: Run, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("studies", NAME.format("random"), "--store", str(store), "--json", "-")
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["trials"] == 12
    assert "12 trials" in printed.err


def test_the_best_of_all_studies_of_a_problem_is_found(
    run: Run, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("studies", "--store", str(store), "--json", "-")
    times = [result["best"]["time_us"] for result in json.loads(capsys.readouterr().out)]
    run("best", "512x512x512", "--store", str(store), "--json", "-")
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["time_us"] == min(times)
    run("best", "512x512x512:fp16", "--store", str(store), code=2)
    assert f"has a result for 512x512x512:fp16; searched was {PROBLEM}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["studies"], 0),
        (["studies", "a"], 2),
        (["studies", "delete", "--yes", "a"], 2),
        (["best", PROBLEM], 2),
        (["report", "a"], 2),
    ],
)
@pytest.mark.parametrize("kept", ["folder", "database"])
def test_where_no_study_is_kept_one_is_told_to_tune_first(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: str, arguments: list[str], code: int
) -> None:
    place = ["--store", str(tmp_path)]
    if kept == "database":
        optuna.storages.RDBStorage(f"sqlite:///{tmp_path}/a.db")
        place += ["--storage", f"sqlite:///{tmp_path}/a.db"]
    run(*arguments, *place, code=code)
    told = capsys.readouterr()
    assert "tune a problem first, or name the store that has studies" in (told.err or told.out)


def test_a_space_is_shown_with_its_knobs_its_constraints_and_its_size(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run("spaces", "--json", "-")
    listed = json.loads(capsys.readouterr().out)
    assert {"space": "gemm_sm90", "summary": "matrix products on Hopper, by our kernel"} in listed
    assert all(each["summary"] for each in listed)
    run("spaces", "softmax_sm90", "--problem", "8192x4096:bf16", "--json", "-")
    found = json.loads(capsys.readouterr().out)
    assert found["size"] > 1
    assert set(found["default"]) == {knob["knob"] for knob in found["knobs"]}
    assert all(rule["reason"] for rule in found["constraints"])


@pytest.mark.parametrize(("typed", "meant"), [("tun", "tune"), ("studys", "studies"), ("exprot", "export")])
def test_a_command_that_is_misspelt_is_told_the_nearest(
    run: Run, capsys: pytest.CaptureFixture[str], typed: str, meant: str
) -> None:
    run(typed, code=2)
    assert f"no such command '{typed}', did you mean '{meant}'?" in capsys.readouterr().err


def test_the_names_of_studies_are_completed_but_those_on_which_a_shell_acts(store: Path) -> None:
    for name in ("gemm\x1b]0;title\x07", "gemm\nfile"):
        (store / "studies" / f"{name}.journal").touch()
    context = click.Context(list_studies)
    context.params["store"] = store
    assert complete_studies(context, list_studies.params[0], "gemm") == [
        NAME.format(each) for each in ("random", "tpe")
    ]
    for path in (store / "studies").glob("gemm[\x1b\n]*"):
        path.unlink()


def test_two_studies_stand_side_by_side(run: Run, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [NAME.format(each) for each in ("random", "tpe")]
    run("studies", "diff", *names, "--store", str(store), "--json", "-")
    found = json.loads(capsys.readouterr().out)
    assert found["studies"] == names
    assert found["not_comparable"] == []
    assert found["differences"]["trials"] == [12, 1]
    over = [load_study(name, store=store).over_library_best for name in names]
    assert found["differences"]["vs library's best"] == [f"{each.value:.3f}" for each in over if each is not None]
    assert found["differences"]["sampler"] == ["random", "tpe"]
    assert "problem" not in found["differences"]


def test_what_makes_times_incomparable_is_named(store: Path) -> None:
    of_random = load_study(NAME.format("random"), store=store)
    info = replace(of_random.info, space_hash="another")
    assert incomparable(of_random, replace(of_random, info=info)) == ["kernel source"]
    older = replace(of_random.info.provenance, versions={"protocol": "paired-8"})
    assert incomparable(of_random, replace(of_random, info=replace(info, provenance=older)))[1:] == ["protocol"]


@pytest.mark.slow
def test_a_study_is_deleted_with_its_runs_and_no_other(
    run: Run,
    tmp_path: Path,
    copy_store: Callable[[Path], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = copy_store(tmp_path)
    for sampler in ("random", "exhaustive"):
        tune("gemm_sm90", PROBLEM, sampler=sampler, device="replay", budget=2, store=tmp_path, live=ALONE)
    name = NAME.format("random")
    run("studies", "delete", name, "--store", str(tmp_path), code=2)
    assert "--yes deletes without asking" in capsys.readouterr().err
    with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("tilescout.search.tracking.store._LOCK_SECONDS", 0.0)
        run("studies", "delete", name, "--yes", "--store", str(tmp_path), code=2)
    assert "database is locked" in capsys.readouterr().err
    assert (tmp_path / "studies" / f"{name}.journal").exists()  # who deletes its runs once more needs its name
    mark(studies(tmp_path), name, "the server was lost")
    run("studies", "delete", name, name, "--yes", "--store", str(tmp_path))
    assert f"deleted {name}, and 3 of its runs in MLflow" in capsys.readouterr().err
    assert [path.stem for path in (tmp_path / "studies").iterdir()] == [NAME.format("exhaustive")]
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert {each.data.tags["sampler"] for each in runs} == {"exhaustive"}
    run("studies", "delete", name, "--yes", "--store", str(tmp_path), code=2)
    assert f"there is no study {name}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_of_the_same_name_in_another_place_keeps_its_runs(
    run: Run, tmp_path: Path, copy_store: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    uri, database = copy_store(tmp_path), f"sqlite:///{tmp_path}/studies.db"
    for storage in (None, database):
        tune(
            "gemm_sm90",
            PROBLEM,
            sampler="random",
            device="replay",
            budget=2,
            store=tmp_path,
            storage=storage,
            live=ALONE,
        )
    name = NAME.format("random")
    run("studies", "delete", name, "--yes", "--storage", database, "--store", str(tmp_path))
    assert f"deleted {name}, and 3 of its runs in MLflow" in capsys.readouterr().err
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert len(runs) == 3
    (kept,) = (each.info.run_id for each in runs if "mlflow.parentRunId" not in each.data.tags)
    assert kept == JournalFolder(tmp_path / "studies").attributes(name)["tracking_run"]


def test_a_study_that_is_searched_is_not_deleted(tmp_path: Path) -> None:
    folder = JournalFolder(tmp_path)
    path = make_journal(tmp_path, "one")
    with open_study(path, RandomSampler()), pytest.raises(StoreError, match="another process is searching"):
        folder.delete("one")
    folder.delete("one")
    assert folder.names() == []


def test_a_study_of_a_database_is_deleted(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/studies.db")
    for name in ("one", "two"):
        optuna.create_study(storage=database.storage, study_name=name)
    database.delete("one")
    assert database.names() == ["two"]
    with pytest.raises(StoreError, match="there is no study one"):
        database.delete("one")
