"""Summarise tables of grouped products: the best, the default, few kernels by tokens, a model that saw other tables.

    python -m tilescout.experiments.research grouped-tables experts-*.parquet --out summary.json

- The best and the default over ``torch._grouped_mm`` and over the floor, by the numbers of tokens of the model.
- Trimmed tiles: the best with them over the best without.
- The dispatcher: its regret over the fastest kernel of the table, at what it was made from; at numbers of tokens that
  were left out of each product in turn, all but the least and the largest; and with routings that were left out.
- With ``--unseen``, the dispatcher of these tables on others, of the same products at other numbers of tokens.
- With ``--families``, a cost model that learned from all tables but one, on that one: the fastest of the first it names
  over the fastest of all. A table is a model's family.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import Any

import click
import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.blend import BlendModel
from tilescout.costmodel.evaluation import leave_out, quality
from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.grouped_tables import grouped_times, joined
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.dispatch.grouped_ranges import (
    GroupedStretch,
    choose_grouped,
    grouped_stretches,
    outlook,
    served_regret,
)
from tilescout.search.dispatch.grouped_times import GroupedTimes
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import samples_of
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import find_template


def ranges_of(learned: GroupedTimes) -> list[GroupedStretch]:
    """The ranges that are made from measured times."""
    expected = outlook(learned)
    return grouped_stretches(expected, choose_grouped(expected))


def served_by(learned: GroupedTimes, judged: GroupedTimes) -> Floats:
    """Regrets, as shares, on problems by ranges that were made from others; infinite where what serves has no time."""
    return np.asarray(np.expm1(served_regret(judged, ranges_of(learned))))


def without_sizes(times: GroupedTimes) -> list[float]:
    """Regrets at each number of tokens but the least and the largest, by ranges that did not see it."""
    found: list[float] = []
    for tokens in times.sizes[1:-1]:
        out = times.columns(tokens)
        kept = [at for at in range(len(times.problems)) if at not in out]
        found += served_by(times.take(kept), times.take(out)).tolist()
    return found


def unseen(products: Sequence[GroupedTimes], others: Sequence[GroupedTimes]) -> dict[str, float]:
    """Regrets on problems of other tables, by ranges of the same products that never saw them, in usual routings."""
    found: dict[str, float] = {}
    for learned in (each.usual for each in products):
        for judged in (each.usual for each in others):
            if judged.product == learned.product:
                both = learned.beside(judged)
                split = len(learned.problems)
                told = served_by(both.take(range(split)), both.take(range(split, len(both.problems))))
                found |= {str(each): float(value) for each, value in zip(judged.problems, told, strict=True)}
    return found


def without_routings(times: GroupedTimes) -> list[float]:
    """Regrets with each routing, by ranges that did not see it, at numbers of tokens that they saw."""
    found: list[float] = []
    for kind in dict.fromkeys(problem.routing for problem in times.problems):
        kept = [at for at, problem in enumerate(times.problems) if problem.routing != kind]
        seen = {times.problems[at].tokens for at in kept}
        out = [at for at, problem in enumerate(times.problems) if problem.routing == kind and problem.tokens in seen]
        if kept and out:
            found += served_by(times.take(kept), times.take(out)).tolist()
    return found


def regrets(values: Sequence[float]) -> dict[str, float]:
    """Their mean, their largest, the share that is above 5 %, how many there are, and how many more are not known."""
    known = [value for value in values if math.isfinite(value)]
    above = sum(value > 0.05 for value in known) / len(known)
    unknown = len(values) - len(known)
    return {
        "mean": fmean(known),
        "worst": max(known),
        "above_5_percent": above,
        "problems": len(known),
        "unknown": unknown,
    }


def of_problems(table: Table, products: Sequence[GroupedTimes]) -> dict[str, Any]:
    """Of each problem: the library's time, and over it the best, the default and the best without trimmed tiles."""
    device = find_device(table.card.device)
    found: dict[str, Any] = {}
    for times in products:
        plain = [at for at, each in enumerate(times.configurations) if each["trim"] == 0]
        for at, problem in enumerate(times.problems):
            baseline = table.card.baselines[problem]
            best = int(times.ratio[:, at].argmin())
            default = times.configurations.index(baseline.default) if baseline.default in times.configurations else None
            ratio = math.inf if default is None else float(times.ratio[default, at])
            floor = Roofline.of(problem, device).time_us / baseline.library_us
            found[str(problem)] = {
                "tokens": problem.tokens,
                "library_us": baseline.library_us,
                "best": float(times.ratio[best, at]),
                "default": ratio if math.isfinite(ratio) else None,
                "untrimmed": float(times.ratio[plain, at].min()),
                "over_floor": float(times.ratio[best, at]) / floor,
                "configuration": dict(times.configurations[best]),
            }
    return found


