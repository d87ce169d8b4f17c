"""Do searches say that configurations differ by noise alone where they do, and nowhere else?

    python -m tilescout.experiments.research noise-told convolution_streams.parquet gemm.parquet --out noise-told.json

Searches without a cost model are replayed on each problem of the tables. After some timed trials a search tells how
well their times follow from one another, as a rank correlation (`tilescout.search.studies.noise`), and where that
is low it says that they may be noise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zlib import crc32

import click
import numpy as np
import optuna
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.coordinates import coordinates
from tilescout.costmodel.signal import explained
from tilescout.experiments.commands.options import collected, processes_option
from tilescout.experiments.compare.contenders import parse_contender
from tilescout.experiments.compare.processes import each
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.noise import EARLY, LITTLE
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table

SAMPLER = "guided-cold"


@dataclass(frozen=True)
class Told:
    """How well the times of a search's first `EARLY` timed trials follow from one another.

    Attributes
    ----------
    table, problem, seed
        The table's name, the problem, and the number of the search.
    correlation
        The rank correlation of times and what the other trials say of them.
    """

    table: str
    problem: str
    seed: int
    correlation: float

    @property
    def doubted(self) -> bool:
        """Whether the search says that the times may be noise."""
        return self.correlation < LITTLE


def told(path: Path, name: str, seed: int) -> Told:
    """Replay one search until `EARLY` of its trials were timed."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = Table.read(path)
    problem = table.problem(name)
    engine = ReplayEngine(table, template_of(table))
    recording = engine.recording(problem)
    entropy = int(np.random.SeedSequence([seed, crc32(f"{table.card.sha256} {name}".encode())]).generate_state(1)[0])
    tried = parse_contender(SAMPLER).play(engine, problem, 2 * EARLY, entropy)
    measured = ((int(index), recording.measurement(int(index))) for index in tried)
    timed = [(index, one.time_us) for index, one in measured if one.ok and one.time_us is not None][:EARLY]
    points = coordinates(recording.space)[[index for index, _ in timed]]
    return Told(path.stem, name, seed, float(explained(points, np.log([time for _, time in timed]))))


def print_all(console: Console, found: Sequence[Told]) -> dict[str, dict[str, float]]:
    """Print and return how many searches of each table say that its times may be noise."""
    grid = Grid(title=f"{SAMPLER}, after {EARLY} timed trials", title_justify="left")
    for heading in ("table", "searches", "say that times may be noise", "rank correlations"):
        grid.add_column(heading)
    figures = {}
    for table in dict.fromkeys(one.table for one in found):
        own = [one for one in found if one.table == table]
        values = [one.correlation for one in own]
        figures[table] = {
            "searches": len(own),
            "doubted": sum(one.doubted for one in own),
            "least": min(values),
            "most": max(values),
        }
        grid.add_row(table, str(len(own)), str(figures[table]["doubted"]), f"{min(values):.2f} to {max(values):.2f}")
    console.print(grid)
    return figures


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    tables: tuple[Path, ...]
    seeds: int
    processes: int | None


def _jobs(asked: Asked) -> Iterable[tuple[Path, str, int]]:
    for path in asked.tables:
        for problem in Table.read(path).problems:
            for seed in range(asked.seeds):
                yield path.absolute(), str(problem), seed


@study(TABLES, again=True)
@click.argument("tables", nargs=-1, type=click.Path(path_type=Path))
@click.option("--seeds", default=8, show_default=True, help="Searches of a problem.")
@processes_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Search the tables, and print which searches take their times for noise."""
    console = Console(width=140)
    if run.record is not None:
        print_all(console, [Told(**one) for one in run.record.result["searches"]])
        return
    if not asked.tables:
        raise click.UsageError("name some tables, or a file with --again")
    found = list(each(told, list(_jobs(asked)), asked.processes or available_cores(), "search"))
    run.keep({"tables": print_all(console, found), "searches": [asdict(one) for one in found]})
