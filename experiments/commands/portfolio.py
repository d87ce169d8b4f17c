"""``tilescout portfolio``: the few kernels that serve many problems, and what that costs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.features import space_features
from tilescout.costmodel.portfolio import CAP, Portfolio, choose_portfolio
from tilescout.experiments.commands.completion import TABLE, complete_suites
from tilescout.experiments.commands.options import (
    Once,
    collected,
    device_option,
    examples,
    json_option,
    space_argument,
    suite_problems,
)
from tilescout.experiments.commands.outputs import check_plot, check_result, console_beside, write_result
from tilescout.experiments.commands.predict import LEARNED, find_model, model_option
from tilescout.search.export.grouped.dispatch import grouped_family
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TableError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, load_template
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import number_of

Codes = tuple[int, ...]
_NOTHING = 1e-12  # no kernel is worth so little of a regret, as a log
_SHOWN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # counts of kernels that have a row


@dataclass(frozen=True)
class PortfolioRequest:
    """The parameters of the command; its help text says what each means."""

    space: str
    kernels: int
    tables: tuple[Path, ...]
    suite: str | None
    signature: str | None
    model: str
    exchanges: int
    folds: int | None
    device: str
    plot: Path | None
    json_path: Path | None


@dataclass(frozen=True)
class Regrets:
    """The regret of kernels on problems.

    Attributes
    ----------
    kernels
        The candidates: codes of their values, knob by knob.
    problems
        The problems; each weighs the same.
    logs
        Log of the time over that of the fastest candidate, of shape [kernels, problems]; NaN where a kernel is not
        legal or was not timed.
    source
        Where the times come from.
    """

    kernels: tuple[Codes, ...]
    problems: tuple[Problem, ...]
    logs: Floats
    source: str

    @property
    def weights(self) -> Floats:
        """The share of each problem."""
        return np.full(len(self.problems), 1 / len(self.problems))


@click.command(
    epilog=examples(
        "tilescout portfolio gemm_sm90 --kernels 32",
        "tilescout portfolio gemm_sm90 --kernels 16 --suite llama3-8b --plot kernels.png --json kernels.json",
    )
)
@space_argument
@click.option("--kernels", type=click.IntRange(1, 1000), default=32, show_default=True, help="Most kernels to choose.")
@click.option(
    "--table",
    "tables",
    type=TABLE,
    multiple=True,
    help="Table to choose by; repeatable. [default: the shipped ones of the space and device]",
)
@click.option(
    "--suite",
    cls=Once,
    shell_complete=complete_suites,
    help="Choose for the problems of this suite, by predicted times of the tables' kernels.",
)
@click.option(
    "--signature", help="Types, layout and epilogue of the problems. [default: those of most problems of the tables]"
)
@model_option
@click.option(
    "--exchanges",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Most exchanges of a chosen kernel for another to try.",
)
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help="Also judge on problems left out of the choice, in this many parts; a product is in one part.",
)
@device_option
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the regret over the number of kernels into this file.",
)
@json_option
@collected(PortfolioRequest)
def portfolio(asked: PortfolioRequest) -> None:
    """Choose the kernels of SPACE that together serve many problems: those with the least expected regret.

    The candidates are the kernels that were recorded. The regret of a portfolio on a problem is how much longer its
    best kernel takes than the best candidate. Each problem weighs the same. Kernels are chosen one at a time: always
    the one that lowers the mean of log(time / best) the most, until none does. Nothing is compiled or measured.
    """
    check_result(asked.json_path)
    if asked.plot is not None:
        check_plot(asked.plot)
    if asked.suite is None and asked.model != LEARNED:
        raise click.UsageError("--model predicts the problems of a suite: give --suite, or leave --model out")
    template = load_template(asked.space)
    tables = _tables(template, asked)
    signature = asked.signature or _common([problem.signature for table in tables for problem in table.problems])
    regrets = recorded(template, tables, signature)
    if asked.suite is not None:
        regrets = predicted(template, regrets, asked, signature)
    found = choose_portfolio(regrets.logs, regrets.weights, asked.kernels, asked.exchanges)
    if (enough := _saving(found)) < len(found.picked):
        found = choose_portfolio(regrets.logs, regrets.weights, enough, asked.exchanges)
    result = summary(template, regrets, found, asked, signature)
    if asked.folds is not None:
        result["left_out"] = left_out(regrets, len(found.picked), asked.folds)
    _print(result, console_beside(asked.json_path))
    write_result(asked.json_path, result)
    if asked.plot is not None:
        _draw(result, asked.plot)


def _tables(template: KernelTemplate, asked: PortfolioRequest) -> list[Table]:
    read = [Table.read(path, {template.name: template}) for path in asked.tables or shipped_tables()]
    if asked.tables:
        for table in read:
            table.check_space(template)
            if table.card.device != asked.device:
                raise TableError(
                    f"table {table.path} was recorded on {table.card.device}, and kernels are chosen for "
                    f"{asked.device}: name tables of one device, and that device with --device"
                )
        return read
    fitting = [table for table in read if (table.card.space, table.card.device) == (template.name, asked.device)]
    if not fitting:
        raise TableError(f"no table of {template.name} on {asked.device} is shipped; name one with `table`")
    return fitting


def _saving(found: Portfolio) -> int:
    """How many of the chosen kernels, the first ones, lower the regret: the others serve nothing better."""
    return next(count for count, regret in enumerate(found.regret, start=1) if regret <= found.regret[-1] + _NOTHING)


def _common(signatures: Sequence[str]) -> str:
    return Counter(signatures).most_common(1)[0][0]


def recorded(template: KernelTemplate, tables: Sequence[Table], signature: str) -> Regrets:
    """The measured regrets of all kernels that were timed, on the problems of one signature.

    Raises
    ------
    TableError
        If no problem of the tables has the signature.
    """
    kernels, problems, logs = recorded_logs(template, tables, signature)
    names = ", ".join(table.path.name for table in tables)
    return Regrets(kernels, problems, logs - np.nanmin(logs, axis=0), f"measured, {names}")


def recorded_logs(
    template: KernelTemplate, tables: Sequence[Table], signature: str
) -> tuple[tuple[Codes, ...], tuple[Problem, ...], Floats]:
    """All kernels that were timed, the problems of one signature, and the logs of times over the library's.

    Returns
    -------
    kernels, problems, logs
        As `Regrets` has them, but for what the logs are over; of shape [kernels, problems].

    Raises
    ------
    TableError
        If no problem of the tables has the signature.
    """
    columns: dict[Problem, dict[Codes, float]] = {}
    library_us: dict[Problem, float] = {}
    held = set()
    for table in tables:
        codes, times = table.codes(template.knobs), table.times_us
        for problem in table.problems:
            rows = table.rows(problem)
            rows = rows[np.isfinite(times[rows])]
            if len(rows):
                held.add(problem.signature)
            if problem.signature == signature and len(rows):
                known, own_us = columns.setdefault(problem, {}), table.card.baselines[problem].library_us
                # Two tables may hold a problem: the library ran beside both.
                scaled = times[rows] * (library_us.setdefault(problem, own_us) / own_us)
                known |= dict(zip(map(tuple, codes[rows].tolist()), scaled.tolist(), strict=True))
    if not columns:
        told = f"recorded are {', '.join(sorted(held))}" if held else "nothing was timed in these tables"
        raise TableError(f"no problem of the signature {signature} was timed; {told}")
    kernels = sorted({kernel for known in columns.values() for kernel in known})
    scaled = np.array([[known.get(kernel, np.nan) for known in columns.values()] for kernel in kernels])
    logs = np.log(scaled / [library_us[problem] for problem in columns])
    return tuple(kernels), tuple(columns), logs


def predicted(template: KernelTemplate, regrets: Regrets, asked: PortfolioRequest, signature: str) -> Regrets:
    """The regrets of the same kernels on the problems of a suite, as a cost model predicts them."""
    assert asked.suite is not None
    device = find_device(asked.device)
    problems = suite_problems(template, asked.suite, signature)
    model = find_model(template.name, asked.device, asked.model)
    logs = np.full((len(regrets.kernels), len(problems)), np.nan)
    for at, problem in enumerate(problems):
        space = template.space(problem, device)
        indices = space.find(np.array(regrets.kernels))
        legal = np.flatnonzero(indices >= 0)
        legal = legal[np.argsort(indices[legal])]
        if len(legal) == 0:
            raise TableError(f"none of the recorded kernels is legal for {problem}: choose by another table")
        said = model.predict(space_features(space.subset(indices[legal]), template)).mean
        logs[legal, at] = said - said.min()
    return Regrets(regrets.kernels, tuple(problems), logs, f"predicted, {model.origin}; suite {asked.suite}")


def summary(
    template: KernelTemplate, regrets: Regrets, found: Portfolio, asked: PortfolioRequest, signature: str
) -> dict[str, object]:
    """The result of the command, as it is printed and written."""
    capped = np.minimum(np.nan_to_num(regrets.logs, nan=CAP), CAP)
    reached = np.minimum.accumulate(capped[list(found.picked)], axis=0)

    def configuration(row: int) -> dict[str, object]:
        codes = regrets.kernels[row]
        pairs = tuple((knob.name, knob.values[code]) for knob, code in zip(template.knobs, codes, strict=True))
        return dict(Configuration(pairs))

    curve = [
        {
            "kernels": count,
            "regret": float(np.expm1(found.regret[count - 1])),
            "regret_90": float(np.expm1(np.quantile(row, 0.9))),
            "worst": float(np.expm1(row.max())),
            "worst_problem": str(regrets.problems[int(row.argmax())]),
        }
        for count, row in enumerate(reached, start=1)
    ]
    return {
        "space": asked.space,
        "device": asked.device,
        "signature": signature,
        "source": regrets.source,
        "problems": list(map(str, regrets.problems)),
        "candidates": len(regrets.kernels),
        "curve": curve,
        "exchanged_regret": float(np.expm1(found.exchanged_regret)),
        "least_possible_regret": float(np.expm1(found.bound)),
        "portfolio": [configuration(row) for row in found.picked],
        "exchanged_portfolio": [configuration(row) for row in found.exchanged],
    }


def left_out(regrets: Regrets, count: int, folds: int) -> dict[str, Any]:
    """The regret on problems that kernels were not chosen on, a part of the problems at a time.

    Problems of one product, which differ in rows alone, or in tokens and their routing, are in one part. A chosen
    kernel that was not timed on a problem does not serve it here, so that the regret is rather too large.

    Raises
    ------
    TableError
        If there are fewer products than parts.
    """
    products = [_product(problem) for problem in regrets.problems]
    order = np.random.default_rng(0).permutation(sorted(set(products))).tolist()
    if len(order) < folds:
        told = number_of(len(order), "product")
        raise TableError(f"{told} can't be put into {folds} parts: name as many with --folds, or fewer")
    part = np.array([order.index(product) % folds for product in products])
    reached, timed = np.empty((min(count, len(regrets.kernels)), len(products))), np.empty(len(products))
    for each in range(folds):
        seen = part != each
        logs = regrets.logs[:, seen]
        known = np.flatnonzero(np.isfinite(logs).any(axis=1))
        picked = known[list(choose_portfolio(logs[known], np.full(seen.sum(), 1 / seen.sum()), count).picked)]
        served = regrets.logs[np.ix_(picked, ~seen)]
        timed[~seen] = np.isfinite(served).sum(axis=0)
        best = np.minimum.accumulate(np.minimum(np.nan_to_num(served, nan=CAP), CAP), axis=0)
        reached[: len(best), ~seen], reached[len(best) :, ~seen] = best, best[-1]
    curve = [
        {
            "kernels": at,
            "regret": float(np.expm1(row.mean())),
            "regret_50": float(np.expm1(np.median(row))),
            "regret_90": float(np.expm1(np.quantile(row, 0.9))),
        }
        for at, row in enumerate(reached, start=1)
    ]
    return {"folds": folds, "products": len(order), "timed": float(timed.mean()), "curve": curve}


def _product(problem: Problem) -> str:
    """A problem as text without its rows, or its tokens and their routing."""
    return grouped_family(problem) if isinstance(problem, GroupedProblem) else str(problem).partition("x")[2]


def _print(result: Mapping[str, Any], console: Console) -> None:
    curve = result["curve"]
    kernels, problems = number_of(result["candidates"], "kernel"), number_of(len(result["problems"]), "problem")
    grid = Grid(
        title=f"{result['space']} on {result['device']}, {result['signature']}: time over that of the best of "
        f"{kernels}, {problems} ({result['source']})",
        title_justify="left",
    )
    for heading in ("kernels", "mean", "90th percentile", "worst", "at"):
        grid.add_column(heading, justify="left" if heading == "at" else "right", no_wrap=True)
    shown = [point for point in curve if point["kernels"] in _SHOWN or point is curve[-1]]
    useless = float(np.expm1(CAP))
    for point in shown:
        worst = "served by none" if point["worst"] >= useless else f"{point['worst']:.2%}"
        grid.add_row(
            str(point["kernels"]), f"{point['regret']:.2%}", f"{point['regret_90']:.2%}", worst, point["worst_problem"]
        )
    console.print(grid)
    console.say(
        f"Mean regret of {number_of(curve[-1]['kernels'], 'kernel')}: {curve[-1]['regret']:.2%} if chosen one at a "
        f"time, {result['exchanged_regret']:.2%} after exchanges; no choice has less than "
        f"{result['least_possible_regret']:.2%}. Choosing one at a time saves at least 63 % (1 - 1/e) of what the best "
        f"choice can. The mean is geometric; a kernel that "
        f"is not legal or was not timed, or takes more than {1 + useless:.1f} times as long, counts as "
        f"{1 + useless:.1f} times."
    )
    if "left_out" in result:
        found = result["left_out"]
        told = ", ".join(
            f"{point['regret']:.2%} with {point['kernels']}"
            for point in found["curve"]
            if point["kernels"] in _SHOWN or point is found["curve"][-1]
        )
        console.say(
            f"On problems that were left out, {found['folds']} parts of {found['products']} products: at most {told}. "
            f"Of the chosen kernels {found['timed']:.1f} were timed on such a problem; the others do not serve it here."
        )
    for number, kernel in enumerate(result["portfolio"], start=1):
        text = " ".join(f"{name}={value}" for name, value in kernel.items())
        console.say(f"{number}: {text}")


def _draw(result: Mapping[str, Any], path: Path) -> None:
    """The mean regret, its 90th percentile and the worst, over the number of kernels."""
    from tilescout.search.tracking.plots import figure_type, to_png

    figure = figure_type()(figsize=(7, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    counts = [point["kernels"] for point in result["curve"]]
    for name, label in (("regret", "geometric mean"), ("regret_90", "90th percentile"), ("worst", "worst")):
        axes.plot(counts, [100 * point[name] for point in result["curve"]], marker=".", label=label)
    if "left_out" in result:
        apart = [100 * point["regret"] for point in result["left_out"]["curve"]]
        axes.plot(counts, apart, "--", label="geometric mean, problems left out, at most")
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=1)
    axes.set_xlabel("kernels")
    axes.set_ylabel("time over the best of all candidates, % more")
    problems = number_of(len(result["problems"]), "problem")
    axes.set_title(f"{result['space']} on {result['device']}, {result['signature']}, {problems}")
    axes.grid(alpha=0.3)
    axes.legend()
    write_whole(path, to_png(figure))
