"""How many rounds a race should run between two looks: designs of it, replayed over recorded rounds of finalists.

    python -m tilescout.experiments.race_study TABLE.parquet --problem 4096x4096x4096:bf16 --out races.json.gz
    python -m tilescout.experiments.race_study --again races.json.gz

The best configurations of a table and its default take turns with the library, pair by pair, in several heats, each of
one queue. Races of each design (`tilescout.search.race`) then draw their rounds from what was recorded: six of the best
eight and the default, as a search hands them over. For each design it prints the pairs that a race takes, and how far
its answers are behind the best in the race, by the mean of everything recorded.
"""

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.measurement_study import HEATING_US, heat
from tilescout.experiments.race_table import finalists
from tilescout.experiments.studies import compile_all, load_all
from tilescout.search.evaluate.protocol import VERSION, ProtocolOptions
from tilescout.search.evaluate.table import Table
from tilescout.search.evaluate.worker import Worker
from tilescout.search.race import RaceOptions, run_race
from tilescout.search.store import STORE, artifacts
from tilescout.spaces.devices import find_device
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

DESIGNS = {
    f"{design.look} rounds of {design.pairs}, {design.looks} looks": design
    for design in (
        RaceOptions(),
        RaceOptions(look=6, pairs=5, looks=5),
        RaceOptions(look=6, pairs=3, looks=5),
        RaceOptions(look=6, pairs=2, looks=8),
        RaceOptions(look=10, pairs=2, looks=5),
        RaceOptions(look=12, pairs=1, looks=10),
    )
}
NEAR = 8  # finalists are drawn from so many of the best

Floats = NDArray[np.float64]


class Recorded:
    """Rounds of a race that are drawn from recorded ones, of shape [heats, rounds, kernels]."""

    def __init__(self, logs: Floats, seed: int) -> None:
        self._logs, self._generator = logs, np.random.default_rng(seed)
        self.pairs = 0

    def measure(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> Floats:
        """Rounds of some of the kernels, one after another as they were recorded."""
        heat = self._generator.integers(len(self._logs))
        first = self._generator.integers(self._logs.shape[1] - rounds * pairs + 1)
        drawn = self._logs[heat, first : first + rounds * pairs][:, list(indices)]
        self.pairs += drawn.size
        return np.asarray(np.exp(drawn.reshape(rounds, pairs, -1).mean(axis=1)))


def replay(logs: Floats, design: RaceOptions, races: int, seed: int) -> dict[str, float]:
    """Figures of a design, over so many races.

    Parameters
    ----------
    logs
        Logarithms of recorded ratios, of shape [heats, rounds, kernels]; the last kernel is the default.
    design, races, seed
        What is tried how often.
    """
    true = logs.mean(axis=(0, 1))
    default = len(true) - 1
    near = np.argsort(true[:default])[:NEAR]
    generator = np.random.default_rng(seed)
    pairs, behind, slower = [], [], 0
    for race in range(races):
        recorded = Recorded(logs, seed + race)
        chosen = generator.permutation(near)[: design.candidates].tolist()
        answer = run_race(chosen, default, recorded.measure, design, seed + race).answer
        pairs.append(recorded.pairs)
        behind.append(float(np.expm1(true[answer] - true[[*chosen, default]].min())))
        slower += true[answer] > true[default]
    return {
        "pairs": float(np.mean(pairs)),
        "behind": float(np.mean(behind)),
        "behind_most": max(behind),
        "slower_than_the_default": slower / races,
    }


def record(worker: Worker, table: Table, problem: Problem, arguments: argparse.Namespace) -> dict[str, Any]:
    """The ratios of finalists in heats of one queue each."""
    template = find_template(table.card.space)
    arch = find_device(worker.machine.name).arch
    built = compile_all(template, problem, arch, finalists(table, problem, arguments.good), arguments.store)
    bench = worker.bench(template.workload, str(problem), ProtocolOptions(), None)
    launches = load_all(worker, bench, template, built)
    heat(bench, HEATING_US)
    for launch in launches:
        bench.verify(launch, edge=True)
        bench.time(launch, incumbent=None)  # from which is learnt what the library's times are worth
    heats = [bench.race(launches, arguments.rounds, 1, arguments.seed + number) for number in range(arguments.heats)]
    return {"library_us": bench.library_us, "ratios": np.round(heats, 6).tolist()}


def show(problem: str, found: dict[str, Any], races: int, seed: int) -> None:
    """Print the figures of every design."""
    logs = np.log(np.array(found["ratios"]))
    print(f"{problem}: {logs.shape[2]} kernels, {logs.shape[0]} heats of {logs.shape[1]} rounds")
    for name, design in DESIGNS.items():
        figures = replay(logs, design, races, seed)
        print(
            f"  {name:26s} {figures['pairs']:5.0f} pairs, {figures['behind']:.3%} behind the best, "
            f"{figures['behind_most']:.2%} at most, slower than the default {figures['slower_than_the_default']:.1%}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--problem", action="append", default=[])
    parser.add_argument("--good", type=int, default=12, help="configurations, and the default")
    parser.add_argument("--heats", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=60, help="of a heat")
    parser.add_argument("--races", type=int, default=200, help="of each design")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, default=artifacts(STORE))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--again", type=Path, help="file whose figures to print, instead of measuring")
    parser.add_argument("--out", type=Path, help="where to write what was measured, as .json.gz")
    asked = parser.parse_args(arguments)
    if asked.again is not None:
        for problem, found in json.loads(gzip.decompress(asked.again.read_bytes()))["problems"].items():
            show(problem, found, asked.races, asked.seed)
        return
    if asked.table is None or asked.out is None or not asked.problem:
        parser.error("name a table, --problem and --out, or a file with --again")
    table = Table.read(asked.table)
    result: dict[str, Any] = {"protocol": VERSION, "problems": {}}
    for text in asked.problem:
        worker = Worker(asked.device)
        problem = next(problem for problem in table.problems if str(problem) == text)
        result["problems"][text] = found = record(worker, table, problem, asked)
        asked.out.write_bytes(gzip.compress(json.dumps(result).encode(), mtime=0))
        show(text, found, asked.races, asked.seed)


if __name__ == "__main__":
    main()
