"""A block of a model as CUDA graphs in which its matrix products run chosen kernels, and the graphs timed in turns."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.loading import Launch
from tilescout.search.measure.machine import Block, Machine

if TYPE_CHECKING:
    import torch
    from torch import nn

Replay = Callable[[], None]


def products_of(block: "nn.Module", rows: int, dtype: str) -> Counter[str]:
    """The matrix products of a block's linear layers on so many rows, and how often each is computed."""
    from torch import nn

    layers = [layer for layer in block.modules() if isinstance(layer, nn.Linear)]
    return Counter(f"{rows}x{layer.out_features}x{layer.in_features}:{dtype}" for layer in layers)


def run_by(block: "nn.Module", rows: int, dtype: str, launches: Mapping[str, Launch]) -> None:
    """Let the linear layers of a block run launches, by their problems.

    Parameters
    ----------
    block
        Its linear layers have no bias.
    rows, dtype
        Rows of the input, and its type as problems name it.
    launches
        The launch of every problem of `products_of`.
    """
    from torch import nn

    for layer in block.modules():
        if isinstance(layer, nn.Linear):
            launch = launches[f"{rows}x{layer.out_features}x{layer.in_features}:{dtype}"]
            layer.forward = partial(_multiply, launch, layer.weight)  # type: ignore[method-assign]


def _multiply(launch: Launch, weight: "torch.Tensor", x: "torch.Tensor") -> "torch.Tensor":
    """Multiply by the transposed weight, by a launch on a batch of one."""
    rows = x.reshape(1, -1, x.shape[-1])
    output = x.new_empty(1, rows.shape[1], weight.shape[0])
    launch((rows, weight[None]), output)
    return output.view(*x.shape[:-1], -1)


def graph_of(machine: Machine, block: "nn.Module", x: "torch.Tensor", passes: int) -> "tuple[Replay, torch.Tensor]":
    """A function that repeats some passes through a block, and the tensor that holds the result of the last pass."""
    import torch

    result = torch.empty_like(x)

    def run() -> None:
        with torch.no_grad():
            y = x
            for _ in range(passes):
                y = block(y)
            result.copy_(y)

    [replay] = machine.record([run])
    return replay, result


def in_turns(
    machine: Machine, library: Replay, others: Sequence[Replay], heats: int, rounds: int, seed: int
) -> tuple[NDArray[np.float64], float]:
    """Times of graphs over those of the library's graph, which runs before and after each.

    Parameters
    ----------
    machine
        Where they run.
    library, others
        The graphs.
    heats, rounds
        Queues, and rounds of each. In a round every one of `others` runs once, in random order.
    seed
        Of the order.

    Returns
    -------
    ratios, library_us
        Of shape [heats, rounds, others], and the median time of the library's graph in µs.
    """
    generator = np.random.default_rng(seed)
    beside, blocks = Block(library), [Block(each) for each in others]
    ratios, library_us = np.empty((heats, rounds, len(others))), []
    for heat in range(heats):
        order = np.array([generator.permutation(len(blocks)) for _ in range(rounds)])
        queue = [beside, *(each for way in order.flat for each in (blocks[way], beside))]
        times = np.array(machine.times_us([beside, *queue]))
        library_us += times[::2].tolist()
        found = times[1::2] / ((times[:-1:2] + times[2::2]) / 2)
        np.put_along_axis(ratios[heat], order, found.reshape(order.shape), axis=1)
    return ratios, float(np.median(library_us))


def heat(machine: Machine, replay: Replay, heating_us: float) -> None:
    """Run a graph for so long."""
    once = Block(replay)
    [single] = machine.times_us([once] * 2, lost=1.0)
    count = 2 if math.isnan(single) else math.ceil(heating_us / single)
    machine.times_us([once] * max(2, count), lost=1.0)
