r"""Choose the kernels of a space that are worth having in a store before problems are tuned in it.

    python -m tilescout.experiments.research stocked-kernels TABLE.parquet … --write stock.json --out chosen.json

Kernels are chosen one after the other, each the one that lowers the mean regret the most: half of it is over the
problems of the tables, by the times that were recorded, and half over random problems, by the shipped model. Candidates
are the kernels of the tables that are near the best of a problem, and on each random problem those that the model
expects to be the fastest of a part of the space. Of a space that is searched beside another, the random problems are
those on which it is. Those of the tables that are left out, a fifth of the products at a time, say what kernels are
worth that were not chosen on a problem. Tables of several types give a list each.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.templates import KernelTemplate, find_template

NEAR = 0.1
"""Log of the time over the best of a recorded problem, within which a kernel is a candidate."""

POOL, EACH = 4096, 10
"""Configurations of a random problem that are predicted, and the candidates that come of it."""

MANY = 16
"""As many problems are drawn for each random one that is wanted: a second space is searched on a third or fewer."""

FOLDS = 5
DEVICE = find_device("h200")


@dataclass(frozen=True)
class Random:
    """A random problem, and what the model expects of a part of its space.

    Attributes
    ----------
    problem
        The problem.
    codes, logs
        Its configurations, of shape [configurations, knobs], and their log times.
    """

    problem: GemmProblem
    codes: Any
    logs: Floats


def searched_problems(template: KernelTemplate, signature: str, count: int, seed: int) -> list[GemmProblem]:
    """Random problems on which a template is searched: a second space is where it complements the first."""
    problems = list(drawn_problems(signature, count * MANY, seed))
    complemented = [problem for problem in problems if template.complements(problem, DEVICE)]
    return (complemented or problems)[:count]


def pools(
    template: KernelTemplate, model: CostModel, problems: Iterable[GemmProblem], seed: int, extra: Sequence[Codes]
) -> list[Random]:
    """Predictions of a random part of the space of each problem, and of those of `extra` that are legal."""
    generator, found = np.random.default_rng(seed), list[Random]()
    for problem in problems:
        space = template.space(problem, DEVICE)
        known = space.find(np.array(extra))
        part = space.subset(np.union1d(space.sample(POOL, generator), known[known >= 0]))
        found.append(Random(problem, part.codes, model.predict(space_features(part, template)).mean))
    return found


def chosen(
    template: KernelTemplate, model: CostModel, regrets: Regrets, drawn: Sequence[Random], kernels: int
) -> list[Codes]:
    """The kernels of the least mean regret, half of it over recorded problems and half over random ones."""
    near = {
        each for each, logs in zip(regrets.kernels, regrets.logs, strict=True) if np.nanmin(logs, initial=np.inf) < NEAR
    }
    for one in drawn:
        near |= set(map(tuple, one.codes[np.argsort(one.logs)[:EACH]].tolist()))
    candidates = sorted(near)
    places = {each: place for place, each in enumerate(candidates)}
    logs = np.full((len(candidates), len(regrets.problems) + len(drawn)), np.nan)
    for each, of_kernel in zip(regrets.kernels, regrets.logs, strict=True):
        if each in places:
            logs[places[each], : len(regrets.problems)] = of_kernel
    for at, one in enumerate(drawn, start=len(regrets.problems)):
        space = template.space(one.problem, DEVICE)
        indices = space.find(np.array(candidates))
        legal = np.flatnonzero(indices >= 0)
        legal = legal[np.argsort(indices[legal])]
        said = model.predict(space_features(space.subset(indices[legal]), template)).mean
        logs[legal, at] = said - min(float(said.min()), float(one.logs.min()))
    weights = np.repeat([0.5 / len(regrets.problems), 0.5 / len(drawn)], [len(regrets.problems), len(drawn)])
    picked = choose_portfolio(logs, weights, kernels)
    print(f"{len(candidates)} candidates, mean regret {np.expm1(picked.regret[-1]):.2%} with {kernels}", flush=True)
    return [candidates[row] for row in picked.picked]


@study(TABLES)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--kernels", default=96, show_default=True, help="How many to choose, for each type.")
@click.option("--drawn", "count", default=100, show_default=True, help="Random problems of each type.")
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
        regrets = recorded(template, read, signature)
        problems = searched_problems(template, signature, count, seed)
        drawn = pools(template, model, problems, seed, regrets.kernels)
        rows = chosen(template, model, regrets, drawn, kernels)
        values = [[knob.values[code] for knob, code in zip(template.knobs, row, strict=True)] for row in rows]
        apart = left_out(regrets, kernels, FOLDS)
        result[signature] = {"kernels": values, "problems": len(regrets.problems), "left_out": apart}
        print(f"{signature}: {apart['curve'][-1]['regret']:.2%} at most on recorded problems left out", flush=True)
        run.keep({"knobs": [knob.name for knob in template.knobs], "of": result})
    if written is not None:
        lists = {signature: of["kernels"] for signature, of in result.items()}
        shipped = {"about": "kernels to have in a store", "knobs": [knob.name for knob in template.knobs], "of": lists}
        write_whole(written, (json.dumps(shipped, indent=None) + "\n").replace("], [", "],\n[").encode())
