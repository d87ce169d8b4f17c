"""The study of grouped products, as far as it runs without a GPU: the library, and a product for every expert."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from tilescout.experiments.research.grouped_tuners import by_torch
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
            output.copy_(by_torch(given))

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


def test_of_finalists_the_winner_of_a_race_is_taken() -> None:
    def launch(inputs: Tensors, output: Tensor) -> None: ...

    def other(inputs: Tensors, output: Tensor) -> None: ...

    ratios: dict[Launch, list[float]] = {launch: [0.9, 0.8], other: [0.8, 0.7]}

    class Bench:
        def race(self, launches: list[Launch], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
            return np.array([ratios[each] for each in launches]).T

    rows: list[tuple[dict[str, Any], Launch | None]]
    rows = [({"ratio": 0.9}, launch), ({"pilot": 2.0}, None), ({"ratio": 0.7}, launch), ({"ratio": 0.8}, other)]
    bench = cast(Any, Bench())
    assert grouped.fastest_of(rows, bench, 1) == [launch]
    assert grouped.chosen_row([row for row, _ in rows]) == {"ratio": 0.7}
    assert grouped.fastest_of(rows, bench, 2) == [other]
    assert [row.get("raced") for row, _ in rows] == [None, None, pytest.approx(0.72**0.5), pytest.approx(0.56**0.5)]
    assert grouped.chosen_row([row for row, _ in rows])["ratio"] == 0.8
    assert grouped.fastest_of(rows[1:2], bench, 2) == []


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
