"""A glance at kernels on one problem: how long each takes beside the library, roughly, in some ten milliseconds.

A `Bench` takes a fifth of a second to set a problem up: it computes a reference, records graphs and heats the device.
A glance does none of this. So nothing is verified, and the ratios are good for finding where it is worth measuring, and
for what lies between sizes that were measured.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.loading import Launch
from tilescout.search.measure.machine import Block, Machine
from tilescout.search.measure.protocol import ProtocolOptions, input_sets
from tilescout.spaces.problems import Problem
from tilescout.spaces.workloads import Workload

_BLOCK_US = 100.0  # events have a resolution of 0.5 us
_FIRST = 3  # launches of the library that tell how many make a block
_QUEUED = 700  # launches at most: the driver holds some thousand, and the device must not wait for the host
# On a device that waited, launches that fill it take up to a sixth less than at the power cap, and the library gains
# more by that than our kernels: beyond 9,000 rows of 6912x1152 the best had 0.97 to 1.02 of its time where that was
# short, 0.94 to 0.97 where it was long (H200, 2026-11-23). So launches of some length run a while before any counts.
# After 60 ms of them it still was at 0.93 of its time beyond 5,000 rows of 5120x5120, after 200 ms at 0.98 to 0.99.
_SETTLING_US = 150_000.0
SETTLED_FROM_US = 40.0
"""Launches of the library that take less never fill the device so long: a glance at them takes a fifth of the time."""


def glance(
    machine: Machine,
    workload: Workload,
    problem: Problem,
    launches: Sequence[Launch],
    rounds: int,
    seed: int,
    options: ProtocolOptions,
) -> tuple[float, NDArray[np.float64]]:
    """The library's time in µs, and the times of kernels over it.

    Blocks of launches of the kernels alternate with blocks of the library, in chains over inputs that the L2 lost.

    Parameters
    ----------
    machine, workload, problem
        Where, and what.
    launches
        The kernels; each is taken to be right.
    rounds, seed
        Blocks of each, and the seed of their order.
    options
        How many inputs are rotated.

    Returns
    -------
    library_us, ratios
        The ratios are of shape [rounds, kernels].
    """
    import torch

    generator = torch.Generator(machine.device)
    generator.seed()
    inputs = [workload.inputs(problem, generator)]
    sets = input_sets(sum(tensor.nbytes for tensor in inputs[0]), machine.l2_bytes, options)
    inputs += workload.more_inputs(problem, generator, inputs, sets - 1)
    output, turns = workload.output(problem, machine.device), itertools.count()

    def block(launch: Launch, count: int) -> Block:
        def run() -> None:
            for _ in range(count):
                launch(inputs[next(turns) % len(inputs)], output)

        return Block(run)

    library = partial(workload.time_library, problem)
    for launch in launches:  # the first launch loads a kernel
        launch(inputs[0], output)
    once_us = median(machine.times_us([block(library, 1)] * (_FIRST + 1)))
    long, most = once_us >= options.single_us, max(1, _QUEUED // (2 * len(launches) + 1))
    count = 1 if long else min(max(1, math.ceil(_BLOCK_US / once_us)), most)
    beside, kernels = block(library, count), [block(launch, count) for launch in launches]
    order = np.random.default_rng(seed)
    turns_of = [order.permutation(len(kernels)) for _ in range(rounds)]
    settling = [beside] * (math.ceil(_SETTLING_US / (count * once_us)) if once_us >= SETTLED_FROM_US else 1)
    ratios, library_us = np.empty((rounds, len(kernels))), list[float]()
    # Long launches are one queue, in which the device settles; of short ones there would be too many for the driver.
    for together in [list(range(rounds))] if long else [[at] for at in range(rounds)]:
        turn = np.concatenate([turns_of[at] for at in together])
        queued = [beside, *(each for kernel in turn for each in (kernels[kernel], beside))]
        times = np.array(machine.times_us([*settling, *queued], skip=len(settling)))
        settling = [beside]
        found = times[1::2] / ((times[:-1:2] + times[2::2]) / 2)
        ratios[np.repeat(together, len(kernels)), turn] = found
        library_us.extend(times[::2].tolist())
    return median(library_us) / count, ratios
