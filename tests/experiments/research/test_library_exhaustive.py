"""The studies of all of cuBLASLt's algorithms and of all backends, on a library that runs on the host."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

from tilescout.experiments.research.inductor_backends import NoBackendError, tune_by
from tilescout.experiments.research.studies import backends, library_exhaustive
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import described_artifact
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces import devices, templates
from tilescout.spaces.cublaslt.algorithms import KNOBS
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.knobs import Configuration

KERNELS = Path(__file__).resolve().parents[2] / "search" / "kernels"
PROBLEM = GemmProblem(32, 48, 40)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(KERNELS))
    fake = importlib.import_module("fake_cublaslt")
    monkeypatch.setitem(templates._BUILT_IN, "host_cublaslt", "fake_cublaslt:TEMPLATE")
    monkeypatch.setitem(devices.DEVICES, "host", fake.HOST)
    monkeypatch.setitem(devices.DEVICES, "CPU", fake.HOST)
    monkeypatch.setattr(library_exhaustive, "SPACE", "host_cublaslt")
    return fake


@pytest.mark.usefixtures("host")
def test_all_algorithms_are_screened_and_a_search_is_compared_with_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_exhaustive, "FINALISTS", 3)
    out, times = tmp_path / "out.json", tmp_path / "times"
    asked = ["--device", "cpu", "--out", str(out), "--store", str(tmp_path), "--times", str(times), "--trials", "4"]

    # The library's custom option 3 takes the process down, and is legal.
    monkeypatch.setitem(importlib.import_module("tilescout.spaces.cublaslt.algorithms").VALUES, "custom_option", (0, 1))
    suite = tmp_path / "one.toml"
    suite.write_text('title = "one"\nsource = "none"\nproblems = ["8x48x40:bf16"]\n')
    asked += ["--screen", str(suite), "--sampler", "random"]
    done = CliRunner().invoke(library_exhaustive.main, [*asked, "--problem", "16x48x40:bf16"])

    assert done.exit_code == 0, done.output
    assert (times / "8x48x40-bf16.npz").exists()
    one = json.loads(out.read_text())["result"]["problems"]["16x48x40:bf16"]
    assert one["screened"] == one["legal"] > 8
    assert one["refused"] == 0
    answer = one["answers"]["random"]
    assert answer["trials"] == 4
    assert answer["slower by"] >= 0
    with np.load(times / "16x48x40-bf16.npz") as held:
        assert held["rows"].shape == (one["legal"], len(KNOBS))
        assert (held["us"] > 0).all()


def test_inductor_compiles_by_one_backend_or_says_that_it_can_not() -> None:
    inputs = Gemm().inputs(PROBLEM, torch.Generator().manual_seed(0))
    output = Gemm().output(PROBLEM, torch.device("cpu"))

    tuned = tune_by("ATEN", PROBLEM, inputs)
    tuned.launch_into(inputs, output)

    assert torch.allclose(output.float(), inputs[0].float() @ inputs[1].float().transpose(1, 2), rtol=0.02, atol=0.2)
    assert tuned.seconds > 0
    with pytest.raises(NoBackendError, match="no kernel by"):
        tune_by("ATEN", GemmProblem(32, 48, 40, dtype="e4m3"), inputs)


def test_what_backends_found_races_and_what_is_absent_is_said(
    host: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "INDUCTOR", {"ATen": "ATEN", "Other": "OTHER"})
    knobs = dict.fromkeys(KNOBS, 0) | {"algorithm": 7, "tile": 1, "stages": 4, "split_k": 1}
    configuration = Configuration.of(knobs)
    described_artifact(host.TEMPLATE, configuration, PROBLEM.signature, "host", ArtifactStore(artifacts(tmp_path)))
    entrant = backends.Entrant("host_cublaslt", configuration, 1.0, 0.0, 0.5)
    absent = {"OTHER": "not in this torch"}

    entrants: dict[str, backends.Entrant | str] = {backends.OURS: entrant, "Quack": "not installed"}
    found = backends.raced(Worker("cpu"), PROBLEM, entrants, tmp_path, absent, 0)

    rows = found["rows"]
    assert rows[backends.OURS]["speed"]["value"] > 0
    assert rows["ATen"]["speed"]["value"] > 0
    assert (rows["Quack"]["error"], rows["Other"]["error"]) == ("not installed", "not in this torch")
    console = Console(width=200, record=True)
    means = backends.print_speeds(console, {str(PROBLEM): found}, 0)
    assert set(means) == {backends.OURS, "ATen"}
    assert "not installed" in console.export_text()
