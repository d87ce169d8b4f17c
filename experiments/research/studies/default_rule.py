"""Fit the rule of what to run of a matrix product where nothing may be measured, and judge it on problems left out.

    python -m tilescout.experiments.research default-rule sweep.json.gz … --live live.json … --out rule.json

It learns from records of `default-sweep`: the times over the library's of kernels of both spaces, in chains, on random
problems. What they take longer in a sandwich is added first. It is the median by which the defaults of records of
`default-live`, which name problems of the sweep, were off: of problems whose k the library splits, and of the others.
With `--short` long products do not tell it, whose times differ by more than that from host to host.

With `--answers` it learns from races of the answers of an earlier rule, too.

Kernels are chosen so that the best of them has the least mean regret over the problems. Trees then learn the log of the
time over the library's. The figures are of problems left out, a fifth at a time: of the random ones and of those of
published models, which the records of `default-live` hold. Beside them stand those records' own. With `--write` the
file that is shipped is written.

Problems of the suite `out-of-sample` may not be among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.boosting import BoostingOptions, grow
from tilescout.costmodel.portfolio import choose_portfolio
from tilescout.experiments.commands.options import Finite, seed_option
from tilescout.experiments.commands.outputs import check_writable
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.default_kernels import DEVICE
from tilescout.experiments.research.studies.default_live import KEPT_OUT, SLOW
from tilescout.experiments.research.studies.default_live import told as told_of
from tilescout.spaces.errors import TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.unmeasured import (
    MARGIN,
    SHARING,
    UNSURE_US,
    WHOLE,
    Kernel,
    Rule,
    Rules,
    Tiles,
    features,
    tiles_of,
    write_rules,
)
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.oblivious import ObliviousTrees
from tilescout.spaces.suite import find_suite

_SPLIT = 4  # the place of the parts of k in what the library's heuristic names
_FOLDS = 5


@dataclass(frozen=True)
class FitOptions:
    """How a rule is fitted.

    Attributes
    ----------
    kernels
        Most kernels of the list.
    taste
        How fast the weight of a kernel falls with the log of its time over the best on the problem.
    cap
        Log of a time over the library's, beyond which all are alike.
    members
        Fits of another seed whose trees are averaged.
    boosting
        How trees are grown.
    """

    kernels: int = 64
    taste: float = 1.5
    cap: float = 1.0
    members: int = 2
    boosting: BoostingOptions = field(
        default_factory=lambda: BoostingOptions(trees=120, levels=5, rate=0.1, columns=0.35)
    )


@dataclass(frozen=True, eq=False)
class Seen:
    """The kernels that were glanced at on a problem.

    Attributes
    ----------
    problem
        What was computed.
    library_us
        The library's time, in µs.
    splits
        Whether the library's kernel splits k.
    numbers
        The kernels, by their numbers among all of the sweeps.
    logs
        Log of their times over the library's, of shape [numbers].
    raced
        Whether they were raced in sandwiches; else they were glanced at in chains.
    """

    problem: GemmProblem
    library_us: float
    splits: bool
    numbers: NDArray[np.int64]
    logs: Floats
    raced: bool = False


def read(paths: Sequence[Path]) -> tuple[list[Kernel], list[Seen]]:
    """The kernels and the problems of sweeps of one signature.

    Raises
    ------
    TableError
        If a problem is of the suite that nothing is chosen on.
    """
    kernels: dict[Kernel, int] = {}
    seen = []
    for path in paths:
        result = Record.read(path).result
        numbers = [
            [kernels.setdefault((space, Configuration.of(each)), len(kernels)) for each in listed]
            for space, listed in zip((WHOLE, SHARING), result["kernels"], strict=True)
        ]
        for one in result["problems"]:
            told = [
                (of_space[int(number)], float(np.log(np.median(rounds))))
                for of_space, ratios in zip(numbers, one["ratios"], strict=True)
                for number, rounds in ratios.items()
            ]
            known, logs = (np.array(each) for each in zip(*told, strict=True))
            splits = one["guess"] is not None and one["guess"][_SPLIT] > 1
            seen.append(Seen(GemmProblem.parse(one["problem"]), one["library_us"], splits, known, logs))
    _refuse_kept_out(seen)
    return list(kernels), seen


def off_in_sandwiches(
    kernels: Sequence[Kernel], seen: Sequence[Seen], live: Sequence[Mapping[str, Any]], short_us: float
) -> tuple[float, float]:
    """How many µs a kernel takes longer in a sandwich: where the library splits no k, and where it does.

    It is told by problems on which the library takes at most ``short_us``: of a product of 300 µs a hundredth is more.
    """
    by_text = {str(one.problem): one for one in seen}
    found: tuple[list[float], list[float]] = ([], [])
    for each in live:
        one = by_text.get(each["problem"])
        number = kernels.index((WHOLE, Configuration.of(each["configuration"]))) if one is not None else -1
        if one is not None and number in one.numbers and one.library_us <= short_us:
            chain = float(np.exp(one.logs[one.numbers.tolist().index(number)]))
            found[one.splits].append((1 / each["speed"] - chain) * one.library_us)
    plain, split = (max(float(np.median(each)), 0.0) if each else 0.0 for each in found)
    return plain, split


def answered(kernels: Sequence[Kernel], problems: Sequence[Mapping[str, Any]]) -> list[Seen]:
    """The answers of an earlier rule that were raced, each as the only kernel that was seen on its problem.

    Raises
    ------
    TableError
        If a problem is of the suite that nothing is chosen on.
    """
    found = []
    for one in problems:
        if "answer" in one:
            kernel = one["answer"]["space"], Configuration.of(one["answer"]["configuration"])
            log = -np.log(np.array([one["answer_speed"]]))
            number = np.array([kernels.index(kernel)])
            found.append(Seen(GemmProblem.parse(one["problem"]), one["library_us"], False, number, log, raced=True))
    _refuse_kept_out(found)
    return found


def _refuse_kept_out(seen: Sequence[Seen]) -> None:
    if known := set(find_suite(KEPT_OUT).problems) & {str(one.problem) for one in seen}:
        raise TableError(f"{min(known)} is of the suite {KEPT_OUT}: nothing is fitted to it")


def in_sandwiches(one: Seen, off: tuple[float, float]) -> Seen:
    """The same with the times that are expected in a sandwich."""
    return one if one.raced else replace(one, logs=np.log(np.exp(one.logs) + off[one.splits] / one.library_us))


def fit(kernels: Sequence[Kernel], tiles: Tiles, seen: Sequence[Seen], options: FitOptions, seed: int) -> Rule:
    """The rule of some problems."""
    regret = np.full((len(kernels), len(seen)), np.inf)
    for at, one in enumerate(seen):
        regret[one.numbers, at] = one.logs - one.logs.min()
    picked = sorted(choose_portfolio(regret, np.full(len(seen), 1 / len(seen)), options.kernels).picked)
    values, targets, weights = [], [], []
    for one in seen:
        values.append(features(tiles.take(one.numbers), one.problem, DEVICE)[0])
        targets.append(np.clip(one.logs, -options.cap, options.cap))
        weights.append(np.exp(-options.taste * (one.logs - one.logs.min())))
    table, target, weight = np.concatenate(values, axis=1).T, np.concatenate(targets), np.concatenate(weights)
    grown = [
        grow(table, target, weight, replace(options.boosting, seed=seed + member)) for member in range(options.members)
    ]
    trees = ObliviousTrees(
        np.concatenate([each.feature for each in grown]),
        np.concatenate([each.threshold for each in grown]),
        (np.concatenate([each.leaf for each in grown]) / len(grown)).astype(np.float32),
        float(np.mean([each.base for each in grown])),
    )
    return Rule(tuple(kernels[number] for number in picked), trees)


@dataclass(frozen=True)
class Judged:
    """The kernel that a rule names on a problem: logs of its time over the library's, and of the least one seen."""

    problem: str
    raced: bool
    runs: bool
    expected: float
    seen: float
    chain: float
    least: float


