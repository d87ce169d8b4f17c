r"""Compare references that a kernel's time can be divided by, on raw times of a table's best rows.

    python -m tilescout.experiments.research reference TABLE.parquet --problem 64x8192x8192:bf16 \
        --out reference.json

The configurations are measured in rounds of random order: blocks of launches in turns with the library's, then in turns
with a copy of as many bytes. Printed is how much the rounds of a configuration spread if its time is divided by

- nothing;
- the library's blocks beside it, or the library's mean over the last measurements;
- the copy beside it;
- the mean of all configurations in the round, which no search could know, but which shows drift that is common to all;
- what the protocol divides by, with and without knowing when the device is throttled.

Every length of a block and every number of input sets is a set-up of its own. With ``--as-searched`` each kernel is
verified and prepared anew before it is measured, so that the device has waited for the host, as in a search; how times
settle after that, pair by pair, is printed too.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.commands.options import Finite, collected, seed_option, store_option
from tilescout.experiments.research.figures import spread_of
from tilescout.experiments.research.kernels import CHAINS, compile_all, finalists, load_all
from tilescout.experiments.research.runner import (
    GPU_OR_RECORD,
    Run,
    device_option,
    problems_option,
    study,
    table_argument,
)
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.machine import Block
from tilescout.search.measure.reference import Reference
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

_FORGET = 1 / 16  # as the protocol's mean of the last measurements


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    table: Path | None
    problems: tuple[str, ...]
    good: int
    rounds: int
    pairs: int
    as_searched: bool
    block_us: tuple[float, ...]
    cold_l2: tuple[float, ...]
    seed: int
    store: Path
    device: str


def copy_block(bench: Bench) -> Block:
    """A block of copies that move as many bytes as a launch; each copy uses other buffers."""
    import torch

    bytes_each = bench.problem.bytes // 2
    sets = max(2, round(4 * bench.machine.l2_bytes / bytes_each / 2))
    buffers = [torch.empty((2, bytes_each), dtype=torch.int8, device=bench.machine.device) for _ in range(sets)]

    def copy(number: int) -> None:
        source, target = buffers[number % sets]
        target.copy_(source)

    return bench.machine.block([[lambda number=number: copy(number) for number in range(bench.launches)]])  # type: ignore[misc]


def raw_blocks(bench: Bench, launches: Sequence[Launch], asked: Asked) -> dict[str, Any]:
    """Times of single blocks in µs: by round, by configuration, and one after another; and the clocks."""
    rounds, pairs = asked.rounds, asked.pairs
    machine = bench.machine
    library, copy = bench.make_block(bench.run_library), copy_block(bench)
    blocks = [bench.make_block(launch) for launch in launches]
    machine.times_us([*blocks, library, copy], lost=1.0)
    generator = np.random.default_rng(asked.seed)
    shape = (rounds, len(blocks))
    raw: dict[str, Any] = {"beside": np.empty((*shape, 2 * pairs + 1)), "with_copy": np.empty((*shape, 2 * pairs + 1))}
    raw |= {"order": np.empty(shape, int), "seconds": np.empty(shape), "clocks": []}
    started = time.perf_counter()
    for turn in range(rounds):
        for place, kernel in enumerate(generator.permutation(len(blocks))):
            block = blocks[kernel]
            if asked.as_searched:
                bench.verify(launches[kernel], edge=True)
                block = bench.make_block(launches[kernel])
                machine.times_us([block, library], lost=1.0)
            raw["beside"][turn, kernel] = machine.times_us([library, library, *[block, library] * pairs])
            raw["clocks"].append([turn, int(kernel), asdict(state) if (state := machine.clocks()) else None])
            raw["with_copy"][turn, kernel] = machine.times_us([copy, copy, *[block, copy] * pairs])
            raw["order"][turn, kernel] = place
            raw["seconds"][turn, kernel] = time.perf_counter() - started
    return raw


def by_protocol(raw: dict[str, Any], block_us: float, told: bool) -> NDArray[np.float64]:
    """The protocol's ratios in the order of measuring; `told` or not when the device was throttled."""
    times, order = np.asarray(raw["beside"]), np.argsort(raw["order"], axis=1)
    throttled = {(turn, kernel): bool(state and state["throttle"]) for turn, kernel, state in raw["clocks"]}
    reference = Reference(block_us, times[0, 0, 0::2].tolist(), CHAINS)
    ratios = np.empty(order.shape)
    for turn, kernels in enumerate(order):
        for kernel in kernels:
            blocks = times[turn, kernel]
            pairs = blocks[1::2], (blocks[:-1:2] + blocks[2::2]) / 2
            ratios[turn, kernel] = reference.estimate(*pairs, told and throttled[turn, kernel]).ratio
            reference.learn(*pairs)
    return ratios