def of_families(tables: Sequence[Table]) -> dict[str, Any]:
    """Regrets of the first that a model names, on tables that it did not see; a table is a family."""
    template = find_template(tables[0].card.space)
    samples, families = [], []
    for table in tables:
        held = [sample for sample in samples_of(table, template) if not sample.censored.all()]
        samples += held
        families += [table.path.stem] * len(held)
    judged = leave_out(samples, families, lambda kept: BlendModel().fit(kept))
    qualities = [quality(sample, prediction) for sample, prediction in judged]
    tops = qualities[0].regret
    return {
        "problems": len(qualities),
        **{f"top{top}": regrets([each.regret[top] for each in qualities]) for top in tops},
        "median_top1": median(each.regret[1] for each in qualities),
    }


def summary(tables: Sequence[Table], families: bool, others: Sequence[Table] = ()) -> dict[str, Any]:
    """All figures of tables of one space; `others` judge the dispatcher alone."""
    times = {table.path.stem: grouped_times(table) for table in tables}
    problems: dict[str, Any] = {}
    for table in tables:
        problems |= of_problems(table, times[table.path.stem])
    products = joined([each for held in times.values() for each in held])
    seen, extreme = list[float](), list[float]()
    for each in products:
        for problem, value in zip(each.problems, served_by(each, each).tolist(), strict=True):
            (extreme if problem.routing.extreme else seen).append(value)
    found: dict[str, Any] = {
        "problems": problems,
        "rows": sum(map(len, tables)),
        "best": geometric_mean(1 / each["best"] for each in problems.values()),
        "slower": [name for name, each in problems.items() if each["best"] > 1],
        "default": geometric_mean(1 / each["default"] for each in problems.values() if each["default"]),
        "defaults_not_timed": sum(each["default"] is None for each in problems.values()),
        "trim": geometric_mean(each["untrimmed"] / each["best"] for each in problems.values()),
        "most_by_trim": max(each["untrimmed"] / each["best"] for each in problems.values()),
        "kernels": {str(each.product): len({one.kernels for one in ranges_of(each)} - {()}) for each in products},
        "dispatcher": {
            "seen": regrets(seen),
            "seen, all to one": regrets(extreme),
            "other tokens": regrets([value for each in products for value in without_sizes(each.usual)]),
            "other routings": regrets([value for each in products for value in without_routings(each.usual)]),
        },
    }
    if others:
        told = unseen(products, [each for table in others for each in grouped_times(table)])
        found["dispatcher"]["unseen tokens"] = regrets(list(told.values()))
        found["unseen"] = told
    return found | ({"model": of_families(tables)} if families else {})


def show(found: Mapping[str, Any]) -> None:
    """Print the figures."""
    for name, each in found["problems"].items():
        default = "  -  " if each["default"] is None else f"{1 / each['default']:.3f}"
        values = f"{each['library_us']:9.1f} us  best {1 / each['best']:.3f} ({each['over_floor']:.2f})"
        print(f"{name:<44} {values}  default {default}  by trimmed tiles {each['untrimmed'] / each['best']:.3f}")
    print(f"{len(found['problems'])} problems, {found['rows']} rows: best {found['best']:.3f} of the library's speed")
    print(f"slower than the library: {', '.join(found['slower']) or 'none'}")
    print(f"default {found['default']:.3f}, not timed on {found['defaults_not_timed']}")
    print(f"trimmed tiles bring {found['trim']:.4f}, at most {found['most_by_trim']:.3f}")
    print(f"kernels a product: {', '.join(f'{name} {count}' for name, count in found['kernels'].items())}")
    for name, each in {**found["dispatcher"], **found.get("model", {})}.items():
        if isinstance(each, dict):
            shares = f"mean {each['mean']:.2%}, worst {each['worst']:.1%}, above 5 % on {each['above_5_percent']:.1%}"
            print(f"regret, {name}: {shares} of {each['problems']}, not known on {each['unknown']}")


@study(TABLES)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--families", is_flag=True, help="Judge models that saw all tables but one; takes minutes.")
@click.option(
    "--unseen",
    "others",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A table that judges the dispatcher, which does not see it. Repeatable.",
)
def main(run: Run, paths: tuple[Path, ...], families: bool, others: tuple[Path, ...]) -> None:
    """Summarise tables of grouped products, PATHS."""
    found = summary([Table.read(path) for path in paths], families, [Table.read(path) for path in others])
    run.keep(found)
    show(found)
