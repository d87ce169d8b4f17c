"""``tilescout train``, ``predict`` and ``evaluate-model`` as a person runs them, on a part of the shipped table."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.protocol import Objective
from tilescout.search.tables.table import Table, write_table
from tilescout.search.tables.training import samples_of
from tilescout.search.tracking.models import EXPERIMENT
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

Run = Callable[..., subprocess.CompletedProcess[str]]
TEMPLATE = find_template("gemm_sm90")
PROBLEMS = tuple(map(GemmProblem.parse, ("4096x4096x4096", "1024x1024x1024", "64x8192x8192")))

pytestmark = pytest.mark.slow  # a model is trained for all of them


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Path:
    """150 configurations on three problems, as they were recorded."""
    return part_of_table(*map(str, PROBLEMS), rows=150).path


@pytest.fixture(scope="module")
def folder(run_command: Run, table: Path, copy_store: Callable[[Path], str]) -> Path:
    """Where a small model was trained and logged."""
    uri = copy_store(table.parent)
    done = run_command(
        table.parent,
        "train",
        "gemm_sm90",
        "--table",
        table,
        "--trees",
        4,
        "--steps",
        20,
        "--out",
        "models",
        "--mlflow",
        uri,
    )
    assert done.returncode == 0, done.stderr
    assert "450 measurements of 3 problems, 4 trees" in done.stdout
    assert re.search(r"calibrated with \d\d measurements", done.stdout)
    assert "of random configurations of 3 problems it predicts 0.0% to be faster than a kernel can be\n" in done.stdout
    return table.parent


def test_a_trained_model_ranks_a_problem_it_has_not_seen(run_command: Run, folder: Path) -> None:
    model, target = folder / "models" / "gemm_sm90-h200.npz", folder / "ranking.json"
    arguments = ("predict", "gemm_sm90", "--problem", "16x4096x4096", "--top", 5, "--json", target)
    done = run_command(folder, *arguments, "--model", model)
    assert done.returncode == 0, done.stderr
    assert "learned from 450 measurements of 3 problems" in " ".join(done.stdout.split())
    assert "28,392 configurations ranked" in done.stdout
    ranking = json.loads(target.read_text())["ranking"]
    times = [entry["time_us"] for entry in ranking]
    assert len(times) == 5
    assert times == sorted(times)
    assert all(entry["low_us"] < entry["time_us"] < entry["high_us"] for entry in ranking)
    assert run_command(folder, *arguments, "--model", model.parent).returncode == 0
    assert json.loads(target.read_text())["ranking"] == ranking
    assert run_command(folder, *arguments).returncode == 0
    assert json.loads(target.read_text())["ranking"] != ranking  # the shipped one


def test_what_can_not_be_predicted_is_one_line(run_command: Run, folder: Path) -> None:
    arguments = ("predict", "gemm_sm90", "--problem", "2048x2048x2048")
    for more, expected in (
        (("--device", "h100", "--model", "analytic"), "no calibration for h100 is shipped"),
        (("--model", "nowhere.npz"), "does not exist"),
        (("--model", "models/analytic-h200.json"), "models/analytic-h200.json is no model: one is a .npz file"),
        (("--device", "h100", "--model", "models/gemm_sm90-h200.npz"), "is of gemm_sm90 on h200"),
        (("--device", "h100", "--model", "models"), "has no gemm_sm90-h100.npz, the model of gemm_sm90 on h100, only "),
        (("--model", "."), "has no models: make one with `tilescout train gemm_sm90`"),
        (("--model", ""), "the name of the cost model is empty"),
    ):
        done = run_command(folder, *arguments, *more)
        assert done.returncode == 2
        assert expected in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_model_learns_from_tables_of_both_objectives(
    run_command: Run, folder: Path, table: Path, tmp_path: Path
) -> None:
    known, among = Table.read(table), tmp_path / "among.parquet"
    write_table(among, replace(known.card, objective=Objective.SANDWICH), known.data.slice(0, len(known) - 9))
    kinds = [{sample.among_others for sample in samples_of(Table.read(path), TEMPLATE)} for path in (table, among)]
    assert kinds == [{False}, {True}]
    given = ("--table", table, "--table", among, "--trees", 4, "--steps", 20, "--store", tmp_path, "--out", "both")
    done = run_command(folder, "train", "gemm_sm90", *given)
    assert done.returncode == 0, done.stderr
    model, card = load_model(folder / "both" / "gemm_sm90-h200.npz")
    assert [each.objective for each in card.tables] == ["chain", "sandwich"]
    one, _ = load_model(folder / "models" / "gemm_sm90-h200.npz")
    assert model.fitted is not None
    assert one.fitted is not None
    assert model.fitted.names == one.fitted.names  # no search has to say which it is


def test_a_problem_to_leave_out_that_no_table_holds_is_refused(run_command: Run, folder: Path, table: Path) -> None:
    done = run_command(folder, "train", "gemm_sm90", "--table", table, "--without", "4096x4096x4096:fp16")
    assert done.returncode == 2
    assert "no table holds 4096x4096x4096:fp16, held are 4096x4096x4096:bf16, " in done.stderr


def test_a_logged_model_is_served_without_pickle_and_predicts_the_same(folder: Path) -> None:
    import mlflow
    import pandas as pd

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    try:
        experiment = mlflow.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        (logged,) = mlflow.search_logged_models(experiment_ids=[experiment.experiment_id], output_format="list")
        local = Path(mlflow.artifacts.download_artifacts(logged.model_uri))
        served = mlflow.pyfunc.load_model(logged.model_uri)
    finally:
        mlflow.set_tracking_uri(before)
    assert not [path for path in local.rglob("*") if path.suffix in (".pkl", ".pickle")]
    assert served.metadata.signature is not None
    problem = GemmProblem(2048, 2048, 2048)
    template = find_template("gemm_sm90")
    space = template.space(problem, DEVICES["h200"])
    features = space_features(space.subset(np.arange(20)), template)
    model, _ = load_model(folder / "models" / "gemm_sm90-h200.npz")
    answer = served.predict(pd.DataFrame(features.values, columns=list(features.names)))
    np.testing.assert_allclose(answer["log_time"], model.predict(features).mean)


def test_the_registry_has_the_trained_model_with_its_evaluation(folder: Path) -> None:
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    version = client.get_model_version("gemm_sm90-h200", "1")
    assert version.description is not None
    assert "left out of the training" in version.description
    assert version.run_id is not None
    (logged,) = client.search_logged_models([client.get_run(version.run_id).info.experiment_id])
    assert version.source == logged.artifact_location
    run = client.get_run(version.run_id)
    assert run.data.metrics["rows"] == 450
    assert 0 <= run.data.metrics["regret_top10"] <= run.data.metrics["regret_top1"]
    assert float(version.tags["regret_top1"]) == pytest.approx(run.data.metrics["regret_top1"], rel=1e-4)
    note = run.data.tags["mlflow.note.content"]
    (picture,) = [file.path for file in client.list_artifacts(run.info.run_id) if file.path.endswith(".png")]
    assert f"get-artifact?path={picture}&run_uuid={run.info.run_id}" in note
    assert run.inputs is not None
    assert run.inputs.dataset_inputs


def test_models_are_evaluated_on_what_they_have_not_seen(run_command: Run, folder: Path, table: Path) -> None:
    uri, target = f"sqlite:///{folder / 'mlflow.db'}", folder / "quality.json"
    done = run_command(
        folder, "evaluate-model", "gemm_sm90", "--table", table, "--trees", 4, "--steps", 20, "--processes", 1,
        "--json", target, "--plots", "plots", "--mlflow", uri,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(target.read_text())
    for left_out in ("problem_left_out", "family_left_out"):
        for model in ("learned", "analytic"):
            figures = result[left_out][model]
            assert [entry["problem"] for entry in figures["problems"]] == [str(problem) for problem in PROBLEMS]
            assert 0 <= figures["summary"]["regret_top10"]["value"] <= figures["summary"]["regret_top1"]["value"]
    plots = {path.name for path in (folder / "plots").glob("*.png")}
    assert len(plots) == len(result["models"]) * 2
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("tilescout/cost model evaluation")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    for model in ("learned", "analytic"):
        for figure in ("regret_top1", "covered"):
            told = result["family_left_out"][model]["summary"][figure]["value"]
            assert run.data.metrics[f"family_left_out/{model}/{figure}"] == pytest.approx(told)
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"result.json", *plots}
    assert "**family left out**" in run.data.tags["mlflow.note.content"]


def test_a_search_takes_the_model_that_is_named_and_shows_its_trials(
    run_command: Run, folder: Path, table: Path
) -> None:
    uri, target = f"sqlite:///{folder / 'searches.db'}", folder / "found.json"
    arguments = ("tune", "gemm_sm90", "--problem", "4096x4096x4096", "--table", table, "--sampler", "guided")
    model = folder / "models" / "gemm_sm90-h200.npz"
    done = run_command(folder, *arguments, "--model", model, "--trials", 12, "--mlflow", uri, "--json", target)
    assert done.returncode == 0, done.stderr
    assert "trained on measurements of this very problem" in done.stderr
    client = MlflowClient(uri)
    runs = client.search_runs([found.experiment_id for found in client.search_experiments()])
    trials = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    assert len(trials) == len(runs) - 1 == json.loads(target.read_text())["trials"] <= 12
    # Tried is what that model, and not the shipped one, expects to be fastest.
    recorded, template = Table.read(table), find_template("gemm_sm90")
    with Evaluator(ReplayEngine(recorded, template), PROBLEMS[0]) as evaluator:
        space = evaluator.space
    expected, _ = load_model(model)
    fastest = int(expected.predict(space_features(space, template)).mean.argmin())
    assert fastest in {int(run.data.params["space_index"]) for run in trials}
    missing = run_command(folder, *arguments, "--model", "nowhere.npz", "--trials", 2)
    assert missing.returncode == 2
    assert "nowhere.npz does not exist" in missing.stderr