def left_out(
    kernels: Sequence[Kernel],
    tiles: Tiles,
    seen: Sequence[Seen],
    off: tuple[float, float],
    options: FitOptions,
    seed: int,
) -> list[Judged]:
    """The answers of rules that were fitted to other problems, among the kernels of theirs that were glanced at."""
    fold = np.random.default_rng(seed).permutation(len(seen)) % _FOLDS
    numbers = {kernel: number for number, kernel in enumerate(kernels)}
    sandwiched = [in_sandwiches(one, off) for one in seen]
    found: list[Judged | None] = [None] * len(seen)
    for part in range(_FOLDS):
        rule = fit(kernels, tiles, [one for at, one in enumerate(sandwiched) if fold[at] != part], options, seed)
        listed = [numbers[kernel] for kernel in rule.kernels]
        for at in np.flatnonzero(fold == part).tolist():
            one = sandwiched[at]
            shown = np.flatnonzero(np.isin(one.numbers, listed))
            best = rule.best(tiles.take(one.numbers[shown]), one.problem, DEVICE)
            if best is not None:
                chosen = shown[best.number]
                told = (
                    one.raced,
                    best.runs,
                    best.log,
                    float(one.logs[chosen]),
                    float(seen[at].logs[chosen]),
                    float(one.logs.min()),
                )
                found[at] = Judged(str(one.problem), *told)
    return [each for each in found if each is not None]


