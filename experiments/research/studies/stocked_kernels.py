r"""Choose the kernels of a space that are worth having in a store before problems are tuned in it.

    python -m tilescout.experiments.research stocked-kernels TABLE.parquet … --write stock.json --out chosen.json

Kernels are chosen one after the other, each the one that lowers the mean regret the most: half of it is over the
problems of the tables, by the times that were recorded, and half over random problems, by the shipped model. Candidates
are the kernels of the tables that are near the best of a problem, and on each random problem those that the model
expects to be the fastest. Configurations that differ in their launch alone are one kernel. Of a space that is searched
beside another, the random problems are those on which it is. Two things say what kernels are worth on problems that
they were not chosen on: those of the tables that are left out, a fifth of the products at a time, and further random
ones, by the model. Tables of several types give a list each.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.costmodel.portfolio import choose_portfolio
from tilescout.experiments.commands.options import seed_option
from tilescout.experiments.commands.outputs import check_writable
from tilescout.experiments.commands.portfolio import Codes, Regrets, left_out, recorded
from tilescout.experiments.research.defaults_fit import drawn_problems
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.launched import codes_known, kernels_of
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.templates import KernelTemplate, find_template

NEAR = 0.1
"""Log of the time over the best of a recorded problem, within which a kernel is a candidate."""

EACH = 10
"""Candidates that come of a random problem."""

FRESH = 200
"""Random problems that say what the chosen kernels are worth."""

MANY = 16
"""As many problems are drawn for each random one that is wanted: a second space is searched on a third or fewer."""

FOLDS = 5
DEVICE = find_device("h200")


@dataclass(frozen=True)
class Random:
    """A random problem, and what the model expects of the kernels of its space.

    Attributes
    ----------
    problem
        The problem.
    kernels, logs
        Numbers of the kernels, in order, and the log time of each in the order of its tiles that suits it best, of
        shape [kernels].
    fastest
        Codes of the few that are expected to be the fastest, as they are compiled.
    """

    problem: GemmProblem
    kernels: Any
    logs: Floats
    fastest: Sequence[Codes]

    def regrets(self, numbers: Any) -> Floats:
        """The log of the time of some kernels over that of the fastest, of their shape; NaN of illegal ones."""
        at = np.minimum(np.searchsorted(self.kernels, numbers), len(self.kernels) - 1)
        return np.where(self.kernels[at] == numbers, self.logs[at] - self.logs.min(), np.nan)


def searched_problems(template: KernelTemplate, signature: str, count: int, seed: int) -> list[GemmProblem]:
    """Random problems on which a template is searched: a second space is where it complements the first."""
    problems = list(drawn_problems(signature, count * MANY, seed))
    complemented = [problem for problem in problems if template.complements(problem, DEVICE)]
    return (complemented or problems)[:count]


def numbers_of(template: KernelTemplate, codes: Any) -> Any:
    """The number of the kernel that each of some configurations is compiled as; they are given as codes."""
    return kernels_of(template.launched, template.knobs, codes)


def codes_of(template: KernelTemplate, numbers: Any) -> list[Codes]:
    """The codes of some kernels as they are compiled, by their numbers."""
    codes = np.unravel_index(numbers, [len(knob.values) for knob in template.knobs])
    return [tuple(each) for each in np.stack(codes, axis=1).tolist()]


def foreseen(template: KernelTemplate, model: CostModel, problem: GemmProblem) -> Random:
    """The expectation of every kernel of a problem's space."""
    space = template.space(problem, DEVICE)
    means = model.foresee(space_features(space, template)).mean
    order = np.argsort(means, kind="stable")
    kernels, first = np.unique(numbers_of(template, space.codes)[order], return_index=True)
    fastest = kernels[np.argsort(first)[:EACH]]
    return Random(problem, kernels, means[order[first]], codes_of(template, fastest))


def compiled_once(template: KernelTemplate, regrets: Regrets) -> Regrets:
    """The regrets of kernels of which those that differ in their launch alone are one, at its best."""
    numbers = numbers_of(template, np.array(regrets.kernels))
    kernels, place = np.unique(numbers, return_inverse=True)
    logs = np.full((len(kernels), len(regrets.problems)), np.inf)
    np.minimum.at(logs, place, np.nan_to_num(regrets.logs, nan=np.inf))
    logs[np.isinf(logs)] = np.nan
    return replace(regrets, kernels=tuple(codes_of(template, kernels)), logs=logs)


