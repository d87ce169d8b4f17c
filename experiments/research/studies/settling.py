r"""Measure how long a device that waited must be busy before its times count.

    python -m tilescout.experiments.research settling TABLE.parquet --problem 1024x1024x1024:bf16 \
        --out settling.json

Some pairs run before those that count; ``--settling-us`` says for how long. For every such length, the fastest
configurations are verified and timed in rounds of random order, as in a search, and their spread is printed. Slower
configurations get two pairs each and are compared with a race of the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.commands.options import Finite, collected, seed_option, store_option
from tilescout.experiments.research.figures import spread_of
from tilescout.experiments.research.kernels import CHAINS, HEATING_US, compile_all, finalists, heat, load_all
from tilescout.experiments.research.runner import GPU, Run, device_option, problems_option, study
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

SLOWER = (1.2, 1.6)  # times the best: given up after two pairs, and not pruned
HOPELESS = 0.5  # a best known ratio that none of them comes near


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    table: Path
    problems: tuple[str, ...]
    settling_us: tuple[float, ...]
    good: int
    rounds: int
    few: int
    seed: int
    store: Path
    device: str


def slower(table: Table, problem: Problem, count: int) -> list[Configuration]:
    """Configurations of a table that are clearly slower than the best, evenly over its rows."""
    rows = table.rows(problem)
    times = table.times_us[rows] / table.times_us[rows].min()
    found = rows[(times > SLOWER[0]) & (times < SLOWER[1])]
    return [table.configuration(int(row)) for row in found[:: max(1, len(found) // count)][:count]]


def verified_and_timed(
    bench: Bench, launches: Sequence[Launch], rounds: int, seed: int, incumbent: float | None
) -> NDArray[np.float64]:
    """Ratios of kernels that are verified before each measurement, of shape [rounds, launches]."""
    generator = np.random.default_rng(seed)
    ratios = np.empty((rounds, len(launches)))
    for row in ratios:
        for at in generator.permutation(len(launches)):
            bench.verify(launches[at], edge=True)
            row[at] = bench.time(launches[at], incumbent).ratio
    return ratios


def record(worker: Worker, table: Table, problem: Problem, asked: Asked) -> dict[str, Any]:
    """Measure a problem with every length of settling; figures and raw ratios by length."""
    template = find_template(table.card.space)
    arch = find_device(worker.machine.name).arch
    fast = finalists(table, problem, asked.good)
    chosen = [*fast, *slower(table, problem, asked.good)]
    built = compile_all(template, problem, arch, chosen, artifacts(asked.store))  # all: the table has their times
    figures: dict[str, Any] = {}
    library_us: float | None = None
    for settling_us in asked.settling_us:
        options = replace(CHAINS, settling_us=settling_us)
        bench = worker.bench(template.workload, str(problem), options, library_us)
        library_us = bench.library_us
        launches = load_all(worker, bench, template, built)
        best, others = launches[: len(fast)], launches[len(fast) :]
        heat(bench, HEATING_US)
        ratios = verified_and_timed(bench, best, asked.rounds, asked.seed, incumbent=None)
        quick = verified_and_timed(bench, others, asked.few, asked.seed, incumbent=HOPELESS)
        raced = np.exp(np.log(bench.race(others, rounds=4, pairs=4, seed=asked.seed)).mean(axis=0))
        figure = {"spread": spread_of(ratios)["spread"], "few_pairs_over_race": float(np.median(quick / raced))}
        raw = {"rounds": ratios.tolist(), "few": quick.tolist(), "raced": raced.tolist()}
        figures[f"{settling_us:g} us"] = figure | raw
        print(
            f"{problem}, {settling_us:g} us: spread of good ones {figure['spread']:.2%}, "
            f"few pairs read {figure['few_pairs_over_race']:.4f} of a race",
            flush=True,
        )
    return figures


@study(GPU, out_required=True)
@click.argument("table", type=click.Path(path_type=Path))
@problems_option
@click.option(
    "--settling-us",
    type=Finite(min=0),
    multiple=True,
    default=[0.0, 1000.0, 3000.0],
    show_default=True,
    help="Length to try; repeatable.",
)
@click.option("--good", default=8, show_default=True, help="Configurations of either kind.")
@click.option("--rounds", default=8, show_default=True, help="Measurements of each fast configuration.")
@click.option("--few", default=3, show_default=True, help="Measurements of each slower one.")
@seed_option
@store_option
@device_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Measure the problems with every length of settling."""
    if not asked.problems:
        raise click.UsageError("name a --problem of the table")
    worker, table, result = Worker(asked.device), Table.read(asked.table), {}
    for name in asked.problems:
        result[name] = record(worker, table, table.problem(name), asked)
        run.keep(result)
