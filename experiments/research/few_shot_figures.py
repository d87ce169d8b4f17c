"""The figures of searches on kernels of which no table and no model exist: medians over problems, and their table.

The regret after some trials is how much slower the fastest of these is than the fastest of the table. Of a problem it
is the mean over the seeds; trials to within 2 % are the median over them. A figure of a family is the median over its
problems, with a bootstrap interval over them; of one problem there is none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from tilescout.experiments.finite import finite

AFTER = (1, 5, 10, 20, 50)
TOLERANCE = 0.02

RESAMPLES = 10_000


@dataclass(frozen=True)
class Search:
    """One search of a problem.

    Attributes
    ----------
    family, table, problem, strategy, seed
        The kernel's space, the table's name, the problem, the strategy with its options, and the number of the search.
    regret
        How much slower the fastest is than the fastest of the table, after each of `AFTER` trials.
    within
        Trials to within `TOLERANCE`; None if it was not reached.
    stopped
        Trials after which the sampler would have stopped by itself; None if it would not have.
    left
        The regret there; None likewise.
    """

    family: str
    table: str
    problem: str
    strategy: str
    seed: int
    regret: tuple[float, ...]
    within: int | None
    stopped: int | None
    left: float | None

    @property
    def trials(self) -> float:
        """Trials to within `TOLERANCE`; infinite if it was not reached."""
        return np.inf if self.within is None else float(self.within)


Middle = tuple[float, float, float]
"""A median, and the ends of its 95 % interval, which are no numbers where there is none."""


@dataclass(frozen=True)
class Figures:
    """How good a strategy is on a family.

    Attributes
    ----------
    problems, searches
        How many.
    regret
        After each of `AFTER` trials.
    within
        Trials to within `TOLERANCE`.
    found
        Share of the searches that came so far.
    stopped, off
        Searches that would have stopped by themselves, and those of them with more than 1 % left to find.
    """

    problems: int
    searches: int
    regret: tuple[Middle, ...]
    within: Middle
    found: float
    stopped: int
    off: int

    @classmethod
    def of(cls, found: Sequence[Search]) -> Self:
        """The figures of searches by one strategy on one family."""
        problems: dict[tuple[str, str], list[Search]] = {}
        for one in found:
            problems.setdefault((one.table, one.problem), []).append(one)
        regrets = np.array([np.mean([one.regret for one in group], axis=0) for group in problems.values()])
        counts = [_median([one.trials for one in group]) for group in problems.values()]
        left = [one.left for one in found if one.left is not None]
        return cls(
            problems=len(problems),
            searches=len(found),
            regret=tuple(median_over_problems(column) for column in regrets.T),
            within=median_over_problems(counts),
            found=float(np.mean([one.within is not None for one in found])),
            stopped=len(left),
            off=sum(regret > 0.01 for regret in left),
        )

    def plain(self) -> dict[str, Any]:
        """The figures as JSON can hold them: what is infinite or no number is null."""
        plain: dict[str, Any] = finite(asdict(self))
        return plain


def median_over_problems(values: Sequence[float] | NDArray[np.float64]) -> Middle:
    """The median, with the ends of its 95 % interval by a bootstrap over the problems; values may be infinite.

    One problem does not tell how others would differ: it has no interval.
    """
    given = np.asarray(values, dtype=np.float64)
    if len(given) < 2:
        return _median(given), math.nan, math.nan
    drawn = np.random.default_rng(0).choice(given, (RESAMPLES, len(given)))
    low, high = np.quantile(np.quantile(drawn, 0.5, axis=1, method="higher"), [0.025, 0.975], method="higher")
    return _median(given), float(low), float(high)


def _median(values: Sequence[float] | NDArray[np.float64]) -> float:
    """One of the values, as a mean of two is none where one of them is infinite."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), 0.5, method="higher"))


def figures_of(found: Iterable[Search]) -> dict[str, dict[str, Figures]]:
    """The figures of each strategy on each family."""
    grouped: dict[str, dict[str, list[Search]]] = {}
    for one in found:
        grouped.setdefault(one.family, {}).setdefault(one.strategy, []).append(one)
    return {
        family: {strategy: Figures.of(searches) for strategy, searches in held.items()}
        for family, held in grouped.items()
    }


def print_all(console: Console, models: Mapping[str, str], found: Iterable[Search]) -> None:
    """Print the figures of all families, with the model that `guided` had on each."""
    for family, figures in figures_of(found).items():
        print_figures(console, family, models[family], figures)


def print_figures(console: Console, family: str, model: str, figures: Mapping[str, Figures]) -> None:
    """Print the figures of a family, a row a strategy."""
    first = next(iter(figures.values()))
    source = f"guided has the model {model}" if model else "no relative has a model"
    of = f"{first.problems} problems, {source}: medians [95 % over problems]"
    if first.problems < 2:
        of = f"one problem, {source}: no intervals, as these are over problems"
    grid = Grid(title=escape(f"{family}, {of}"))
    grid.add_column("strategy")
    for after, _ in zip(AFTER, first.regret, strict=False):
        grid.add_column(f"left after {after}")
    for heading in ("trials to 2 %", "found", "stopped, more than 1 % off"):
        grid.add_column(heading)
    for strategy, row in figures.items():
        left = [_shown(middle, "{:.1%}") for middle in row.regret]
        stops = f"{row.stopped} of {row.searches}, {row.off}"
        grid.add_row(strategy, *left, _shown(row.within, "{:g}"), f"{row.found:.0%}", stops)
    console.print(grid)


def _shown(middle: Middle, form: str) -> str:
    value, low, high = map(form.format, middle)
    return value if math.isnan(middle[1]) else escape(f"{value} [{low}, {high}]")
