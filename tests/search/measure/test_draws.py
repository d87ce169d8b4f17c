"""Measuring where the time depends on what the inputs hold, and where the library can't be given an output."""

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from tilescout.search.measure.bench import Bench, sandwich
from tilescout.search.measure.machine import HostMachine
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

OPTIONS = ProtocolOptions(Objective.CHAIN, cold_bytes=1, heating_us=1000.0)


class Elsewhere(Grouped):
    """Grouped products whose library writes what it returns, and notes which draw it was given."""

    def __init__(self) -> None:
        self.read: list[tuple[int, ...]] = []
        self.results: list[torch.Tensor] = []

    def time_library(self, problem: GroupedProblem, inputs: Tensors, output: "torch.Tensor") -> "torch.Tensor":
        self.read.append(tuple(inputs[2].tolist()))
        self.results.append(super().time_library(problem, inputs, output))
        return self.results[-1]


def test_every_block_has_as_many_launches_of_each_draw_of_the_inputs() -> None:
    workload, problem = Elsewhere(), GroupedProblem.parse("4x40x16x16:bf16:zipf-1:draws-5-7")
    bench = Bench(HostMachine(), cast(Workload, workload), problem, OPTIONS)
    workload.read.clear()
    bench.make_block(bench.run_library).run()
    ends = [tuple(np.cumsum(draw.groups).tolist()) for draw in problem.draws]
    assert bench.launches % len(ends) == 0
    assert {end: workload.read.count(end) for end in ends} == dict.fromkeys(ends, bench.launches // len(ends))


def test_the_neighbour_reads_the_result_where_the_library_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    workload, problem = Elsewhere(), GroupedProblem.parse("4x40x16x16")
    rewritten: list[torch.Tensor] = []
    inputs = workload.inputs(problem, torch.Generator())
    output = workload.output(problem, inputs[0].device)
    monkeypatch.setattr("tilescout.search.measure.bench.rewrite", rewritten.append)
    for step in sandwich(partial(workload.time_library, problem), inputs, output):
        step()
    first, last = rewritten
    assert first is inputs[0]
    assert last is workload.results[-1]


@pytest.mark.parametrize("overlapped", [False, True])
def test_all_neighbours_are_overlapped_if_the_options_say_so(monkeypatch: pytest.MonkeyPatch, overlapped: bool) -> None:
    asked: list[bool] = []

    def rewrite(tensor: "torch.Tensor", overlapped: bool = False) -> None:
        asked.append(overlapped)

    monkeypatch.setattr("tilescout.search.measure.bench.rewrite", rewrite)
    workload, problem = Elsewhere(), GroupedProblem.parse("4x40x16x16")
    options = replace(OPTIONS, objective=Objective.SANDWICH, overlapped=overlapped)
    bench = Bench(HostMachine(), cast(Workload, workload), problem, options)
    for launch in (bench.run_library, None):
        bench.make_block(launch).run()
    assert set(asked) == {overlapped}


def test_options_of_older_records_ask_for_plain_neighbours() -> None:
    record = asdict(OPTIONS)
    del record["overlapped"]
    assert ProtocolOptions.from_dict(record) == OPTIONS
