r"""How fast the GEMM is, and how good its searches are, on problems that nothing was chosen on.

    python -m tilescout.experiments.research out-of-sample \
        experiments/results/out-of-sample-2026-11-22/gemm_sm90-h200-out-of-sample.parquet --sampler guided

The problems are those of the suite `out-of-sample`. Every configuration of the stated sub-space was measured on each.
Speeds are over `torch.mm`, that is over the first choice of the library's heuristic. They are those of the race, in
which the fastest rows of a problem and the default of that day were measured together. Today's default did not race:
its speed is that of its row's own pairs. Intervals are of the geometric mean over other such problems: a bootstrap over
the problems.

Searches are replayed on the table, the default first, by what every row's own pairs told. The cost model is the shipped
one; a model that was trained on one of the problems is refused. Within the table a search can't be better than the best
of the sub-space.

GPU time is that of searches that stop by themselves. Beside it stands what recording the table took from which the
model learned: so many searches have to be made before both together are less than measuring everything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.options import collected, processes_option, seed_option
from tilescout.experiments.compare.inference import geometric_mean_interval, share_interval
from tilescout.experiments.compare.processes import each
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.guided import Convergence, convergence
from tilescout.search.build.cores import available_cores
from tilescout.search.tables.shipped import shipped_tables, template_of
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError, TableError
from tilescout.spaces.suite import find_suite

_RESULTS = Path(__file__).resolve().parents[2] / "results"
SUITE, GUIDED = "out-of-sample", "guided"
TRIALS = 60


@dataclass(frozen=True)
class Training:
    """The cost of a model.

    Attributes
    ----------
    model, sha256
        Name and checksum of the model's file.
    table, problems
        The tables that it learned from, and how many problems these have.
    gpu_seconds
        Recorded seconds of GPU time of all their rows.
    """

    model: str
    sha256: str
    table: str
    problems: int
    gpu_seconds: float

    def break_even(self, searches: Sequence[Convergence]) -> int:
        """The searches from which on these and the training take less GPU time than measuring everything."""
        saved = np.mean([one.exhaustive_gpu_seconds - one.gpu_seconds for one in searches])
        return int(np.ceil(self.gpu_seconds / saved))

    def ratio(self, searches: Sequence[Convergence]) -> float:
        """GPU time of measuring everything over that of these searches and the training."""
        spent = self.gpu_seconds + sum(one.gpu_seconds for one in searches)
        return sum(one.exhaustive_gpu_seconds for one in searches) / spent


def training_of(path: Path) -> Training:
    """The cost of the shipped model in a file.

    Raises
    ------
    ModelError
        If it learned from a table that is neither shipped nor among the results.
    """
    _, card = load_model(path)
    recorded, seconds = [*shipped_tables(), *_RESULTS.glob("*/*.parquet")], 0.0
    for known in card.tables:
        tables = [Table.read(path) for path in recorded if path.name == known.name]
        table = next((each for each in tables if each.card.sha256 == known.sha256), None)
        if table is None:
            raise ModelError(f"model {path} learned from {known.name}, which is neither shipped nor in {_RESULTS}")
        seconds += float(np.asarray(table.data["gpu_seconds"]).sum())
    names = ", ".join(known.name for known in card.tables)
    return Training(path.name, card.sha256, names, len(card.problems), seconds)


@dataclass(frozen=True)
class Speed:
    """The speed of a problem's kernels over `torch.mm`, by the race and by every row's own pairs.

    Attributes
    ----------
    problem, kind
        The problem, and which kind of problem it is.
    best, default
        Of the fastest configuration of the race and of the default that was recorded, by the race.
    best_alone, default_alone
        Of the fastest configuration of all rows and of that default, by their own pairs. The fastest of thousands is
        partly lucky.
    today_alone
        Of the default of this tilescout, by its own pairs.
    """

    problem: str
    kind: str
    best: float
    default: float
    best_alone: float
    default_alone: float
    today_alone: float


def kinds(table: Table) -> dict[str, str]:
    """The kind of each problem of a table; empty for one that the suite does not hold."""
    known = {entry.problem: entry.label.rpartition(", ")[2] for entry in find_suite(SUITE).entries}
    return {str(problem): known.get(str(problem), "") for problem in table.problems}


def speeds(table: Table) -> list[Speed]:
    """The speeds of every problem of a table whose fastest rows raced.

    Raises
    ------
    TableError
        If the table lacks the default of a problem.
    """
    template, device = template_of(table), find_device(table.card.device)
    kind_of = kinds(table)
    ratio, raced = (np.asarray(table.data[name].fill_null(np.inf)) for name in ("ratio", "raced_ratio"))
    found = []
    for problem in table.problems:
        rows, default = table.rows(problem), table.row(table.card.baselines[problem].default, problem)
        today = table.row(template.default(problem, device), problem)
        if default is None or today is None:
            raise TableError(f"{table.path} lacks the default of {problem}: record all of its sub-space")
        found.append(
            Speed(
                problem=str(problem),
                kind=kind_of[str(problem)],
                best=float(1 / raced[rows].min()),
                default=float(1 / raced[default]),
                best_alone=float(1 / ratio[rows].min()),
                default_alone=float(1 / ratio[default]),
                today_alone=float(1 / ratio[today]),
            )
        )
    return found


def checked_model(table: Table, model: Path | None = None, names: Iterable[str] | None = None) -> Path:
    """The model by which problems of a table are searched: the one named, else the shipped one of its space and device.

    Raises
    ------
    ModelError
        If there is none, or it was trained on a problem of the table; of these problems, where they are named.
    """
    path = model or shipped_model(table.card.space, table.card.device)
    if path is None:
        raise ModelError(f"no model of {table.card.space} on {table.card.device} is shipped")
    known = set(load_model(path)[1].problems) & set(map(str, table.problems) if names is None else names)
    if known:
        raise ModelError(f"{path.name} was trained on {min(known)}: it can't be judged on it")
    return path


def search(path: Path, name: str, sampler: str, seed: int, trials: int) -> tuple[str, Convergence]:
    """One search of a problem, by the shipped model where the sampler takes one."""
    table = Table.read(path)
    settings: Mapping[str, object] = {"model": checked_model(table)} if sampler == GUIDED else {}
    return sampler, convergence(table, name, sampler, seed, settings, trials)


def print_speeds(console: Console, found: Sequence[Speed], seed: int) -> dict[str, dict[str, list[float]]]:
    """Print and return the geometric means, with intervals and extremes, by kind and over all problems."""
    grid = Grid(title="speed over torch.mm: geometric mean [95 % over problems], least and largest")
    for heading in (
        "problems",
        "best of the sub-space, raced",
        "",
        "recorded default, raced",
        "",
        "default of today",
        "",
    ):
        grid.add_column(heading)
    means: dict[str, dict[str, list[float]]] = {}
    for kind in [*dict.fromkeys(one.kind for one in found), "all"]:
        of_kind = [one for one in found if kind in (one.kind, "all")]
        cells = [f"{kind} ({len(of_kind)})"]
        means[kind] = {}
        for name in ("best", "default", "today_alone"):
            values = [float(getattr(one, name)) for one in of_kind]
            mean, low, high = geometric_mean_interval(values, seed)
            means[kind][name] = [mean, low, high, min(values), max(values)]
            cells += [f"{mean:.3f} [{low:.3f}, {high:.3f}]", f"{min(values):.3f} to {max(values):.3f}"]
        grid.add_row(*cells)
    console.print(grid)
    return means


def print_searches(
    console: Console, found: Iterable[tuple[str, Convergence]], trials: int, training: Training
) -> dict[str, dict[str, float]]:
    """Print and return how soon and how well each strategy found the best of the table."""
    grid = Grid(title=f"searches of at most {trials} measurements, the default first")
    for heading in ("strategy", "figure", ""):
        grid.add_column(heading)
    by_sampler: dict[str, list[Convergence]] = {}
    for sampler, one in found:
        by_sampler.setdefault(sampler, []).append(one)
    figures: dict[str, dict[str, float]] = {}
    for sampler, searches in by_sampler.items():
        counts = np.array([one.within or np.inf for one in searches])
        regret = np.array([one.regret for one in searches])
        off = np.array([one.stopped is not None and one.regret > 0.01 for one in searches])
        spent = sum(one.gpu_seconds for one in searches)
        whole = sum(one.exhaustive_gpu_seconds for one in searches)
        row = {
            "searches": len(searches),
            "within_median": float(np.quantile(counts, 0.5, method="higher")),
            "within_90": float(np.quantile(counts, 0.9, method="higher")),
            "never": float(np.isinf(counts).mean()),
            "stopped": float(sum(one.stopped is not None for one in searches)),
            "stopped_median": float(np.median([one.stopped or trials for one in searches])),
            "stopped_mean": float(np.mean([one.stopped or trials for one in searches])),
            "off": float(off.sum()),
            "off_low": share_interval(int(off.sum()), len(searches))[0],
            "off_high": share_interval(int(off.sum()), len(searches))[1],
            "regret": float(regret.mean()),
            "gpu_time_ratio": whole / spent,
            "gpu_time_ratio_by_oracle": float(
                np.median([one.exhaustive_gpu_seconds / (one.within_gpu_seconds or np.inf) for one in searches])
            ),
        }
        if sampler == GUIDED:
            row["gpu_time_ratio_with_training"] = training.ratio(searches)
            row["break_even_searches"] = float(training.break_even(searches))
        figures[sampler] = row
        for name, value in row.items():
            grid.add_row(sampler, name, f"{value:.4g}")
    console.print(grid)
    console.print(
        f"{training.model}, sha256 {training.sha256[:12]}, learned from {training.table}: {training.problems} "
        f"problems, {training.gpu_seconds:.1f} s of GPU time to record",
        highlight=False,
        soft_wrap=True,
    )
    return figures


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    table: Path
    samplers: tuple[str, ...]
    seeds: int
    trials: int
    seed: int
    processes: int | None


@study("the table of the suite `out-of-sample`")
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--sampler", "samplers", multiple=True, metavar="NAME", help="Replay its searches too; repeatable.")
@click.option("--seeds", default=1, show_default=True, help="Searches of a problem; guided needs one.")
@click.option("--trials", default=TRIALS, show_default=True, help="Most measurements of a search.")
@seed_option
@processes_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Print the speeds, and how the searches do."""
    table, console = Table.read(asked.table), Console(width=160)
    found = speeds(table)
    result: dict[str, object] = {"problems": [asdict(one) for one in found]}
    result["speed"] = print_speeds(console, found, asked.seed)
    run.keep(result)
    if not asked.samplers:
        return
    training = training_of(checked_model(table))
    result["training"] = asdict(training)
    jobs = [
        (asked.table, one.problem, sampler, asked.seed + number, asked.trials)
        for sampler in asked.samplers
        for number in range(asked.seeds)
        for one in found
    ]
    done = sorted(
        each(search, jobs, asked.processes or available_cores(), "search"),
        key=lambda one: (asked.samplers.index(one[0]), one[1].problem),
    )
    result["searches"] = [{"sampler": sampler, **asdict(one)} for sampler, one in done]
    result["figures"] = print_searches(console, done, asked.trials, training)
    run.keep(result)
