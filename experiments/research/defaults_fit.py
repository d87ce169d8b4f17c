"""Fit the defaults of `gemm_sm90`: a portfolio from tables and predictions, and trees that rank it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.boosting import BoostingOptions, grow
from tilescout.costmodel.portfolio import CAP, choose_portfolio
from tilescout.search.tables.table import Table
from tilescout.spaces.constraints import Columns
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.defaults import Defaults
from tilescout.spaces.gemm_sm90.ranking import features
from tilescout.spaces.gemm_sm90.template import KNOBS, TEMPLATE, legal
from tilescout.spaces.knobs import Value
from tilescout.spaces.oblivious import ObliviousTrees
from tilescout.spaces.subspace import SubSpace

Row = tuple[Value, ...]
"""A configuration: its values in the order of the knobs."""


@dataclass(frozen=True)
class FitOptions:
    """How defaults are fitted. All were compared on problems left out, never on the suite `out-of-sample`.

    Attributes
    ----------
    kernels
        Configurations of a portfolio.
    drawn
        Random problems whose predicted times count as much as the recorded problems.
    cap
        Log of a time over the best, beyond which nothing is learned from a row.
    taste
        How fast the weight of a row falls with its log of the time over the best.
    rows
        Most rows of a problem that trees learn from, drawn at random.
    members
        Fits of another seed whose trees are averaged: it matters which of the best is chosen, and a single fit's choice
        hangs on its draws.
    boosting
        How trees are grown.
    seed
        Of all draws.
    """

    kernels: int = 192
    drawn: int = 300
    cap: float = 0.8
    taste: float = 3.0
    rows: int = 300
    members: int = 2
    boosting: BoostingOptions = field(default_factory=BoostingOptions)
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Recorded:
    """The measurements of a problem.

    Attributes
    ----------
    problem, device, table
        What was computed, where, and the name of the table.
    columns
        The configurations that may become defaults.
    rows
        The same, each by its values.
    logs
        Log of their time over the best of them, of shape [configurations].
    best
        Speed of the best of them over the library.
    """

    problem: GemmProblem
    device: Device
    table: str
    columns: Columns
    rows: Sequence[Row]
    logs: Floats
    best: float


def read(tables: Sequence[Table], subspace: SubSpace) -> list[Recorded]:
    """The recorded configurations of problems; one that was given up counts with the time of its pilot.

    Of 16-bit elements only those of the sub-space count: all of it was measured on the problems that judge the
    defaults in the end. The table of 8-bit elements samples the whole space, and all of it counts.
    """
    found = []
    for table in tables:
        device = find_device(table.card.device)
        pilots = np.asarray(table.data["pilot_us"].to_numpy(), dtype=np.float64)
        times = np.where(np.isfinite(table.times_us), table.times_us, pilots)
        for problem in table.problems:
            assert isinstance(problem, GemmProblem)
            whole, rows = TEMPLATE.space(problem, device), table.rows(problem)
            indices = whole.find(table.codes(whole.knobs)[rows])
            inside = subspace.holds(whole)[indices] if problem.element.bytes == 2 else True
            kept = np.flatnonzero((indices >= 0) & np.isfinite(times[rows]) & inside)
            kept = kept[np.argsort(indices[kept])]
            columns = whole.subset(indices[kept]).columns
            reached = times[rows[kept]]
            speed = table.card.baselines[problem].library_us / reached.min()
            logs = np.log(reached / reached.min())
            found.append(Recorded(problem, device, table.path.stem, columns, rows_of(columns), logs, float(speed)))
    return found


def rows_of(columns: Columns) -> list[Row]:
    """Each configuration of some columns by its values."""
    return list(zip(*(columns[knob.name].tolist() for knob in KNOBS), strict=True))


def columns_of(rows: Sequence[Row]) -> Columns:
    """The columns of configurations that are given by their values."""
    return {knob.name: np.array(values) for knob, values in zip(KNOBS, zip(*rows, strict=True), strict=True)}


def fit(problems: Sequence[Recorded], options: FitOptions, source: Mapping[str, str]) -> Defaults:
    """Portfolios and trees for defaults, from recorded problems: what the trees predict helps to choose a portfolio."""
    trees = learn(problems, options)
    pools = {size: pool(problems, size) for size in sorted({one.problem.element.bytes for one in problems})}
    portfolios = {size: portfolio(problems, rows, trees, size, options) for size, rows in pools.items()}
    return Defaults(portfolios, trees, source)


def pool(problems: Sequence[Recorded], element_bytes: int) -> list[Row]:
    """The configurations for elements of this size that were recorded on every problem for which they are legal."""
    known = [one for one in problems if one.problem.element.bytes == element_bytes]
    rows = sorted({row for one in known for row in one.rows}, key=str)
    places = {row: place for place, row in enumerate(rows)}
    columns = {**columns_of(rows), "place": np.arange(len(rows))}
    missing = np.zeros(len(rows), dtype=np.int64)
    for one in known:
        missing[legal(columns, one.problem, one.device)["place"]] += 1
        missing[[places[row] for row in one.rows]] -= 1
    return [row for row, count in zip(rows, missing.tolist(), strict=True) if count == 0]


def portfolio(
    problems: Sequence[Recorded], rows: Sequence[Row], trees: ObliviousTrees, element_bytes: int, options: FitOptions
) -> tuple[Row, ...]:
    """The configurations with the least regret on recorded problems and on random ones, as much on either."""
    known = [one for one in problems if one.problem.element.bytes == element_bytes]
    dtype = known[0].problem.signature
    logs = np.full((len(rows), len(known) + options.drawn), CAP)
    places = {row: place for place, row in enumerate(rows)}
    for at, one in enumerate(known):
        held = [(places[row], log) for row, log in zip(one.rows, one.logs.tolist(), strict=True) if row in places]
        logs[[place for place, _ in held], at] = [log for _, log in held]
    everywhere = {**columns_of(rows), "place": np.arange(len(rows))}
    for at, problem in enumerate(drawn_problems(dtype, options.drawn, options.seed), start=len(known)):
        left = legal(everywhere, problem, known[0].device)
        if len(left["place"]) == 0:
            continue  # no configuration of a sampled pool is legal for it: it tells nothing of which to choose
        said = trees.predict(features(TEMPLATE.tiling(left, problem), known[0].device))
        logs[left["place"], at] = said - said.min()
    weights = np.repeat([0.5 / len(known), 0.5 / options.drawn], [len(known), options.drawn])
    picked = choose_portfolio(logs, weights, options.kernels).picked
    return tuple(rows[place] for place in picked)


def drawn_problems(signature: str, count: int, seed: int) -> Iterator[GemmProblem]:
    """Random problems, their sizes spread evenly in the logarithm."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.uniform(np.log((1, 16, 256)), np.log((16384, 65536, 32768)), (count, 3)))
    for m, n, k in sizes:
        yield GemmProblem.parse(f"{int(m)}x{_whole(n)}x{_whole(k)}:{signature}")


