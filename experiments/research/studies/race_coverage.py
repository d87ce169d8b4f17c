r"""How often the intervals of a race hold what others measure: other heats, other processes, another host.

    python -m tilescout.experiments.research race-coverage \
        experiments/results/race-2026-11-22/heats-{1,2,3}.json.gz \
        --host experiments/results/tunings-2026-11-22/races.json.gz

``--host`` can be given again, for one more host. Each file holds heats of the same configurations as `race-designs`
records them, by a process of its own. Races draw their heats from one process. Their 95 % intervals, of the ratios to
the library and of the winner's time over the default's, are then held against the mean of the heats that the race did
not see: of the same process, of the next one, of other hosts. The intervals of the time over the library's on any host,
which are wider, are held against the same. That mean is uncertain too: its own interval is added in quadrature. A
winner that is the default has no interval over itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.search.measure.heats import HeatNoise, mean_of_heats
from tilescout.search.measure.race import Estimate, Race, RaceOptions, run_race

NEAR = 8  # finalists are drawn from so many of the best
RACES = 100
OF = ("same process", "other process", "other host")
WHAT = ("to the library", "to the library, any host", "over the default")

Logs = NDArray[np.float64]
"""Logarithms of recorded ratios, of shape [heats, rounds, configurations]; the last configuration is the default."""


@dataclass
class Drawn:
    """A race whose heats are drawn from recorded ones, each once.

    Attributes
    ----------
    logs
        The recorded heats.
    seed
        Of the draw.
    unused
        Numbers of the heats that the race has not seen.
    """

    logs: Logs
    seed: int
    unused: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)
        self.unused = self._generator.permutation(len(self.logs)).tolist()

    def measure(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Rounds of one heat, one after another as they were recorded."""
        heat = self.unused.pop()
        first = int(self._generator.integers(self.logs.shape[1] - rounds * pairs + 1))
        drawn = self.logs[heat, first : first + rounds * pairs][:, list(indices)]
        return np.asarray(np.exp(drawn.reshape(rounds, pairs, -1).mean(axis=1)))

    def run(self, options: RaceOptions) -> Race:
        """Race some of the best configurations and the default."""
        default = self.logs.shape[2] - 1
        near = np.argsort(self.logs.mean(axis=(0, 1))[:default])[:NEAR]
        chosen = self._generator.permutation(near)[: options.candidates].tolist()
        return run_race(chosen, default, self.measure, options, self.seed)


def holds(estimate: Estimate, others: NDArray[np.float64]) -> bool:
    """Whether an interval holds the mean of other heats, of shape [heats, rounds]."""
    truth = mean_of_heats(others, 0.0, HeatNoise(0.0, 0.0))
    half = np.log(estimate.high / estimate.low) / 2
    return bool(abs(np.log(estimate.value) - truth.mean) <= np.hypot(half, truth.here))


def coverage(
    processes: Sequence[Logs], hosts: Sequence[Logs], options: RaceOptions, races: int, seed: int
) -> dict[str, dict[str, list[int]]]:
    """How many intervals there were and how many held, by what they are of and by who measured again."""
    held: dict[str, dict[str, list[bool]]] = {what: {of: [] for of in OF} for what in WHAT}
    for number, logs in enumerate(processes):
        for race in range(races):
            drawn = Drawn(logs, seed + race)
            found = drawn.run(options)
            default = logs.shape[2] - 1
            others = [(OF[0], logs[drawn.unused]), (OF[1], processes[(number + 1) % len(processes)])]
            for of, measured in [*others, *((OF[2], host) for host in hosts)]:
                if len(measured) < 2:
                    continue
                for at, ratio in found.ratios.items():
                    held[WHAT[0]][of].append(holds(ratio, measured[:, :, at]))
                    held[WHAT[1]][of].append(holds(ratio.widened(options.host), measured[:, :, at]))
                if found.winner != default:
                    over = measured[:, :, found.winner] - measured[:, :, default]
                    held[WHAT[2]][of].append(holds(found.over_default, over))
    return {what: {of: [len(found), sum(found)] for of, found in by.items()} for what, by in held.items()}


def coverages(
    processes: Sequence[Mapping[str, Logs]], elsewhere: Sequence[Mapping[str, Logs]], races: int, seed: int
) -> dict[str, dict[str, dict[str, list[int]]]]:
    """The `coverage` of each problem, and of all together as "all".

    Parameters
    ----------
    processes
        The heats of each problem, by processes of one host.
    elsewhere
        Those of other hosts.
    races, seed
        Races of each process to draw, and the seed of the draws.
    """
    found = {
        name: coverage(
            [each[name] for each in processes],
            [host[name] for host in elsewhere if name in host],
            RaceOptions(),
            races,
            seed,
        )
        for name in processes[0]
    }
    found["all"] = {
        what: {of: np.sum([each[what][of] for each in found.values()], axis=0).tolist() for of in OF} for what in WHAT
    }
    return found


def _share(intervals: int, held: int) -> str:
    return f"{held / intervals:.1%} of {intervals}" if intervals else ""


def read_heats(path: Path) -> Mapping[str, Logs]:
    """The heats of each problem in a file that `race-designs` wrote."""
    problems = Record.read(path).result["problems"]
    return {name: np.log(np.array(found["ratios"])) for name, found in problems.items()}


@study("what `race-designs` recorded, in several processes")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--host",
    "hosts",
    type=click.Path(path_type=Path),
    multiple=True,
    help="The same configurations on another host; repeatable.",
)
@click.option("--races", default=RACES, show_default=True, help="Races of each process to draw.")
@seed_option
def main(run: Run, files: tuple[Path, ...], hosts: tuple[Path, ...], races: int, seed: int) -> None:
    """Print how often the intervals of drawn races hold."""
    found = coverages(list(map(read_heats, files)), list(map(read_heats, hosts)), races, seed)
    grid = Grid(title="intervals of races that hold what was measured again", title_justify="left")
    for heading in ("problem", "of the time", *OF):
        grid.add_column(heading)
    for name, by in found.items():
        for what in WHAT:
            grid.add_row(name, what, *(_share(*by[what][of]) for of in OF))
    Console(width=160).print(grid)
    run.keep({"protocol": "race", "problems": found})
