r"""Calibrate the rule by which a guided search stops, on problems that its model has not seen.

    python -m tilescout.experiments.research stop-rule search/tables/recorded/*.parquet --out stop-rule.json

The rule promises that at most one answer in ten is more than 1 % off. A search stops after so many trials in a row
without a faster one: its patience. The study finds the smallest patience that keeps the promise on a new problem, by
conformal risk control (A. Angelopoulos, S. Bates, A. Fisch, L. Lei, T. Schuster: Conformal risk control, 2022).

Models learn from the tables, as the shipped one does. Each problem is searched by a model that never saw its shape: of
ten parts of the shapes, drawn at random, it has not seen the problem's; with ``--unseen family`` nothing of its family.
The search is replayed, with its whole budget, and without the default: the shipped defaults were picked on such tables.
A live search proposes some trials before it knows the outcomes of those in front; the replays do, too.

After every measurement the study notes what is left to find. An answer that is more than 1 % off is a miss, whether the
search stopped by itself or used its budget up. Problems of one shape count as one, by their mean, and so do the
searches of a problem. The patience holds for problems that are drawn like these.

Beside it stand the best of two other rules by the same searches: a fixed count of trials and, where it was recorded,
the rule of an earlier version: the chance of a gain by the posterior, with standard deviations that a factor widens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
import optuna
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.blend import BlendOptions
from tilescout.experiments.commands.options import collected, processes_option, seed_option, store_option
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.experiments.compare.inference import share_interval
from tilescout.experiments.compare.processes import each
from tilescout.experiments.compare.truth import Truth
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers.guided import GuidedOptions, GuidedSampler
from tilescout.search.samplers.joint import ALIKE
from tilescout.search.studies.records import TrialRecord
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.loop import run
from tilescout.spaces.problems import Problem
from tilescout.spaces.shapes import shape_groups

RISKS = (0.1, 0.05)
"""Shares of answers that may be more than `GAIN` off: the promise of the default, and a stricter one."""

GAIN = 0.01
TRIALS = 64
TOLD_AFTER = 20
"""Measurements after which it is looked at what tells the searches with more left from the others."""

LEAST = GuidedOptions().least
AHEAD = (1, 8, 16)
"""A replay has one proposal in flight, a live search up to 16: fewer on few cores, and where it is about to stop."""

PARTS = 10
"""Parts of the problems; a model has not seen one of them."""

BEHIND = (3, 5, 6, 8, 14)

UNSEEN = ("shape", "family")

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Watched:
    """A search with its whole budget.

    Attributes
    ----------
    table, problem, shape, family
        What was searched, the label of its shape, and its family.
    left
        After each measurement, the best found over the best recorded, less 1.
    gpu_seconds
        Recorded GPU seconds of each measurement.
    ahead
        Most proposals in flight.
    widest
        After each measurement, the factor from which on a rule by the chance of a gain would have gone on; 0 where it
        may not stop yet. Empty where that was not recorded.
    to_beat, least
        The `left` of what is to be beaten, None for nothing, and the measurements before which the search does not end.
    """

    table: str
    problem: str
    shape: str
    family: str
    left: Sequence[float]
    gpu_seconds: Sequence[float]
    ahead: int = 1
    widest: Sequence[float] = ()
    to_beat: float | None = None
    least: int = LEAST

    @property
    def since(self) -> Counts:
        """After each measurement, how many there were since the best so far was found."""
        numbers = np.arange(len(self.left))
        better = np.diff(self.left, prepend=np.inf if self.to_beat is None else self.to_beat) < 0
        return np.asarray(numbers - np.maximum.accumulate(np.where(better, numbers, -1)))

    @property
    def since_alike(self) -> Counts:
        """The same since the first that is as fast as the best so far, but for `ALIKE`."""
        times = 1 + np.array(self.left)
        firsts = np.searchsorted(-times, -times * (1 + ALIKE))  # they never grow
        found = times * (1 + ALIKE) < (np.inf if self.to_beat is None else 1 + self.to_beat)
        return np.asarray(np.arange(len(times)) - np.where(found, firsts, -1))

    def first(self, holds: NDArray[np.bool_]) -> int:
        """The measurements after which a condition holds for the first time; all, if it never does."""
        at = np.flatnonzero(holds[self.least - 1 :])
        return self.least + int(at[0]) if len(at) else len(self.left)


def behind(one: Watched, over: float) -> Watched:
    """The same search behind one of another space, whose best takes `over` times as long as this one's best recorded.

    What is left is that of the faster of both.
    """
    least = min(over, 1.0)
    left = np.minimum(1 + np.array(one.left), over) / least - 1
    return replace(one, left=left.tolist(), to_beat=over / least - 1, least=1)


def behind_others(searches: Sequence[Watched], tables: Sequence[Table], others: Sequence[Table]) -> list[Watched]:
    """The searches of problems that tables of another space hold, too, each behind the best that is recorded there."""
    own, other = (
        {str(problem): _least_ratio(table, problem) for table in some for problem in table.problems}
        for some in (tables, others)
    )
    return [behind(one, other[one.problem] / own[one.problem]) for one in searches if one.problem in other]


def _least_ratio(table: Table, problem: Problem) -> float:
    """The time of the fastest row of a problem over the library's of that row."""
    return float(np.asarray(table.data["ratio"].fill_null(np.inf))[table.rows(problem)].min())


