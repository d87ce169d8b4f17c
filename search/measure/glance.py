"""A glance at kernels on one problem: how long each takes beside the library, roughly, in some ten milliseconds.

A `Bench` takes a fifth of a second to set a problem up: it computes a reference, records graphs and heats the device.
A glance does none of this. So nothing is verified, and the ratios are good for finding where it is worth measuring, and
for what lies between sizes that were measured.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.loading import Launch
from tilescout.search.measure.machine import Block, Machine
from tilescout.search.measure.protocol import ProtocolOptions, input_sets
from tilescout.spaces.problems import Problem
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

_BLOCK_US = 100.0  # events have a resolution of 0.5 us
_FIRST = 3  # launches of the library that tell how many make a block
_QUEUED = 700  # launches at most: the driver holds some thousand, and the device must not wait for the host
# On a device that waited, launches that fill it take up to a sixth less than at the power cap, and the library gains
# more by that than our kernels: beyond 9,000 rows of 6912x1152 the best had 0.97 to 1.02 of its time where that was
# short, 0.94 to 0.97 where it was long (H200, 2026-11-23). So launches of some length run a while before any counts.
# After 60 ms of them it still was at 0.93 of its time beyond 5,000 rows of 5120x5120, after 200 ms at 0.98 to 0.99.
_SETTLING_US = 150_000.0
# After a shorter wait for so many times as long, but for a while in any case. With 4 times and 4 ms, where 7 ms passed
# between two problems, the library took 0.86 to 0.97 of the time of a settled device up to 5,000 rows of 8192x4608, and
# kernels 2 to 5 % longer beside it. Now kernels take 2 % longer up to 2,048 rows, and beyond at most 0.2 % (H200,
# 2026-11-23).
_PER_WAIT, _LEAST_SETTLING_US = 8.0, 10_000.0
SETTLED_FROM_US = 40.0
"""Launches of the library that take less never fill the device so long: a glance at them takes a fifth of the time."""


@dataclass(frozen=True)
class _Look:
    """All that a glance at one problem launches."""

    problem: Problem
    launches: Sequence[Launch]
    library: Launch
    inputs: Sequence[Tensors]
    output: "torch.Tensor"
    turns: "itertools.count[int]"

    def block(self, launch: Launch, count: int) -> Block:
        """So many launches, each on the next inputs."""

        def run() -> None:
            for _ in range(count):
                launch(self.inputs[next(self.turns) % len(self.inputs)], self.output)

        return Block(run)


class Glancer:
    """Glances at one problem after the other, hardly with a pause: a device that was busy till now settles sooner.

    Parameters
    ----------
    machine, workload
        Where, and what.
    options
        How many inputs are rotated.
    """

    def __init__(self, machine: Machine, workload: Workload, options: ProtocolOptions) -> None:
        self._machine, self._workload, self._options = machine, workload, options
        self._busy_until = -math.inf
        self._loaded: dict[int, Launch] = {}

    def glances(
        self, asked: Sequence[tuple[Problem, Sequence[Launch]]], rounds: int, seed: int
    ) -> list[tuple[float, NDArray[np.float64]]]:
        """The library's time in µs, and the times of kernels over it, for each of some problems.

        Blocks of launches of the kernels alternate with blocks of the library, in chains over inputs that the L2 lost.
        What the next problem needs is made while the device is at work.

        Parameters
        ----------
        asked
            The problems, and the kernels for each, which are taken to be right.
        rounds, seed
            Blocks of each, and the seed of their order.

        Returns
        -------
        list
            Of the library's time and of ratios of shape [rounds, kernels].
        """
        looks = map(self._prepared, asked)
        found, look = list[tuple[float, NDArray[np.float64]]](), next(looks)
        for _ in range(len(asked)):
            following = cache(partial(next, looks, look))
            found.append(self._timed(look, rounds, seed, following))
            look = following()
        return found

    def _prepared(self, asked: tuple[Problem, Sequence[Launch]]) -> _Look:
        import torch

        problem, launches = asked
        workload, device = self._workload, self._machine.device
        generator = torch.Generator(device)
        generator.seed()
        inputs = [workload.inputs(problem, generator)]
        sets = input_sets(sum(tensor.nbytes for tensor in inputs[0]), self._machine.l2_bytes, self._options)
        inputs += workload.more_inputs(problem, generator, inputs, sets - 1)
        output = workload.output(problem, device)
        for launch in launches:  # the first launch loads a kernel
            if id(launch) not in self._loaded:
                launch(inputs[0], output)
                self._loaded[id(launch)] = launch
        return _Look(problem, launches, partial(workload.time_library, problem), inputs, output, itertools.count())

    def _timed(
        self, look: _Look, rounds: int, seed: int, meanwhile: Callable[[], object]
    ) -> tuple[float, NDArray[np.float64]]:
        """The times of a look; what else there is to do is done while the device is at work."""
        machine, launches = self._machine, look.launches
        waited_us = (time.perf_counter() - self._busy_until) * 1e6
        once_us = median(machine.times_us([look.block(look.library, 1)] * (_FIRST + 1)))
        long, most = once_us >= self._options.single_us, max(1, _QUEUED // (2 * len(launches) + 1))
        count = 1 if long else min(max(1, math.ceil(_BLOCK_US / once_us)), most)
        beside, kernels = look.block(look.library, count), [look.block(launch, count) for launch in launches]
        order = np.random.default_rng(seed)
        turns_of = [order.permutation(len(kernels)) for _ in range(rounds)]
        settling_us = min(_SETTLING_US, max(_LEAST_SETTLING_US, _PER_WAIT * waited_us))
        settling = [beside] * (math.ceil(settling_us / (count * once_us)) if once_us >= SETTLED_FROM_US else 1)
        ratios, library_us = np.empty((rounds, len(kernels))), list[float]()
        # Rounds are one queue, so that the device does not rest; of short launches that may be too many for the driver.
        whole = long or rounds * count * (2 * len(launches) + 1) <= _QUEUED
        for together in [list(range(rounds))] if whole else [[at] for at in range(rounds)]:
            turn = np.concatenate([turns_of[at] for at in together])
            queued = [beside, *(each for kernel in turn for each in (kernels[kernel], beside))]
            times = np.array(machine.times_us([*settling, *queued], skip=len(settling), meanwhile=meanwhile))
            settling = [beside]
            found = times[1::2] / ((times[:-1:2] + times[2::2]) / 2)
            ratios[np.repeat(together, len(kernels)), turn] = found
            library_us.extend(times[::2].tolist())
        self._busy_until = time.perf_counter()
        return median(library_us) / count, ratios
