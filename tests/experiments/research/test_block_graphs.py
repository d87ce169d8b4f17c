"""Blocks whose matrix products are replaced, and graphs that take turns."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from tilescout.experiments.research.block_graphs import graph_of, in_turns, products_of, run_by
from tilescout.experiments.research.llama_block import BlockSizes, make_block
from tilescout.search.measure.machine import Block, HostMachine, Queued
from tilescout.spaces.gemm import Gemm, GemmProblem

SIZES = BlockSizes(hidden=64, intermediate=96, heads=4, kv_heads=2)


def test_every_product_of_a_block_runs_the_launch_of_its_problem_and_the_result_is_the_blocks() -> None:
    import torch

    block, x = make_block(SIZES, torch.bfloat16, "cpu"), torch.randn(1, 8, 64).bfloat16()
    counts = products_of(block, 8, "bf16")
    with torch.no_grad():
        expected = block(block(x))
    ran: Counter[str] = Counter()

    def launch(text, inputs, output) -> None:
        problem = GemmProblem.parse(text)
        assert inputs[0].shape == (1, problem.m, problem.k)
        ran[text] += 1
        Gemm().run_library(problem, inputs, output)

    run_by(block, 8, "bf16", {text: partial(launch, text) for text in counts})
    replay, result = graph_of(HostMachine(), block, x, passes=2)
    ran.clear()
    replay()

    assert counts == {"8x64x64:bf16": 2, "8x32x64:bf16": 2, "8x96x64:bf16": 2, "8x64x96:bf16": 1}
    assert set(counts) == set(SIZES.problems(8, "bf16"))
    assert ran == {text: 2 * count for text, count in counts.items()}
    assert torch.equal(result, expected)


class Slowing(HostMachine):
    """A machine whose clock loses 1 % from block to block; blocks add what they take to its time."""

    def __init__(self) -> None:
        super().__init__()
        self.spent_us, self.factor = 0.0, 1.0

    def taking(self, time_us: float) -> None:
        self.spent_us += time_us

    def queue(self, blocks: "list[Block]", delay_us: float = 0.0, late: float = 0.0) -> Queued:  # type: ignore[override]
        times = []
        for block in blocks:
            self.spent_us, self.factor = 0.0, self.factor * 1.01
            block.run()
            times.append(self.spent_us * self.factor)
        return Queued(lambda: times, 0.0)


def test_ratios_of_graphs_are_those_of_their_times_in_the_order_of_the_graphs_while_the_clock_drifts() -> None:
    machine = Slowing()
    graphs = [partial(machine.taking, time_us) for time_us in (80.0, 110.0, 100.0)]

    ratios, _ = in_turns(machine, partial(machine.taking, 100.0), graphs, heats=2, rounds=5, seed=3)

    assert ratios.shape == (2, 5, 3)
    assert abs(ratios / [0.8, 1.1, 1.0] - 1).max() < 1e-3


@pytest.mark.gpu
def test_a_graph_of_a_block_on_a_gpu_repeats_what_the_block_computes() -> None:
    import torch

    from tilescout.search.measure.machine import CudaMachine

    machine = CudaMachine(0)
    block = make_block(SIZES, torch.bfloat16, "cuda")
    x = torch.randn(1, 8, 64, device="cuda").bfloat16()
    with torch.no_grad():
        expected = block(block(x))
    launches = {text: partial(Gemm().run_library, GemmProblem.parse(text)) for text in products_of(block, 8, "bf16")}

    run_by(block, 8, "bf16", launches)
    replay, result = graph_of(machine, block, x, passes=2)
    result.zero_()
    ratios, library_us = in_turns(machine, replay, [replay], heats=2, rounds=20, seed=0)

    assert float((result.float() - expected.float()).norm() / expected.float().norm()) < 0.02
    assert np.median(ratios) == pytest.approx(1, abs=0.05)
    assert library_us > 10
