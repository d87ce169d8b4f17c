"""The sentence of `train` on configurations that no table holds, and models of spaces of one's own."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.estimator import CostModel, Prediction
from tilescout.costmodel.uncertainty import Errors
from tilescout.experiments.commands.train import _told, beyond_the_tables
from tilescout.search import Budget, tune
from tilescout.search.tables.result_forms import Told
from tilescout.search.tables.results import read_results
from tilescout.search.tables.table import write_table
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import find_template

H200 = find_device("h200")


class Constant(CostModel):
    """Predicts one time for all configurations, in µs."""

    def __init__(self, time_us):
        self.time_us = time_us

    def learn(self, samples):
        return self

    def predict(self, features):
        return Prediction(np.full(len(features), np.log(self.time_us)), np.ones(len(features)), 0.0)


def test_what_no_kernel_can_keep_is_told_with_what_to_measure_and_what_one_can_is_not() -> None:
    template = find_template("gemm_sm90")
    problems = [template.parse("4096x4096x4096:bf16")]
    told, figures = beyond_the_tables(Constant(1.0), template, problems, H200, 0)
    assert told.startswith("of random configurations of 1 problem it predicts 100.0% to be faster than a kernel can be")
    assert "tilescout collect --sample" in told
    assert figures == {"impossible": 1.0}
    told, figures = beyond_the_tables(Constant(1e6), template, problems, H200, 0)
    assert told.endswith("0.0% to be faster than a kernel can be")
    assert figures == {"impossible": 0.0}


def test_a_model_of_a_librarys_algorithms_is_trained_without_a_gpu_though_nothing_lists_them() -> None:
    template = find_template("cublaslt")
    told, figures = beyond_the_tables(Constant(1.0), template, [template.parse("4096x4096x4096:bf16")], H200, 0)
    assert "configurations beyond the tables were not looked at: cublaslt: only the library knows its" in told
    assert figures == {}


def test_errors_are_told_as_shares_of_the_times_not_of_their_logarithms() -> None:
    errors = Errors(floor=np.log(1.2) ** 2, slope=1.0, shift=np.log(3))  # 20 % more, and three times as much
    assert _told(errors, 2).endswith("all times are off by 200.0%, single ones by 20.0% and more")
    assert "times are off by 20.0% and more" in _told(errors, 1)


OWN = """
from tilescout import spaces

class Mine(spaces.KernelTemplate):
    name, workload, archs = "mine", "tilescout.spaces.rowwise:Softmax", ("sm_90a",)
    knobs = (spaces.Knob("warps", (1, 2, 4, 8), "rows a block"), spaces.Knob("vector", (1, 2, 4, 8), "elements"))

    def default(self, problem, device):
        return spaces.Configuration.of({"warps": 1, "vector": 1})

    def build(self, configuration, signature, arch, path):
        raise NotImplementedError
"""


def test_a_model_of_a_space_of_ones_own_is_found_in_the_folder_it_was_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kernels_of_mine.py").write_text(OWN)
    tables = []
    for rows in (64, 1024):
        times = [
            {"warps": warps, "vector": vector, "time": rows * 1e-3 * (1 + 1 / warps + 1 / vector)}
            for warps in (1, 2, 4, 8)
            for vector in (1, 2, 4, 8)
        ]
        Path("results.json").write_text(json.dumps(times))
        told = Told(kernel="mine", device="NVIDIA H200", problem=f"{rows}x256:bf16")
        tables.append(write_table(Path(f"of_{rows}.parquet"), *read_results(Path("results.json"), told)))
    learning = [word for table in tables for word in ("--table", str(table.path))]
    few = ["--steps", "1", "--trees", "1"]
    run("train", "kernels_of_mine:Mine", *learning, *few, "--out", "models")

    assert [path.name for path in Path("models").glob("*.npz")] == ["mine-h200.npz"]
    problem = "64x256:bf16"
    for model in ("models", "models/mine-h200.npz"):
        run("predict", "kernels_of_mine:Mine", "--problem", problem, "--model", model)
        told_of = " ".join(capsys.readouterr().out.split())  # a line ends elsewhere where the path is longer
        assert "learned from 32 measurements of 2 problems" in told_of
        result = tune(
            "kernels_of_mine:Mine",
            problem,
            table=tables[0].path,
            sampler="guided",
            settings={"model": model},
            budget=Budget(trials=2),
            mlflow=False,
        )
        assert Path(result.info.model) == Path("models/mine-h200.npz")
