"""Rough times of as many of cuBLASLt's algorithms for a problem as there is time for, by a few launches of each.

Every algorithm is launched once, so that its kernel is loaded. A few hundred are then queued behind a delay that lets
the host get ahead of the device, each between two events, and those that are nearly the fastest again in longer blocks.
Operands are rotated past the L2. For the first half of the time algorithms are drawn at random, after the candidates of
the library's heuristic. From then on neighbours of the fastest come first: those that differ from one in one knob.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.machine import Block, Machine
from tilescout.search.measure.protocol import ProtocolOptions, input_sets
from tilescout.spaces.cublaslt.abi import Found, LibraryError
from tilescout.spaces.cublaslt.algorithms import KNOBS, Row
from tilescout.spaces.cublaslt.loader import CublasLt
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.workloads import Workload

BATCH = 128  # algorithms that are queued at once
MOST_QUEUED = (
    400  # launches at once: the driver's queue holds a thousand, and a split k is added by a launch of its own
)
FIRST_US, AGAIN_US = 20.0, 60.0  # of launches in a block of each, and in one of those that are nearly the fastest
MOST_LAUNCHES = 12
NEAR = 1.25  # times the fastest: what is slower is not timed again
CENTRES = 6  # of the fastest, whose neighbours come first
FINALISTS = 256  # that are timed once more at the end
_LATE, _ATTEMPTS, _MOST_DELAY_US = 0.05, 4, 50_000.0

Rows = NDArray[np.int32]
Times = NDArray[np.float64]


@dataclass(frozen=True)
class Screened:
    """The outcome of a screening of one problem.

    Attributes
    ----------
    problem
        The problem.
    rows
        The algorithms that were run, in that order: values of `KNOBS`, of shape [algorithms, knobs].
    us
        The time of each in µs; NaN where it was refused.
    """

    problem: GemmProblem
    rows: Rows
    us: Times

    def write(self, folder: Path) -> None:
        """Write it to a file of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{str(self.problem).replace(':', '-')}.npz"
        np.savez_compressed(
            file, problem=np.array(str(self.problem)), rows=self.rows.astype(np.int16), us=self.us.astype(np.float32)
        )

    @classmethod
    def read(cls, path: Path) -> "Screened":
        """Read what `write` wrote.

        Raises
        ------
        ModelError
            If it can't be read.
        """
        try:
            with np.load(path, allow_pickle=False) as held:
                # The first files have no problem: their names are of sizes and types alone.
                text = str(held["problem"]) if "problem" in held else path.stem.replace("-", ":", 1)
                return cls(GemmProblem.parse(text), held["rows"].astype(np.int32), held["us"].astype(np.float64))
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{path} holds no times of a screening: {error}") from error


