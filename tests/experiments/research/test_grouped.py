"""The study of grouped products, as far as it runs without a GPU: the library, and a product for every expert."""

import json
import sys
from pathlib import Path

import pytest
from torch import Tensor

from tilescout.experiments.research.runner import Run
from tilescout.experiments.research.studies import grouped
from tilescout.search.build.loading import Launch
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.worker import Worker
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.workloads import Tensors

PROBLEM = "4x40x64x64:bf16:zipf-1"


def test_peers_are_verified_and_judged_on_draws_that_nothing_was_chosen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grouped, "Worker", lambda device: Worker("cpu"))
    monkeypatch.setattr(sys, "argv", ["research", "grouped"])
    out = tmp_path / "peers.json"

    def by_library(inputs: Tensors) -> tuple[Launch, Launch]:
        def run(given: Tensors, output: Tensor) -> None:
            output.copy_(grouped.by_torch(given))

        return run, run

    def by_none(inputs: Tensors) -> tuple[Launch, Launch]:
        raise SpaceError("has no kernel")

    monkeypatch.setattr(grouped, "TUNERS", {"the library": by_library, "another": by_none})
    tuners = {"the library": 1, "another": 1}
    grouped.peers([], [PROBLEM], {PROBLEM: {}}, {}, ProtocolOptions(heating_us=1000.0), Run("grouped", out), tuners)
    found = json.loads(out.read_text())["result"]["problems"][PROBLEM]

    assert found["judged_on"] == f"{PROBLEM}:draws-1000-1007"
    speed = found["speedup_over_library"]["cuBLAS by expert"]
    assert 0 < speed["low"] <= speed["value"] <= speed["high"]
    assert found["judged_us"] > found["floor_us"] > 0
    assert list(found["speedup_over_library"]) == ["cuBLAS by expert", "the library"]
    assert found["tuner_seconds"]["the library"] > 0
    printed = capsys.readouterr().out
    assert PROBLEM in printed
    assert "another: has no kernel" in printed


def test_a_problem_of_few_draws_is_judged_on_as_few() -> None:
    options = ProtocolOptions(heating_us=1000.0)
    found = grouped.judged(Worker("cpu"), GroupedProblem.parse(f"{PROBLEM}:draws-0-1"), {}, options)
    assert found["judged_on"] == f"{PROBLEM}:draws-1000-1001"


def test_a_product_of_every_expert_that_leaves_one_out_is_seen() -> None:
    import torch

    workload, problem = grouped.Sized(), GroupedProblem.parse(PROBLEM)
    inputs = workload.inputs(problem, torch.Generator().manual_seed(0))
    output, reference = workload.output(problem, inputs[0].device), workload.reference(problem, inputs)
    workload.expert_by_expert(inputs, output)
    right = float((output - reference).norm() / reference.norm())
    workload.ends[inputs[2].data_ptr()][-1] -= 1
    output.zero_()
    workload.expert_by_expert(inputs, output)
    wrong = float((output - reference).norm() / reference.norm())
    assert right <= problem.tolerance < wrong
