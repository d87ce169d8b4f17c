r"""How long a device that waited must be busy before its times count, on good and on slower rows of a table.

    python -m tilescout.experiments.research settling TABLE.parquet --problem 1024x1024x1024:bf16 \
        --out settling.json

With every length of pairs that run before those that count (``--settling-us``): the fastest configurations are verified
and timed in rounds of random order, as in a search, and how much they spread is printed; and slower ones, which get two
pairs each, are compared with a race of the same.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.research.shared import compile_all, load_all, spread_of
from tilescout.experiments.research.studies.measurement import HEATING_US, heat
from tilescout.experiments.research.studies.race_table import finalists
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import STORE, artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

SLOWER = (1.2, 1.6)  # times the best: given up after two pairs, and not pruned
HOPELESS = 0.5  # a best known ratio that none of them comes near


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


def study(worker: Worker, table: Table, problem: Problem, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of a problem for every length."""
    template = find_template(table.card.space)
    arch = find_device(worker.machine.name).arch
    fast = finalists(table, problem, arguments.good)
    chosen = [*fast, *slower(table, problem, arguments.good)]
    built = compile_all(template, problem, arch, chosen, arguments.store)  # all: the table has their times
    figures: dict[str, Any] = {}
    library_us: float | None = None
    for settling_us in arguments.settling_us:
        options = replace(ProtocolOptions(), settling_us=settling_us)
        bench = worker.bench(template.workload, str(problem), options, library_us)
        library_us = bench.library_us
        launches = load_all(worker, bench, template, built)
        good, others = launches[: len(fast)], launches[len(fast) :]
        heat(bench, HEATING_US)
        rounds = verified_and_timed(bench, good, arguments.rounds, arguments.seed, incumbent=None)
        few = verified_and_timed(bench, others, arguments.few, arguments.seed, incumbent=HOPELESS)
        raced = np.exp(np.log(bench.race(others, rounds=4, pairs=4, seed=arguments.seed)).mean(axis=0))
        figure = {"spread": spread_of(rounds)["spread"], "few_pairs_over_race": float(np.median(few / raced))}
        raw = {"rounds": rounds.tolist(), "few": few.tolist(), "raced": raced.tolist()}
        figures[f"{settling_us:g} us"] = figure | raw
        print(
            f"{problem}, {settling_us:g} us: spread of good ones {figure['spread']:.2%}, "
            f"few pairs read {figure['few_pairs_over_race']:.4f} of a race",
            flush=True,
        )
    return figures


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--problem", action="append", required=True)
    parser.add_argument("--settling-us", type=float, nargs="+", default=[0.0, 1000.0, 3000.0])
    parser.add_argument("--good", type=int, default=8, help="configurations of either kind")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--few", type=int, default=3, help="measurements of each that is slower")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, default=artifacts(STORE))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    worker, table = Worker(arguments.device), Table.read(arguments.table)
    result = {}
    for text in arguments.problem:
        problem = table.problem(text)
        result[text] = study(worker, table, problem, arguments)
        arguments.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
