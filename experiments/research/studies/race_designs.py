"""Compare designs of the race at the end of a search, by replaying them over recorded rounds.

    python -m tilescout.experiments.research race-designs TABLE.parquet --problem 4096x4096x4096:bf16 --out R.json.gz
    python -m tilescout.experiments.research race-designs --again R.json.gz

Recording: the best configurations of a table and its default take turns with the library, pair by pair. This is done in
several heats; a heat is one queue of launches.

Replaying: races of each design (`tilescout.search.measure.race`) draw their rounds from the recorded ones. Six of the
best eight and the default race, as a search has it. For each design this prints how many pairs a race takes, and how
far its answers are behind the best in the race, by the mean of everything recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.commands.options import collected, seed_option, store_option
from tilescout.experiments.research.kernels import HEATING_US, heat, set_up
from tilescout.experiments.research.runner import (
    GPU_OR_RECORD,
    Run,
    device_option,
    each_problem,
    problems_option,
    study,
    table_argument,
)
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.problems import Problem

DESIGNS = {
    f"{design.look} rounds of {design.pairs}, {design.looks} looks{'' if design.loss else ', whatever is lost'}": design
    for design in (
        RaceOptions(),
        RaceOptions(loss=0.0),
        RaceOptions(look=6, pairs=5, looks=5),
        RaceOptions(look=6, pairs=3, looks=5),
        RaceOptions(look=6, pairs=2, looks=8),
        RaceOptions(look=10, pairs=2, looks=5),
        RaceOptions(look=12, pairs=1, looks=10),
    )
}
NEAR = 8  # finalists are drawn from so many of the best

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    table: Path | None
    problems: tuple[str, ...]
    good: int
    heats: int
    rounds: int
    races: int
    seed: int
    store: Path
    device: str


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
    """Replay races of a design and return its figures.

    Parameters
    ----------
    logs
        Logarithms of recorded ratios, of shape [heats, rounds, kernels]; the last kernel is the default.
    design, races, seed
        The design, how many races of it are replayed, and the seed of the first.
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


def record(table: Table, problem: Problem, asked: Asked) -> dict[str, Any]:
    """Measure the ratios of finalists in heats of one queue each."""
    bench, launches = set_up(Worker(asked.device), table, problem, asked.good, artifacts(asked.store))
    heat(bench, HEATING_US)
    for launch in launches:
        bench.verify(launch, edge=True)
        bench.time(launch, incumbent=None)  # from which is learnt what the library's times are worth
    raced = [bench.race(launches, asked.rounds, 1, asked.seed + number) for number in range(asked.heats)]
    return {"library_us": bench.library_us, "ratios": np.round(raced, 6).tolist()}


def show(problem: str, found: dict[str, Any], races: int, seed: int) -> None:
    """Print the figures of every design."""
    logs = np.log(np.array(found["ratios"]))
    print(f"{problem}: {logs.shape[2]} kernels, {logs.shape[0]} heats of {logs.shape[1]} rounds")
    for name, design in DESIGNS.items():
        figures = replay(logs, design, races, seed)
        print(
            f"  {name:44s} {figures['pairs']:5.0f} pairs, {figures['behind']:.3%} behind the best, "
            f"{figures['behind_most']:.2%} at most, slower than the default {figures['slower_than_the_default']:.1%}",
            flush=True,
        )


@study(GPU_OR_RECORD, again=True)
@table_argument
@problems_option
@click.option("--good", default=12, show_default=True, help="The fastest configurations of the table that race.")
@click.option("--heats", default=12, show_default=True, help="Queues of rounds to record.")
@click.option("--rounds", default=60, show_default=True, help="Rounds of a heat.")
@click.option("--races", default=200, show_default=True, help="Races of each design to replay.")
@seed_option
@store_option
@device_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Record races of each problem, or read them, and print how the designs do on them."""
    for name, found in each_problem(run, asked.table, asked.problems, partial(record, asked=asked)):
        show(name, found, asked.races, asked.seed)
