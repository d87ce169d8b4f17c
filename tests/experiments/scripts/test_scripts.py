"""The experiment scripts that researchers copy: each runs here without a GPU, and leaves a plot and an MLflow run."""

import importlib
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import mlflow
import pytest

FOLDER = Path(importlib.import_module("tilescout.experiments.scripts").__file__ or "").parent
LONGEST = 100
SMALL = "512x512x512:bf16"
TINY = {
    "strategies": ["--problem", SMALL, "--trials", "4", "--seeds", "1"],
    "transfer": ["--problems", "2", "--rows", "60"],
    "ablation": ["--rows", "30", "--trees", "2"],
    "measurement": ["--problem", SMALL, "--sample", "20", "--device", "replay"],
    "model_export": ["--trials", "4", "--sampler", "random", "--device", "replay"],
}


def test_every_script_is_tested_and_short_enough_to_copy() -> None:
    scripts = {path.stem: path for path in FOLDER.glob("*.py") if path.stem != "__init__"}
    assert set(scripts) == set(TINY)
    long = [name for name, path in scripts.items() if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST]
    assert not long


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, copy_store: Callable[[Path], str]) -> Path:
    """One for all scripts."""
    folder = tmp_path_factory.mktemp("store")
    copy_store(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_script_leaves_a_plot_and_a_run_with_figures_in_mlflow(
    tmp_path: Path, store: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(f"tilescout.experiments.scripts.{name}")
    script.main([*TINY[name], "--out", str(tmp_path / "out"), "--store", str(store)], standalone_mode=False)

    (plot,) = (tmp_path / "out").glob("*.png")
    assert matplotlib.image.imread(plot).std() > 0
    client = mlflow.MlflowClient(f"sqlite:///{store}/mlflow.db")
    experiment = client.get_experiment_by_name(f"tilescout/{name.replace('_', ' ')}")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics
    assert run.data.params
    assert plot.name in [artifact.path for artifact in client.list_artifacts(run.info.run_id)]
    printed = capfd.readouterr().out
    assert run.info.run_id in printed
    if name in ("measurement", "model_export"):
        assert "no GPU was used" in printed