def chosen(template: KernelTemplate, regrets: Regrets, drawn: Sequence[Random], kernels: int) -> list[Codes]:
    """The kernels of the least mean regret, half of it over recorded problems and half over random ones."""
    near = {
        each for each, logs in zip(regrets.kernels, regrets.logs, strict=True) if np.nanmin(logs, initial=np.inf) < NEAR
    }
    for one in drawn:
        near |= set(one.fastest)
    candidates = sorted(near)
    places = {each: place for place, each in enumerate(candidates)}
    logs = np.full((len(candidates), len(regrets.problems) + len(drawn)), np.nan)
    for each, of_kernel in zip(regrets.kernels, regrets.logs, strict=True):
        if each in places:
            logs[places[each], : len(regrets.problems)] = of_kernel
    numbers = numbers_of(template, np.array(candidates))
    for at, one in enumerate(drawn, start=len(regrets.problems)):
        logs[:, at] = one.regrets(numbers)
    weights = np.repeat([0.5 / len(regrets.problems), 0.5 / len(drawn)], [len(regrets.problems), len(drawn)])
    picked = choose_portfolio(logs, weights, kernels)
    print(f"{len(candidates)} candidates, mean regret {np.expm1(picked.regret[-1]):.2%} with {kernels}", flush=True)
    return [candidates[row] for row in picked.picked]


def worth(template: KernelTemplate, kernels: Sequence[Codes], fresh: Sequence[Random]) -> dict[str, float]:
    """The regrets that some kernels leave on random problems that they were not chosen on, by the model."""
    numbers = numbers_of(template, np.array(kernels))
    left = np.expm1([np.nanmin(one.regrets(numbers)) for one in fresh])
    return {"mean": float(left.mean()), "median": float(np.median(left)), "90": float(np.quantile(left, 0.9))}


@study(TABLES)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--kernels", default=384, show_default=True, help="How many to choose, for each type.")
@click.option("--drawn", "count", default=1600, show_default=True, help="Random problems of each type.")
@click.option("--write", "written", type=click.Path(path_type=Path), help="Write the file that is shipped there.")
@seed_option
def main(run: Run, tables: tuple[Path, ...], kernels: int, count: int, written: Path | None, seed: int) -> None:
    """Choose kernels, and print what they are worth on problems left out."""
    if written is not None:
        check_writable(written)
    read = [Table.read(path) for path in tables]
    [name] = {table.card.space for table in read}
    template, path, result = find_template(name), shipped_model(name, DEVICE.name), dict[str, Any]()
    if path is None:
        raise click.UsageError(f"no model of {name} is shipped, which random problems are predicted by")
    model, _ = load_model(path)
    for signature in dict.fromkeys(problem.signature for table in read for problem in table.problems):
        regrets = compiled_once(template, recorded(template, read, signature))
        problems = searched_problems(template, signature, count + FRESH, seed)
        drawn = [foreseen(template, model, problem) for problem in problems]
        rows = chosen(template, regrets, drawn[:-FRESH], kernels)
        values = [[knob.values[code] for knob, code in zip(template.knobs, row, strict=True)] for row in rows]
        apart = left_out(regrets, kernels, FOLDS)
        now = list(map(tuple, codes_known(template.knobs, template.stock(problems[0], DEVICE)).tolist()))
        fresh, before = worth(template, rows, drawn[-FRESH:]), worth(template, now, drawn[-FRESH:])
        result[signature] = {"kernels": values, "problems": len(regrets.problems), "left_out": apart}
        result[signature] |= {"fresh": fresh, "before": {"kernels": len(now), "fresh": before}}
        print(f"{signature}: {apart['curve'][-1]['regret']:.2%} at most on recorded problems left out", flush=True)
        for what, left in ((f"these {len(rows)}", fresh), (f"the {len(now)} shipped now", before)):
            told = f"{left['mean']:.2%}, {left['median']:.2%} in the median, {left['90']:.2%} at the 90th percentile"
            print(f"by the model, on random problems left out, {what}: {told}", flush=True)
        run.keep({"knobs": [knob.name for knob in template.knobs], "of": result})
    if written is not None:
        lists = {signature: of["kernels"] for signature, of in result.items()}
        shipped = {"about": "kernels to have in a store", "knobs": [knob.name for knob in template.knobs], "of": lists}
        write_whole(written, (json.dumps(shipped, indent=None) + "\n").replace("], [", "],\n[").encode())
