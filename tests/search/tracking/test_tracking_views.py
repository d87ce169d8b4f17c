"""The views of a study in MLflow beyond its trials: inputs, the machine's load, importances and maps of any space."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from matplotlib.text import Text
from mlflow import MlflowClient
from mlflow.entities import Run

from tilescout.costmodel.estimator import Expected
from tilescout.costmodel.persistence import shipped_model
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Dataset, Provenance
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking import MlflowTracker
from tilescout.search.tracking.mlflow_hooks import DatabaseRuns
from tilescout.search.tracking.page import to_html
from tilescout.search.tracking.plots import convergence, figure_type, to_png
from tilescout.search.tracking.views import failures, gpu_account, heat_map, importance
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

GRID = [
    Configuration.of({"rows": rows, "threads": threads, "order": order})
    for rows, threads, order in product((1, 2, 4, 8), (64, 128, 256), ("up", "down"))
]
TABLE = Dataset(
    "t.parquet", "/tables/t.parquet", "ab" * 32, 24, {"rows": "int64", "order": "string", "ratio": "double"}
)
INFO = StudyInfo(
    "study", "softmax", "ab12", GemmProblem(512, 512, 512), "h200", "random", 1,
    Provenance("replay", "a recorded table", table=TABLE), GRID[0], "torch.softmax", 8.0,
)  # fmt: skip


def study(info: StudyInfo = INFO) -> StudyResult:
    """Every configuration of a space without tiles, whose time is nearly all decided by ``threads``; two failed."""
    trials = []
    for number, configuration in enumerate(GRID):
        ratio = int(configuration["threads"]) / 64 + int(configuration["rows"]) / 100
        timing = Timing(ratio, ratio, ratio, ratio * 0.99, ratio * 1.01, info.library_us, 9)
        measurement = Measurement(Status.OK, timing=timing, gpu_seconds=0.5, verify_seconds=0.1)
        if number in (7, 9):
            measurement = Measurement(Status.WRONG, "off by 3", gpu_seconds=0.25, verify_seconds=0.25)
        expected = Expected(8.0, 7.0, 9.0)
        trials.append(TrialRecord(number, number, configuration, measurement, 1e9 + number, 1e9 + number + 1, expected))
    return StudyResult(info, trials, 3.0)


def log(uri: str, result: StudyResult) -> tuple[MlflowClient, Run, dict[str, Run]]:
    """A client of the store, and the runs of the study and of its trials."""
    with MlflowTracker(uri, None, result.info) as tracker:
        tracker.finish(result)
    client = MlflowClient(uri)
    trials = client.get_run(tracker.run_id).data.tags["tilescout.trials"]
    children = client.search_runs([trials], f"tags.`mlflow.parentRunId` = '{tracker.run_id}'")
    return client, client.get_run(tracker.run_id), {run.info.run_name: run for run in children}


def test_the_knob_that_decides_the_times_is_the_most_important_one_and_is_mapped() -> None:
    found = importance(study())
    assert found is not None
    assert next(iter(found.variance)) == "threads"
    assert found.variance["threads"] > 0.8
    assert sum(found.fastest.values()) == pytest.approx(1)
    drawn = heat_map(study(), found)
    assert drawn is not None
    assert (drawn.y, drawn.x) == ("threads", "rows")
    assert drawn.time_us.shape == (3, 4)
    assert drawn.time_us[0, 0] == pytest.approx(8 * 1.01)


def test_seconds_are_accounted_by_what_they_went_into_and_failures_by_reason() -> None:
    account = gpu_account(study())
    assert account["verify"] == pytest.approx({"ok": 2.2, "pruned": 0, "failed": 0.5})
    assert sum(sum(parts.values()) for parts in account.values()) == pytest.approx(study().gpu_seconds)
    assert failures(study()) == [("wrong", "off by 3", 2, 7)]


@pytest.mark.slow
def test_a_trial_is_the_same_written_at_once_and_through_the_client(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, parent, children = log(store, study())
    monkeypatch.setattr(DatabaseRuns, "of", lambda *arguments: None)
    client, other, others = log(store, study())
    assert children.keys() == others.keys()
    left_out = {"mlflow.parentRunId", "mlflow.note.content"}
    for ours, theirs in ((parent, other), *((children[name], others[name]) for name in children)):
        assert ours.data.metrics == theirs.data.metrics
        assert ours.data.params == theirs.data.params
        for run in (ours, theirs):
            for tag in left_out:
                run.data.tags.pop(tag, None)
        assert ours.data.tags == theirs.data.tags
        about, same = dict(ours.info), dict(theirs.info)
        for name in ("run_id", "run_uuid", "artifact_uri", *(("start_time", "end_time") if ours is parent else ())):
            about.pop(name, None)
            same.pop(name, None)
        assert about == same
        assert ours.info.artifact_uri.replace(ours.info.run_id, "") == theirs.info.artifact_uri.replace(
            theirs.info.run_id, ""
        )
    for metric in parent.data.metrics:
        history = [
            [(point.step, point.value, point.timestamp) for point in client.get_metric_history(run.info.run_id, metric)]
            for run in (parent, other)
        ]
        assert sorted(history[0]) == sorted(history[1])


@pytest.mark.slow
def test_the_table_and_the_cost_model_are_inputs_of_the_run(store: str) -> None:
    path = shipped_model("gemm_sm90", "h200")
    assert path is not None
    client, parent, children = log(store, study(replace(INFO, model=str(path))))
    assert parent.inputs is not None
    (dataset,) = parent.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.tags[0].value) == ("t.parquet", "replay")
    assert '{"name": "rows", "type": "long"}' in (dataset.dataset.schema or "")
    (model,) = parent.inputs.model_inputs
    logged = client.get_logged_model(model.model_id)
    assert logged.params["space"] == "gemm_sm90"
    assert logged.status == "READY"
    _, again, _ = log(store, study(replace(INFO, name="another", model=str(path))))
    assert again.inputs is not None
    assert again.inputs.model_inputs[0].model_id == model.model_id  # one file, one model
    assert children["trial 0"].data.metrics["predicted_us"] == 8


def test_a_cost_model_that_is_an_object_is_named_and_no_input(store: str) -> None:
    found = study(replace(INFO, model_object="ForestModel", model_sha256="cd" * 32))
    _, parent, _ = log(store, found)
    tags = {name: value for name, value in parent.data.tags.items() if "cost_model" in name}
    assert tags == {
        "cost_model": "ForestModel, given as an object", "cost_model_sha256": "cd" * 32,
        "cost_model_knows_problem": "not known",
    }  # fmt: skip
    assert not (parent.inputs and parent.inputs.model_inputs)
    assert f"ForestModel, given as an object, SHA-256 {'cd' * 32}" in to_html(found)


def test_a_live_run_has_the_load_of_the_machine(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    info = replace(INFO, provenance=Provenance("live", "a GPU"))
    client = MlflowClient(store)
    with MlflowTracker(store, None, info) as tracker:
        while "system/cpu_utilization_percentage" not in client.get_run(tracker.run_id).data.metrics:
            pass
        tracker.finish(study(info))
    assert client.get_run(tracker.run_id).info.status == "FINISHED"


def test_slow_trials_do_not_flatten_a_plot_which_says_how_many_there_are() -> None:
    result = study()
    library, default = result.info.library_us, result.default
    assert default is not None
    ceiling = 1.6 * max(library, default.measurement.time_us)
    timed = [trial for trial in result.trials if trial.measurement.ok]
    slower = sum(trial.measurement.time_us > ceiling for trial in timed)
    figure = convergence(result)
    axes = figure.axes[0]
    assert slower > 0
    assert axes.get_ylim()[1] < max(trial.measurement.time_us for trial in timed)
    assert f"slower than is shown ({slower})" in axes.get_legend_handles_labels()[1]
    assert figure.axes[1].get_ylim() == axes.get_ylim()


def test_the_numbers_of_logarithmic_axes_are_plain_ones() -> None:
    figure = figure_type()()
    axes = figure.add_subplot()
    axes.plot([1, 6], [0.5, 300])
    axes.set_xscale("log")
    axes.set_yscale("symlog")
    to_png(figure)
    for axis in (axes.xaxis, axes.yaxis):
        shown = [label.get_text() for label in axis.get_ticklabels(which="both") if label.get_text()]
        assert len(shown) > 1
        assert not any("$" in text or "\\" in text for text in shown)


def test_settings_of_the_working_directory_run_no_program_on_text_from_data() -> None:
    from matplotlib import rc_context

    with rc_context({"text.usetex": True}):
        figure = figure_type()()
        axes = figure.add_subplot()
        axes.plot([1, 6], [0.5, 300])
        axes.set_title(r"\input{/etc/passwd}")
        to_png(figure)
    assert axes.title.get_text() == r"\input{/etc/passwd}"
    assert not any(text.get_usetex() for text in figure.findobj(Text))


@pytest.mark.parametrize("settings", ["MPLBACKEND", "matplotlibrc"])
def test_settings_that_matplotlib_refuses_are_told_in_a_line(tmp_path: Path, settings: str) -> None:
    environ = {**os.environ, "MPLBACKEND": "nonsense"} if settings == "MPLBACKEND" else dict(os.environ)
    if settings == "matplotlibrc":
        (tmp_path / settings).write_bytes(b"backend: \xff\n")
    script = "from tilescout.search.tracking.plots import figure_type; figure_type()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tilescout.spaces.errors.StoreError: can't draw: matplotlib refuses its settings: ")
    assert last.endswith("; unset MPLBACKEND, or mend the file matplotlibrc")