class Rule(Protocol):
    """The measurements after which a search ends, by a limit; the larger the limit, the later."""

    def __call__(self, one: Watched, limit: float) -> int:
        """How many."""


def by_count(one: Watched, limit: float) -> int:
    """So many."""
    return min(int(limit), len(one.left))


def by_patience(one: Watched, limit: float) -> int:
    """Until so many in a row found none that is faster."""
    return one.first(one.since >= limit)


def by_patience_alike(one: Watched, limit: float) -> int:
    """Until so many in a row found none that is faster by more than `ALIKE`."""
    return one.first(one.since_alike >= limit)


def by_chance(one: Watched, limit: float) -> int:
    """Until a gain is unlikely with standard deviations that are widened by this factor."""
    return one.first(np.asarray(one.widest) > limit)


def missed(one: Watched, rule: Rule, limit: float) -> bool:
    """Whether the answer is more than `GAIN` off."""
    return one.left[rule(one, limit) - 1] > GAIN


def parts_of(problems: Sequence[Problem], seed: int) -> dict[str, tuple[str, ...]]:
    """Of each problem, those that its model has not seen: one of `PARTS` parts of all, with whole shapes."""
    labels = shape_groups(problems)
    shapes = np.random.default_rng(seed).permutation(list(dict.fromkeys(labels))).tolist()
    part_of = {shape: at % PARTS for at, shape in enumerate(shapes)}
    own = [part_of[label] for label in labels]
    held = [
        tuple(str(problem) for problem, part in zip(problems, own, strict=True) if part == at) for at in range(PARTS)
    ]
    return {str(problem): held[part] for problem, part in zip(problems, own, strict=True)}


def watch(
    models: HeldOutModels, path: Path, name: str, shape: str, without: tuple[str, ...], trials: int, ahead: int
) -> Watched:
    """The search of a problem of a table by a model that never saw some problems."""
    table = Table.read(path)
    problem = table.problem(name)
    engine = ReplayEngine(table, template_of(table), ahead=ahead)
    recording = engine.recording(problem)
    truth = Truth.of(recording)
    sampler = GuidedSampler(recording.space, 0, model=models.without(without))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = optuna.create_study(sampler=sampler, direction="minimize")
    tried: list[int] = []

    def note(trial: TrialRecord) -> None:
        tried.append(trial.index)

    with Evaluator(engine, problem) as evaluator:
        run(search, evaluator, Budget(trials, whole=True), evaluator.library_us(), note)
    left = np.minimum.accumulate(truth.times_us[tried]) / truth.best_us - 1
    return Watched(
        table=table.path.stem,
        problem=name,
        shape=shape,
        family=problem.family,
        left=left.tolist(),
        gpu_seconds=truth.gpu_seconds[tried].tolist(),
        ahead=ahead,
    )


def risk(searches: Sequence[Watched], rule: Rule, limit: float) -> float:
    """The largest share of answers that are expected to miss on a new problem, by conformal risk control.

    With n shapes whose mean share of misses is r, it is (n r + 1) / (n + 1).
    """
    shapes: dict[str, list[bool]] = {}
    for one in searches:
        shapes.setdefault(one.shape, []).append(missed(one, rule, limit))
    return (sum(float(np.mean(each)) for each in shapes.values()) + 1) / (len(shapes) + 1)


