r"""Record the time of every block of a measurement, on a device that rested before and on one that did not.

    python -m tilescout.experiments.research timelines TABLE.parquet --problem 8192x8192x8192:bf16 \
        --out timelines.json.gz

The fastest configurations of a table are measured by the protocol, in rounds of random order and in three manners: one
right after the other (``dense``), each verified before (``verified``), and each after a random pause (``paused``), as
in a search that waits for compilers. For each manner this prints

- how much a configuration's ratio spreads over the rounds if its blocks are divided by the library's beside them, by
  the library's mean over the last measurements, or as the protocol does; how closely kernels follow the library from
  one measurement to the next, and the range of the SM clock;
- pair by pair, how far the ratio is from the configuration's median, and the library's time from its last block: after
  something else ran (queue 1), and after a look at the times (queue 2).
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.commands.options import collected, seed_option, store_option
from tilescout.experiments.research.figures import spread_of
from tilescout.experiments.research.kernels import CHAINS, HEATING_US, PAUSE_SECONDS, heat, set_up
from tilescout.experiments.research.runner import (
    GPU_OR_RECORD,
    Run,
    device_option,
    each_problem,
    problems_option,
    study,
    table_argument,
)
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.machine import Block, Machine, Queued
from tilescout.search.measure.protocol import settling_pairs
from tilescout.search.measure.reference import Reference
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.problems import Problem

MANNERS = ("dense", "verified", "paused")
_RECENT = 16  # measurements over which the library's mean goes, as the protocol's
_ENOUGH = 4  # blocks of the library that tell its noise
_SHOWN = 10  # pairs


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    table: Path | None
    problems: tuple[str, ...]
    good: int
    rounds: int
    seed: int
    store: Path
    device: str


class Recorder:
    """Records the times of all blocks that a machine's measurements are made of.

    Attributes
    ----------
    queues
        For each queue ``skip``, the number of blocks that don't count, and ``times_us``, None where the device waited.
    """

    def __init__(self, machine: Machine) -> None:
        self.queues: list[dict[str, Any]] = []
        queue, times_us = machine.queue, machine.times_us
        last: list[float] = []

        def queue_recorded(blocks: Sequence[Block], delay_us: float = 0.0, late: float = 0.0) -> Queued:
            queued = queue(blocks, delay_us, late)

            def read() -> list[float]:
                last[:] = queued.times_us()
                return list(last)

            return replace(queued, times_us=read)

        def times_us_recorded(
            blocks: Sequence[Block],
            skip: int = 1,
            lost: float = 0.0,
            meanwhile: Callable[[], object] = lambda: None,
        ) -> list[float]:
            found = times_us(blocks, skip, lost, meanwhile)  # what was run again is not what counts
            times = [None if math.isnan(time_us) else round(time_us, 2) for time_us in last]
            self.queues.append({"skip": skip, "times_us": times})
            return found

        machine.queue, machine.times_us = queue_recorded, times_us_recorded  # type: ignore[method-assign]


def record(
    bench: Bench, recorder: Recorder, launches: Sequence[Launch], manner: str, rounds: int, seed: int
) -> list[dict[str, Any]]:
    """Measure kernels in rounds of random order; a record for each measurement, in their order."""
    generator = np.random.default_rng(seed)
    heat(bench, HEATING_US)
    records = []
    for turn in range(rounds):
        for kernel in generator.permutation(len(launches)).tolist():
            if manner == "verified":
                bench.verify(launches[kernel], edge=True)
            elif manner == "paused":
                time.sleep(generator.uniform(0, PAUSE_SECONDS))
            recorder.queues.clear()
            ratio = bench.time(launches[kernel], None).ratio
            clocks = asdict(bench.clocks) if bench.clocks is not None else None
            queues = list(recorder.queues)
            records.append({"round": turn, "kernel": kernel, "ratio": ratio, "clocks": clocks, "queues": queues})
    return records


@dataclass(frozen=True)
class Timeline:
    """The blocks of a queue, in µs: the kernel's, and the library's before, between and after; NaN where late."""

    skip: int
    kernel_us: NDArray[np.float64]
    library_us: NDArray[np.float64]

    @classmethod
    def of(cls, queue: dict[str, Any]) -> "Timeline":
        """Read a record's queue."""
        times = np.array(queue["times_us"], float)
        return cls(queue["skip"] // 2, times[1::2], times[::2])

    @property
    def beside_us(self) -> NDArray[np.float64]:
        """The mean of the library's blocks at both sides of each of the kernel's."""
        beside: NDArray[np.float64] = (self.library_us[:-1] + self.library_us[1:]) / 2
        return beside


def counted(record: dict[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times in µs of the kernel's blocks that count, and of the library's beside them."""
    timelines = [Timeline.of(queue) for queue in record["queues"]]
    kernel_us = np.concatenate([one.kernel_us[one.skip :] for one in timelines])
    beside_us = np.concatenate([one.beside_us[one.skip :] for one in timelines])
    first = settling_pairs(beside_us, CHAINS)
    return kernel_us[first:], beside_us[first:]


def _library_blocks(record: dict[str, Any]) -> list[float]:
    """The library's blocks that count, of the last queue that has enough of them to tell the noise."""
    timelines = [Timeline.of(queue) for queue in record["queues"]]
    counting = [one.library_us[one.skip :].tolist() for one in timelines]
    return next((blocks for blocks in reversed(counting) if len(blocks) >= _ENOUGH), max(counting, key=len))


def divided(records: Sequence[dict[str, Any]], block_us: float) -> dict[str, NDArray[np.float64]]:
    """Ratios of shape [rounds, configurations] by reference; `block_us` is the library's steady time of a block."""
    shape = max(each["round"] for each in records) + 1, max(each["kernel"] for each in records) + 1
    ratios = {name: np.empty(shape) for name in ("neighbours", "level", "protocol")}
    reference = Reference(block_us, _library_blocks(records[0]), CHAINS)
    level = float(counted(records[0])[1].mean())
    for number, each in enumerate(records):
        kernel_us, beside_us = counted(each)
        at = each["round"], each["kernel"]
        throttled = each["clocks"] is not None and each["clocks"]["throttle"] != ""
        ratios["neighbours"][at] = mean_interval((kernel_us / beside_us).tolist())[0]
        ratios["level"][at] = mean_interval(kernel_us.tolist())[0] / level
        ratios["protocol"][at] = reference.estimate(kernel_us, beside_us, throttled).ratio
        reference.learn(kernel_us, beside_us)
        level += (float(beside_us.mean()) - level) / min(number + 2, _RECENT)
    return ratios


def follows(records: Sequence[dict[str, Any]]) -> float:
    """Regression coefficient of kernels on the library between measurements of a configuration, in logarithms."""
    kernels: dict[int, list[tuple[float, float]]] = {}
    for each in records:
        kernel_us, beside_us = (mean_interval(times.tolist())[0] for times in counted(each))
        kernels.setdefault(each["kernel"], []).append((math.log(kernel_us), math.log(beside_us)))
    moved = np.concatenate([np.array(each) - np.mean(each, axis=0) for each in kernels.values()])
    return float((moved[:, 0] * moved[:, 1]).sum() / (moved[:, 1] ** 2).sum())


def settling(records: Sequence[dict[str, Any]], queue: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Medians by pair of a queue: the ratio over the configuration's median, and the library over its last block."""
    by_kernel: dict[int, list[float]] = {}
    for each in records:
        by_kernel.setdefault(each["kernel"], []).append(each["ratio"])
    ratios, library = [], []
    for each in records:
        if len(each["queues"]) <= queue:
            continue
        timeline = Timeline.of(each["queues"][queue])
        pairs = timeline.kernel_us / timeline.beside_us / float(np.median(by_kernel[each["kernel"]]))
        over_last = timeline.library_us[:-1] / timeline.library_us[-1]
        padding = np.full(_SHOWN, math.nan)
        ratios.append(np.append(pairs, padding)[:_SHOWN])
        library.append(np.append(over_last, padding)[:_SHOWN])
    return _medians(ratios), _medians(library)


def _medians(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The median of each column's numbers; columns without one are left out."""
    columns = np.array(rows).T
    return np.array([np.nanmedian(column) for column in columns if not np.isnan(column).all()])


def show(problem: str, manner: str, found: dict[str, Any]) -> None:
    """Print the figures of a manner."""
    block_us = found["library_us"] * found["launches"]
    spreads = {name: spread_of(each)["spread"] for name, each in divided(found["records"], block_us).items()}
    clocks = [each["clocks"]["sm_mhz"] for each in found["records"] if each["clocks"] is not None]
    print(
        f"{problem}, {manner}: spread by {', '.join(f'{name} {spread:.2%}' for name, spread in spreads.items())}; "
        f"kernels follow the library by {follows(found['records']):.2f}"
        + (f"; {min(clocks):.0f} to {max(clocks):.0f} MHz" if clocks else "")
    )
    for queue in range(2):
        ratios, library = settling(found["records"], queue)
        print(f"  queue {queue + 1}, ratio over its median: {' '.join(f'{value:.3f}' for value in ratios)}")
        print(
            f"  queue {queue + 1}, library over its last:  {' '.join(f'{value:.3f}' for value in library)}", flush=True
        )


def record_manners(table: Table, problem: Problem, asked: Asked) -> dict[str, Any]:
    """The records of a problem, by manner."""
    worker = Worker(asked.device)
    bench, launches = set_up(worker, table, problem, asked.good, artifacts(asked.store))
    for launch in launches:
        bench.verify(launch, edge=True)
    recorder = Recorder(worker.machine)
    made = {"launches": bench.launches, "library_us": bench.library_us}
    return {
        manner: made | {"records": record(bench, recorder, launches, manner, asked.rounds, asked.seed)}
        for manner in MANNERS
    }


@study(GPU_OR_RECORD, again=True)
@table_argument
@problems_option
@click.option("--good", default=20, show_default=True, help="The fastest configurations of the table to measure.")
@click.option("--rounds", default=10, show_default=True, help="Measurements of each configuration in each manner.")
@seed_option
@store_option
@device_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Record the blocks of each problem, or read them, and print the figures of every manner."""
    for name, manners in each_problem(run, asked.table, asked.problems, partial(record_manners, asked=asked)):
        for manner, found in manners.items():
            show(name, manner, found)