def divided(raw: dict[str, Any], block_us: float) -> dict[str, NDArray[np.float64]]:
    """Each configuration's value in each round, of shape [rounds, configurations], by what it is divided by.

    Parameters
    ----------
    raw
        What `raw_blocks` returned.
    block_us
        The library's steady time of a block, in µs.
    """
    raw = raw | {name: np.asarray(raw[name]) for name in ("beside", "with_copy", "order")}

    def middle(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([[mean_interval(cell.tolist())[0] for cell in row] for row in values])

    def beside(times: NDArray[np.float64]) -> NDArray[np.float64]:
        return middle(times[..., 1::2] / ((times[..., :-1:2] + times[..., 2::2]) / 2))

    alone = middle(raw["beside"][..., 1::2])
    library = np.median(raw["beside"][..., 0::2], axis=2)
    in_order = np.argsort(raw["order"], axis=1)
    recent, mean = np.empty_like(library), float(library[0].mean())
    for turn, kernels in enumerate(in_order):
        for kernel in kernels:
            recent[turn, kernel] = mean
            mean += (library[turn, kernel] - mean) * _FORGET
    return {
        "nothing": alone,
        "library beside it": beside(raw["beside"]),
        "library's last mean": alone / recent,
        "copy beside it": beside(raw["with_copy"]),
        "mean of the round": alone / np.exp(np.log(alone).mean(axis=1, keepdims=True)),
        "(the library by itself)": library,
        "the protocol, not told": by_protocol(raw, block_us, told=False),
        "the protocol, told": by_protocol(raw, block_us, told=True),
    }


def record(table: Table, problem: Problem, asked: Asked) -> dict[str, Any]:
    """Measure a problem in every set-up, by its name: the library's time, and raw times."""
    template, worker = find_template(table.card.space), Worker(asked.device)
    arch = find_device(worker.machine.name).arch
    built = compile_all(template, problem, arch, finalists(table, problem, asked.good), artifacts(asked.store))
    results: dict[str, Any] = {}
    for cold, block_us in product(asked.cold_l2, asked.block_us):
        options = replace(CHAINS, block_us=block_us, cold_l2=cold)
        bench = worker.bench(template.workload, str(problem), options, None)
        raw = raw_blocks(bench, load_all(worker, bench, template, built), asked)
        listed = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in raw.items()}
        setup = {"library_us": bench.library_us, "launches": bench.launches, "raw": listed}
        results[f"blocks of {block_us:g} us, inputs of {cold:g} L2"] = setup
    return results


def settling(raw: dict[str, Any]) -> dict[str, list[float]]:
    """Times of the kernels' and the library's blocks by their place in a measurement, over those of its second half."""
    times = np.asarray(raw["beside"])
    found = {}
    for name, blocks in (("kernel", times[..., 1::2]), ("library", times[..., 0::2])):
        settled = np.median(blocks[..., blocks.shape[-1] // 2 :], axis=-1, keepdims=True)
        found[name] = np.median(blocks / settled, axis=(0, 1)).tolist()
    return found


def add_figures(result: dict[str, Any]) -> None:
    """Work out the figures of every set-up, put them beside its raw times, and print them."""
    for problem, setups in result.items():
        for name, setup in setups.items():
            values = divided(setup["raw"], setup["library_us"] * setup["launches"])
            setup["spread"] = {by: spread_of(each) for by, each in values.items()}
            spreads = ", ".join(f"{by} {each['spread']:.2%}" for by, each in setup["spread"].items())
            print(f"{problem}, {name}: {spreads}", flush=True)
            setup["settling"] = settling(setup["raw"])
            for by, places in setup["settling"].items():
                print(f"  {by} settling: {' '.join(f'{place:.3f}' for place in places[:12])}", flush=True)


@study(GPU_OR_RECORD, again=True)
@table_argument
@problems_option
@click.option("--good", default=8, show_default=True, help="Configurations to measure, the default among them.")
@click.option("--rounds", default=10, show_default=True, help="Measurements of each configuration.")
@click.option("--pairs", default=12, show_default=True, help="Pairs of blocks in a measurement.")
@click.option("--as-searched", is_flag=True, help="Verify a kernel and make its block anew before each measurement.")
@click.option(
    "--block-us",
    type=Finite(min=0),
    multiple=True,
    default=[300.0, 1200.0],
    show_default=True,
    help="Length of a block.",
)
@click.option(
    "--cold-l2",
    type=Finite(),
    multiple=True,
    default=[4.0, 16.0],
    show_default=True,
    help="Input sets, in sizes of the L2.",
)
@seed_option
@store_option
@device_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Measure the problems in every set-up, or read them, and print the figures."""
    if run.record is not None:
        result = run.record.result
    elif asked.table is not None and asked.problems:
        table = Table.read(asked.table)
        result = {name: record(table, table.problem(name), asked) for name in asked.problems}
    else:
        raise click.UsageError("name a table and a --problem, or a file with --again")
    add_figures(result)
    run.keep(result)