def calibrated(searches: Sequence[Watched], rule: Rule, limits: Sequence[float], promise: float) -> float | None:
    """The first of some limits, the smallest first, that keeps a promise; None if none does."""
    return next((limit for limit in limits if risk(searches, rule, limit) <= promise), None)


def figures(searches: Sequence[Watched], rule: Rule, limit: float) -> dict[str, float]:
    """How searches do that stop by a rule: their risk and misses, the measurements they take, their GPU seconds."""
    ends = [rule(one, limit) for one in searches]
    misses = sum(missed(one, rule, limit) for one in searches)
    low, high = share_interval(misses, len(searches))
    return {
        "limit": limit,
        "searches": len(searches),
        "risk": risk(searches, rule, limit),
        "misses": misses,
        "share_low": low,
        "share_high": high,
        "regret": float(np.mean([one.left[end - 1] for one, end in zip(searches, ends, strict=True)])),
        "measurements_median": float(np.median(ends)),
        "measurements_mean": float(np.mean(ends)),
        "measurements_90": float(np.quantile(ends, 0.9)),
        "gpu_seconds_mean": float(np.mean([sum(s.gpu_seconds[:end]) for s, end in zip(searches, ends, strict=True)])),
    }


def told_apart(searches: Sequence[Watched], done: Callable[[Watched], float]) -> float:
    """The share of pairs of searches that a score tells apart after `TOLD_AFTER` measurements: with more and less left.

    Parameters
    ----------
    searches
        Of each pair, one has more than `GAIN` left and one has not.
    done
        The score; larger where less is left. Where it is the same, the pair counts half.
    """
    scores = np.array([done(one) for one in searches])
    bad = np.array([one.left[TOLD_AFTER - 1] > GAIN for one in searches])
    above = scores[~bad][:, None] - scores[bad]
    return float(np.mean((above > 0) + 0.5 * (above == 0)))


def rules(searches: Sequence[Watched]) -> dict[str, tuple[Rule, Sequence[float]]]:
    """The rules that can be judged by the searches, with the limits that are worth a look."""
    counts = range(1, max(len(one.left) for one in searches) + 1)
    found: dict[str, tuple[Rule, Sequence[float]]] = {
        "patience": (by_patience, counts),
        "alike": (by_patience_alike, counts),
        "count": (by_count, counts),
    }
    if all(one.widest for one in searches):
        found["chance"] = by_chance, np.linspace(1, 4, 301).tolist()
    return found


def print_figures(
    console: Console, searches: Sequence[Watched], patiences: Sequence[int] = (GuidedOptions().patience, 18, 24)
) -> dict[str, object]:
    """Print and return the limits that keep the promises, what they cost, and what others of the patience do."""
    limits = {
        name: {promise: calibrated(searches, rule, tried, promise) for promise in RISKS}
        for name, (rule, tried) in rules(searches).items()
    }
    rows: list[dict[str, Any]] = []
    for name, kept in limits.items():
        for promise, limit in kept.items():
            if limit is not None:
                rows += by_flight(searches, name, f"{promise:.0%}", limit)
    for patience in patiences:
        rows += by_flight(searches, "patience", "", patience)
        rows += by_flight(searches, "alike", "", patience)
    shapes = len({one.shape for one in searches})
    print_rows(console, f"{len(searches)} searches of {shapes} shapes that the models have not seen", rows)
    apart: dict[str, float] = {}
    if all(len(one.left) >= TOLD_AFTER for one in searches):
        apart["patience"] = told_apart(searches, lambda one: float(one.since[TOLD_AFTER - 1]))
        if "chance" in limits:
            apart["chance"] = told_apart(searches, lambda one: one.widest[TOLD_AFTER - 1])
        console.print(
            f"after {TOLD_AFTER} measurements, pairs of searches told apart by "
            + ", ".join(f"{name} {share:.0%}" for name, share in apart.items())
        )
    for promise, limit in limits["patience"].items():
        if limit is None:
            console.print(f"no patience promises {promise:.0%}: {shapes} shapes are too few, or the budget is")
    calibrated_to = {name: {f"{promise:g}": limit for promise, limit in kept.items()} for name, kept in limits.items()}
    return {"calibrated": calibrated_to, "shapes": shapes, "figures": rows, "told_apart": apart}