def figures(judged: Sequence[Judged]) -> dict[str, float]:
    """Speeds over the library's of the answers: always, and where the library runs unless a gain is expected."""
    runs, seen, chain, least = (
        np.array([getattr(one, name) for one in judged]) for name in ("runs", "seen", "chain", "least")
    )
    kept = np.where(runs, seen, 0.0)
    return {
        "problems": len(judged),
        "always": float(np.exp(-seen.mean())),
        "best": float(np.exp(-np.minimum(least, 0.0).mean())),
        "runs": int(runs.sum()),
        "chosen": float(np.exp(-kept.mean())),
        "least": float(np.exp(-kept.max())),
        "slow": int((np.exp(-kept) < SLOW).sum()),
        "chosen_in_chains": float(np.exp(-np.where(runs, chain, 0.0).mean())),
    }


def print_figures(told: Mapping[str, Mapping[str, float]]) -> None:
    """Print the figures of groups of problems."""
    grid = Grid(title="speed over the library's, in sandwiches unless said")
    for heading in (
        "problems",
        "",
        "the best kernel seen, or the library",
        "always ours",
        "runs on",
        "ours or library",
    ):
        grid.add_column(heading, justify="right")
    for heading in ("least", f"below {SLOW}", "ours or library, in chains"):
        grid.add_column(heading, justify="right")
    for name, one in told.items():
        means = (f"{one[key]:.4f}" for key in ("best", "always"))
        rest = (str(one["runs"]), f"{one['chosen']:.4f}", f"{one['least']:.3f}", str(one["slow"]))
        grid.add_row(name, str(one["problems"]), *means, *rest, f"{one['chosen_in_chains']:.4f}")
    Console(width=140).print(grid)


def _signature(one: Mapping[str, Any]) -> str:
    return GemmProblem.parse(one["problem"]).signature


@study("records of `default-sweep` and `default-live`")
@click.argument("sweeps", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--live", type=click.Path(path_type=Path), multiple=True, help="A record of default-live. Repeatable.")
@click.option(
    "--answers",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A record of default-live, whose answers are learned from. Repeatable.",
)
@click.option(
    "--short",
    type=Finite(min=0),
    default=1e6,
    show_default=True,
    help="µs of the library: what a sandwich adds is told by no longer product.",
)
@click.option("--write", type=click.Path(path_type=Path), help="Fit to all problems, and write the rules there.")
@seed_option
def main(
    run: Run,
    sweeps: tuple[Path, ...],
    live: tuple[Path, ...],
    answers: tuple[Path, ...],
    short: float,
    write: Path | None,
    seed: int,
) -> None:
    """Judge rules on problems left out, by signature."""
    if write is not None:
        check_writable(write)
    told_live = [one for path in live for one in Record.read(path).result["problems"]]
    told_answers = [one for path in answers for one in Record.read(path).result["problems"]]
    published = {one["problem"] for one in told_live}
    by_signature: dict[str, list[Path]] = {}
    for path in sweeps:
        by_signature.setdefault(Record.read(path).result["signature"], []).append(path)
    rules: dict[str, Rule] = {}
    kept: dict[str, Any] = {}
    told: dict[str, dict[str, float]] = {}
    for signature, paths in by_signature.items():
        kernels, seen = read(paths)
        seen += answered(kernels, [one for one in told_answers if _signature(one) == signature])
        tiles, off = tiles_of(kernels, signature, DEVICE), off_in_sandwiches(kernels, seen, told_live, short)
        judged = left_out(kernels, tiles, seen, off, FitOptions(), seed)
        for name, group in (
            (f"{signature} random", [one for one in judged if one.problem not in published and not one.raced]),
            (f"{signature} published", [one for one in judged if one.problem in published and not one.raced]),
            (f"{signature} answered before", [one for one in judged if one.raced]),
        ):
            if group:
                told[name] = figures(group)
        kept[signature] = {"off_us": off, "judged": [vars(one) for one in judged]}
        if write is not None:
            rules[signature] = fit(kernels, tiles, [in_sandwiches(one, off) for one in seen], FitOptions(), seed)
    print_figures(told)
    if write is not None:
        source = {path.name: sha256(path.read_bytes()).hexdigest() for path in (*sweeps, *live, *answers)}
        write_rules(write, Rules(rules, source))
    run.keep(
        {"figures": told, "defaults": told_of(told_live), "margin": MARGIN, "unsure_us": UNSURE_US, "signatures": kept}
    )