class Screen:
    """Times algorithms for one problem, in this process.

    Parameters
    ----------
    machine, workload, loader
        Where, what, and the library.
    problem
        The problem.
    seed
        Of the operands.
    """

    def __init__(self, machine: Machine, workload: Workload, loader: CublasLt, problem: GemmProblem, seed: int) -> None:
        import torch

        generator = torch.Generator(machine.device).manual_seed(seed)
        first = workload.inputs(problem, generator)
        sets = input_sets(sum(tensor.nbytes for tensor in first), machine.l2_bytes, ProtocolOptions())
        inputs = [first, *workload.more_inputs(problem, generator, [first], sets - 1)]
        self._machine, self._problem, self._operation = machine, problem, loader.operation(problem)
        self._output, self._turns = workload.output(problem, machine.device), itertools.cycle(inputs)
        self._delay_us, self.fastest_us = 0.0, math.inf

    def times(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """The time of each in µs, NaN where it is refused."""
        launches = {at: launch for at, row in enumerate(rows) if (launch := self._loaded(row)) is not None}
        self._machine.synchronize()
        us = np.full(len(rows), np.nan)
        for block_us, limit in ((FIRST_US, math.inf), (AGAIN_US, NEAR)):
            chosen = [at for at in launches if not us[at] > limit * self.fastest_us]
            timed = self._timed([launches[at] for at in chosen], block_us)
            us[chosen] = np.where(np.isnan(timed), us[chosen], timed)
            self.fastest_us = float(np.nanmin(us, initial=self.fastest_us))
        return us

    def _loaded(self, row: Row) -> Callable[[], None] | None:
        """A function that launches an algorithm, which was launched once; None if the library refuses it."""
        operation, found, knobs = self._operation, Found(), dict(zip(KNOBS, row, strict=True))
        try:
            algorithm = operation.configured(knobs["algorithm"], knobs)
            check, asked = operation.question(algorithm, found)
            if status := check(*asked):
                raise LibraryError("cublasLtMatmulAlgoCheck", status)

            def launch(workspace: int = int(found.workspace)) -> None:
                operation.run(algorithm, workspace, self._problem, next(self._turns), self._output)

            launch()
        except LibraryError:
            return None
        return launch

    def _timed(self, launches: Sequence[Callable[[], None]], block_us: float) -> Times:
        """The times of launches, by a block of about so long of each; NaN where the host was too slow."""
        count = np.clip(block_us / min(self.fastest_us, block_us), 1, MOST_LAUNCHES)
        count = int(max(min(count, MOST_QUEUED / max(len(launches), 1)), 1))
        blocks = [Block(partial(_repeat, launch, count)) for launch in launches]
        found = np.empty(0)
        for _ in range(_ATTEMPTS if blocks else 0):
            queued = self._machine.queue(blocks, self._delay_us, _LATE)
            self._machine.synchronize()
            found = np.array(queued.times_us()) / count
            if not np.isnan(found).any():
                break
            self._delay_us = min(max(2 * self._delay_us, queued.host_us), _MOST_DELAY_US)
        return found


def _repeat(launch: Callable[[], None], count: int) -> None:
    for _ in range(count):
        launch()


def screened(
    screen: Screen,
    problem: GemmProblem,
    rows: Rows,
    seconds: float,
    seed: int,
    clock: Callable[[], float] = time.monotonic,
) -> Screened:
    """Time as many algorithms as fit into the time.

    Parameters
    ----------
    screen
        What times them.
    problem, rows
        The problem, and all algorithms that are legal for it.
    seconds
        See above.
    seed
        Of the order.
    clock
        Tells the time in seconds.
    """
    started, generator = clock(), np.random.default_rng(seed)
    left = [*np.flatnonzero(rows[:, 0] > 0), *generator.permutation(np.flatnonzero(rows[:, 0] == 0))]
    order, us, untried = np.array(left), np.full(len(rows), np.nan), np.ones(len(rows), dtype=np.bool_)
    tried: list[int] = []
    while untried.any() and (spent := clock() - started) < seconds:
        batch = order[untried[order]][:BATCH]
        if spent > seconds / 2:
            near = generator.permutation(_neighbours(rows, us, untried))[:BATCH]
            batch = np.concatenate([near, batch[~np.isin(batch, near)]])[:BATCH]
        us[batch] = screen.times(_as_rows(rows[batch]))
        untried[batch] = False
        tried += batch.tolist()
    # The device was colder when the first ran: those that matter are compared in one go.
    last = generator.permutation(np.argsort(us)[: min(FINALISTS, len(tried))])
    for part in np.array_split(last, math.ceil(len(last) / BATCH)):
        us[part] = screen.times(_as_rows(rows[part]))
    return Screened(problem, rows[tried], us[tried])


def _as_rows(rows: Rows) -> list[Row]:
    return [tuple(row) for row in rows.tolist()]


def _neighbours(rows: Rows, us: Times, untried: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Those that were not tried and differ from one of the fastest in one knob; their rank as guesses is none."""
    centres = np.argsort(us)[:CENTRES]
    near = np.zeros(len(rows), dtype=np.bool_)
    for centre in centres[np.isfinite(us[centres])]:
        near |= (rows[:, 1:] != rows[centre, 1:]).sum(axis=1) == 1
    return np.flatnonzero(near & untried)