def by_flight(searches: Sequence[Watched], name: str, promise: str, limit: float) -> Iterator[dict[str, Any]]:
    """The figures of a rule with a limit: over all searches, and over those with so many proposals in flight."""
    rule, _ = rules(searches)[name]
    known = [str(ahead) for ahead in sorted({one.ahead for one in searches})]
    for ahead in known if len(known) == 1 else ["all", *known]:
        some = [one for one in searches if ahead in ("all", str(one.ahead))]
        yield {"rule": name, "promise": promise, "ahead": ahead, **figures(some, rule, limit)}


def print_rows(console: Console, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the figures of rules with their limits."""
    grid = Grid(title=title, title_justify="left")
    for heading in ("rule", "promise", "limit", "in flight", "risk", "misses [95 %]", "measurements: median"):
        grid.add_column(heading, justify="right")
    for heading in ("mean", "90 %", "regret"):
        grid.add_column(heading, justify="right")
    for row in rows:
        grid.add_row(
            row["rule"],
            row["promise"],
            f"{row['limit']:g}",
            row["ahead"],
            f"{row['risk']:.3f}",
            f"{row['misses']:g} [{row['share_low']:.1%}, {row['share_high']:.1%}]",
            f"{row['measurements_median']:g}",
            f"{row['measurements_mean']:.1f}",
            f"{row['measurements_90']:g}",
            f"{row['regret']:.2%}",
        )
    console.print(grid)


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    tables: tuple[Path, ...]
    beside: tuple[Path, ...]
    learned: tuple[Path, ...]
    unseen: str
    seed: int
    trials: int
    ahead: tuple[int, ...]
    processes: int | None
    store: Path


@study(TABLES, again=True)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1)
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Table of another space, whose best is to be beaten: the rule is judged behind its search, too; repeatable.",
)
@click.option(
    "--learn",
    "learned",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Table that models learn from; repeatable. [default: TABLES]",
)
@click.option(
    "--unseen",
    type=click.Choice(UNSEEN),
    default=UNSEEN[0],
    show_default=True,
    help="What a model has not seen of the problem that it searches: its shape, or its whole family.",
)
@seed_option
@click.option("--trials", default=TRIALS, show_default=True, help="Measurements of a search.")
@click.option(
    "--ahead",
    type=click.IntRange(min=1),
    multiple=True,
    default=AHEAD,
    show_default=True,
    help="Most proposals in flight; repeatable.",
)
@processes_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Search every problem of the tables, and print the patience."""
    tables, others = ([Table.read(path) for path in paths] for paths in (asked.tables, asked.beside))
    if run.record is not None:
        again = print_all([Watched(**one) for one in run.record.result["searches"]], tables, others)
        if run.out is not None:
            run.keep(again)
        return
    if not tables:
        raise click.UsageError("name tables, or a file with --again")
    processes = asked.processes or available_cores()
    learned = [Table.read(path) for path in asked.learned] or tables
    models = HeldOutModels.of(learned, asked.store, BlendOptions())
    problems = [(table, problem) for table in tables for problem in table.problems]
    if asked.unseen == "family":
        without = {str(problem): models.of_family(problem) for _, problem in problems}
    else:
        known = dict.fromkeys([*models.problems(), *(problem for _, problem in problems)])
        without = parts_of(list(known), asked.seed)
    models.train(list(dict.fromkeys(without.values())), processes)
    labels = shape_groups([problem for _, problem in problems])
    jobs = [
        (models, table.path, str(problem), label, without[str(problem)], asked.trials, ahead)
        for (table, problem), label in zip(problems, labels, strict=True)
        for ahead in asked.ahead
    ]
    found = sorted(each(watch, jobs, processes, "search"), key=lambda one: (one.table, one.problem, one.ahead))
    result = {"searches": [asdict(one) for one in found]}
    run.keep({**result, **print_all(found, tables, others)})


def print_all(searches: Sequence[Watched], tables: Sequence[Table], others: Sequence[Table]) -> dict[str, object]:
    """Print and return the figures of searches and, with tables of another space, of the same behind its search."""
    console = Console(width=160)
    result = print_figures(console, searches)
    if others:
        result["behind"] = print_figures(console, behind_others(searches, tables, others), BEHIND)
    return result
