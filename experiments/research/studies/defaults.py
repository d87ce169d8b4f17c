"""Measure how good the shipped defaults of `gemm_sm90` are, and pick and fit new ones.

    python -m tilescout.experiments.research defaults search/tables/recorded/*.parquet --out defaults.json

The default of a problem is chosen in two steps: there is a short list of configurations, and an estimate of their times
prefers one of them. The study picks such a list greedily: each configuration is the one that lowers the mean of
log(time / best recorded time) the most. It then fits the rates of the estimate.

Both steps are also done without a sixth of the shapes at a time, and judged on the problems left out. A shape is left
out as a whole: the defaults of a product in bf16 and in fp8 are much the same. The fit starts from constants that no
table was asked for. A pruned row counts with its pilot time.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.constraints import Columns
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.estimate import Rates, cycles
from tilescout.spaces.gemm_sm90.template import KNOBS, TEMPLATE
from tilescout.spaces.shapes import shape_groups
from tilescout.spaces.tiling import Integers

_MISSING = 3.0  # log(time / best) that a configuration that was not measured on a problem counts with
_SPREADS = (0.6, 0.1)  # of the rates' logarithms, when a better set is looked for near the best: at first, at last

NEUTRAL = Rates(
    loading=64.0, latency=1000.0, storing=64.0, tile=1000.0, exchange=1000.0, memory=1.0, overlap=0.5, in_turn=1.0
)
"""Round numbers that are right within some factors for any GPU: what is known before a table is looked at."""


@dataclass(frozen=True)
class Losses:
    """Log of the time of every recorded configuration over the best recorded: [configurations, problems]."""

    columns: Columns
    problems: Sequence[GemmProblem]
    devices: Sequence[Device]
    logs: NDArray[np.float64]

    def chosen(self, picked: Integers, at: int, rates: Rates) -> float:
        """The loss, on problem number `at`, of the picked configuration that the estimate prefers."""
        problem, device = self.problems[at], self.devices[at]
        tiling = TEMPLATE.tiling({name: column[picked] for name, column in self.columns.items()}, problem)
        known = self.logs[picked, at]
        times = np.where(np.isfinite(known), cycles(tiling, device, rates), np.inf)
        return float(min(known[int(np.argmin(times))], _MISSING))


def read(tables: Sequence[Table]) -> Losses:
    """The losses of the configurations of several tables of the space."""
    places: dict[tuple[object, ...], int] = {}
    entries: list[tuple[int, int, float]] = []
    problems: list[GemmProblem] = []
    devices: list[Device] = []
    for table in tables:
        knobs = list(zip(*(table.data[knob.name].to_pylist() for knob in KNOBS), strict=True))
        pilots = np.array(table.data["pilot_us"].to_pylist(), dtype=np.float64)
        times = np.where(np.isfinite(table.times_us), table.times_us, pilots)
        for problem in table.problems:
            rows = table.rows(problem)
            best = np.nanmin(table.times_us[rows])
            entries += [(places.setdefault(knobs[row], len(places)), len(problems), times[row] / best) for row in rows]
            problems.append(GemmProblem.parse(str(problem)))
            devices.append(find_device(table.card.device))
    logs = np.full((len(places), len(problems)), np.inf)
    for place, at, loss in entries:
        logs[place, at] = np.log(loss) if np.isfinite(loss) else np.inf
    columns = {knob.name: np.array([place[n] for place in places]) for n, knob in enumerate(KNOBS)}
    return Losses(columns, problems, devices, logs)


def pick(losses: Losses, count: int, among: Integers) -> Integers:
    """Positions of `count` configurations that together do well on the problems `among`."""
    logs = losses.logs[:, among]
    reached, picked = np.full(len(among), _MISSING), []
    for _ in range(count):
        picked.append(int(np.minimum(logs, reached).sum(axis=1).argmin()))
        reached = np.minimum(reached, logs[picked[-1]])
    return np.array(picked)


def fit(losses: Losses, picked: Integers, among: Integers, steps: int, generator: np.random.Generator) -> Rates:
    """Rates whose choices among the picked are fast on the problems `among`: a random search around the best so far.

    It starts from `NEUTRAL` and never looks at the shipped rates, which were fitted to all of the problems.
    """

    def loss(rates: Rates) -> float:
        return float(np.mean([losses.chosen(picked, at, rates) for at in among]))

    best, lowest = NEUTRAL, loss(NEUTRAL)
    for spread in np.geomspace(*_SPREADS, steps):
        factors = np.exp(generator.normal(0.0, spread, len(fields(Rates))))
        tried = replace(
            best, **{name: value * f for (name, value), f in zip(asdict(best).items(), factors, strict=True)}
        )
        if (found := loss(tried)) < lowest:
            best, lowest = tried, found
    return best


def parts(problems: Sequence[GemmProblem], count: int, generator: np.random.Generator) -> list[Integers]:
    """Positions of the problems, in so many parts of about as many shapes; no shape is in two of them."""
    labels = np.array(shape_groups(problems))
    shapes = generator.permutation(np.unique(labels))
    return [np.flatnonzero(np.isin(labels, shapes[part::count])) for part in range(min(count, len(shapes)))]


@study(TABLES)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--count", default=20, show_default=True, help="Configurations to pick.")
@click.option("--steps", default=300, show_default=True, help="Sets of rates to try.")
@click.option("--folds", default=6, show_default=True, help="Parts of the shapes to leave out in turn.")
@seed_option
def main(run: Run, tables: tuple[Path, ...], count: int, steps: int, folds: int, seed: int) -> None:
    """Print how good the shipped defaults are, and ones that are picked and fitted anew."""
    losses = read([Table.read(path) for path in tables])
    generator = np.random.default_rng(seed)
    everywhere = np.arange(len(losses.problems))
    held_out: dict[str, float] = {}
    for left in parts(losses.problems, folds, generator):
        others = np.setdiff1d(everywhere, left)
        picked = pick(losses, count, others)
        rates = fit(losses, picked, others, steps, generator)
        held_out |= {str(losses.problems[at]): losses.chosen(picked, at, rates) for at in left}
    codes = np.stack([losses.columns[knob.name] for knob in KNOBS], axis=1).tolist()
    shipped: dict[str, float] = {}
    for at, problem in enumerate(losses.problems):
        default = TEMPLATE.default(problem, losses.devices[at])
        shipped[str(problem)] = float(losses.logs[codes.index([str(default[k.name]) for k in KNOBS]), at])
    picked = pick(losses, count, everywhere)
    rates = fit(losses, picked, everywhere, steps, generator)

    grid = Grid(title="time over the best recorded", title_justify="left")
    for heading in ("problem", "the default", "chosen without the problem"):
        grid.add_column(heading)
    for name, loss in shipped.items():
        grid.add_row(name, f"{np.exp(loss):.3f}", f"{np.exp(held_out[name]):.3f}")
    means = [np.exp(np.mean(list(found.values()))) for found in (shipped, held_out)]
    grid.add_row("geometric mean", *(f"{mean:.3f}" for mean in means))
    console = Console()
    console.print(grid)
    for at in picked:
        console.print("picked:", ", ".join(f"{knob.name} {losses.columns[knob.name][at]}" for knob in KNOBS))
    console.print("fitted:", {name: round(float(value), 3) for name, value in asdict(rates).items()})
    run.keep(
        {
            name: {"default": float(np.exp(loss)), "held_out": float(np.exp(held_out[name]))}
            for name, loss in shipped.items()
        }
    )