def _whole(size: float) -> int:
    return max(int(size) // _STEP, 1) * _STEP


_STEP = 16  # what n and k of all types may be


def learn(problems: Sequence[Recorded], options: FitOptions) -> ObliviousTrees:
    """Trees that predict the log of a configuration's time over the best.

    Parameters
    ----------
    problems
        What is learned from.
    options
        How.
    """
    generator = np.random.default_rng(options.seed)
    values, targets, weights = [], [], []
    for one in problems:
        kept = np.sort(generator.permutation(np.flatnonzero(one.logs < options.cap))[: options.rows])
        target = one.logs[kept]
        values.append(features(TEMPLATE.tiling(one.columns, one.problem), one.device)[kept])
        targets.append(target)
        weights.append(np.exp(-options.taste * target) / np.sqrt(len(kept)))
    table, target, weight = np.concatenate(values), np.concatenate(targets), np.concatenate(weights)
    grown = [
        grow(table, target, weight, replace(options.boosting, seed=options.seed + member))
        for member in range(options.members)
    ]
    return ObliviousTrees(
        np.concatenate([trees.feature for trees in grown]),
        np.concatenate([trees.threshold for trees in grown]),
        (np.concatenate([trees.leaf for trees in grown]) / len(grown)).astype(np.float32),
        float(np.mean([trees.base for trees in grown])),
    )


def chosen(one: Recorded, defaults: Defaults) -> float:
    """Log of the time over the best of what defaults choose for a recorded problem, among what was measured on it."""
    known = set(one.rows)
    rows = [row for row in defaults.portfolios[one.problem.element.bytes] if row in known]
    columns = legal(columns_of(rows), one.problem, one.device)
    said = defaults.trees.predict(features(TEMPLATE.tiling(columns, one.problem), one.device))
    return float(one.logs[one.rows.index(rows_of(columns)[int(said.argmin())])])
