"""The sentence of `train` on configurations that no table holds."""

import numpy as np

from tilescout.costmodel.estimator import CostModel, Prediction
from tilescout.experiments.commands.train import beyond_the_tables
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
