"""``tilescout evaluate-model``: how good the cost models are on problems that they have not seen."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.analytic import AnalyticModel, is_tiled
from tilescout.costmodel.blend import BlendModel, BlendOptions
from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.evaluation import (
    TOPS,
    Interval,
    Quality,
    family_of,
    leave_out,
    quality,
    regret_of_groups,
    summarise,
)
from tilescout.costmodel.features import BINARY_PREFIX
from tilescout.costmodel.heuristics import is_installed, matches, suggest
from tilescout.costmodel.learned import ForestModel, ForestOptions
from tilescout.costmodel.ranking import RankingModel, RankingOptions
from tilescout.experiments.options import examples, json_option, seed_option, space_argument
from tilescout.search.evaluate.table import Table
from tilescout.search.sources import largest_table
from tilescout.search.training import problem_space, samples_of
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import KernelTemplate, find_template

LEFT_OUT = ("problem", "family")


@click.command(
    "evaluate-model",
    epilog=examples(
        "tilescout evaluate-model gemm_sm90 --trees 100 --plots plots",
        "tilescout evaluate-model gemm_sm90 --parts --json evaluation.json",
    ),
)
@space_argument
@click.option("--table", type=click.Path(path_type=Path), help="Table to test on. [default: the largest shipped one]")
@click.option("--parts", is_flag=True, help="Evaluate the forest and the networks that the learned model blends, too.")
@click.option(
    "--binaries", is_flag=True, help="On rows whose kernel was read: learn with and without what its binary says."
)
@click.option(
    "--trees", type=click.IntRange(min=1), default=ForestOptions.trees, show_default=True, help="Trees of the forest."
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=RankingOptions.steps, show_default=True, help="Of the networks' fit."
)
@seed_option
@json_option
@click.option("--plots", type=click.Path(path_type=Path, file_okay=False), help="Draw plots into this folder.")
@click.option("--mlflow", "mlflow_uri", metavar="URI", help="Log figures and plots to this MLflow store.")
def evaluate_model(
    space: str,
    table: Path | None,
    parts: bool,
    binaries: bool,
    trees: int,
    steps: int,
    seed: int,
    json_path: Path | None,
    plots: Path | None,
    mlflow_uri: str | None,
) -> None:
    """Train without each problem of a table in turn, then without each family, and predict what was left out.

    Medians over problems with bootstrapped 95 % intervals. Takes minutes: every model is trained anew each time.
    """
    template = find_template(space)
    recorded = Table.read(table) if table else largest_table(template)
    samples = samples_of(recorded, template, binaries=binaries)
    plain = [replace(s, features=s.features.only(_unbuilt(s.features.names))) for s in samples]
    console = Console()
    result: dict[str, Any] = {"table": recorded.path.name, "rows": len(recorded), "device": recorded.card.device}
    drawn: dict[str, list[tuple[Sample, Prediction]]] = {}
    options = BlendOptions(ForestOptions(trees=trees, seed=seed), RankingOptions(steps=steps, seed=seed))
    makers = _makers(options, parts, is_tiled(samples[0].features.names))
    seen = dict.fromkeys(makers, plain)
    if binaries:
        makers["learned with binaries"], seen["learned with binaries"] = makers["learned"], samples
    result["models"] = list(makers)
    for what in LEFT_OUT:
        groups = [s.problem if what == "problem" else family_of(s.problem) for s in samples]
        rows: dict[str, Sequence[Quality]] = {}
        for name, make in makers.items():
            predicted = leave_out(seen[name], groups, make)
            drawn[f"{name}, {what} left out"] = predicted
            rows[name] = [quality(sample, prediction) for sample, prediction in predicted]
        result[f"{what}_left_out"] = {
            name: {
                "summary": {key: asdict(value) for key, value in summarise(qualities).items()},
                "problems": [asdict(one) for one in qualities],
            }
            for name, qualities in rows.items()
        }
        console.print(_grid(f"a {what} left out", {name: summarise(qualities) for name, qualities in rows.items()}))
    if is_installed() and is_tiled(samples[0].features.names):
        result["heuristics"] = {s.problem: _heuristics(recorded, template, s, binaries) for s in samples}
        console.print(_heuristics_grid(result["heuristics"]))
    if json_path is not None:
        json_path.write_text(json.dumps(result, indent=1) + "\n")
    if plots is not None or mlflow_uri:
        from tilescout.experiments.model_plots import draw_and_log

        draw_and_log(drawn, result, plots, mlflow_uri)


def _makers(options: BlendOptions, parts: bool, tiled: bool) -> dict[str, Callable[[], CostModel]]:
    """What makes each model that is evaluated, by its name."""
    makers: dict[str, Callable[[], CostModel]] = {"learned": lambda: BlendModel(options)}
    if tiled:
        makers["analytic"] = AnalyticModel
    if parts:
        makers |= {"forest": lambda: ForestModel(options.forest), "ranking": lambda: RankingModel(options.ranking)}
    return makers


def _unbuilt(names: Sequence[str]) -> tuple[str, ...]:
    """The features that are known before a kernel is compiled."""
    return tuple(name for name in names if not name.startswith(BINARY_PREFIX))


def _heuristics(table: Table, template: KernelTemplate, sample: Sample, binaries: bool) -> dict[int, float]:
    """Regret of its first suggestions, every other knob at its best; what the table does not hold is passed over."""
    problem = GemmProblem.parse(sample.problem)
    part = problem_space(table, template, problem, binaries)
    tiling = template.tiling(part.columns, problem)
    assert tiling is not None
    groups = (matches(suggestion, tiling) for suggestion in suggest(problem, table.card.device))
    return regret_of_groups(sample.log_time, [group for group in groups if len(group)])


def _grid(title: str, summaries: Mapping[str, Mapping[str, Interval]]) -> Grid:
    grid = Grid(title=f"{title}: medians over problems [95 % interval]", title_justify="left")
    grid.add_column("")
    for name in summaries:
        grid.add_column(name, justify="right")
    figures = next(iter(summaries.values()))
    for figure in figures:
        grid.add_row(figure, *(_cell(figure, summary[figure]) for summary in summaries.values()))
    return grid


def _cell(figure: str, interval: Interval) -> str:
    if figure == "rank_correlation":
        return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def _heuristics_grid(regrets: Mapping[str, Mapping[int, float]]) -> Grid:
    title = "nvidia-matmul-heuristics: regret of its first tiles and clusters, other knobs at their best"
    grid = Grid(title=title, title_justify="left")
    grid.add_column("problem")
    for top in TOPS:
        grid.add_column(f"top {top}", justify="right")
    for problem, regret in regrets.items():
        grid.add_row(problem, *(f"{regret[top]:.1%}" if top in regret else "none" for top in TOPS))
    grid.add_row("median", *_medians(regrets))
    return grid


def _medians(regrets: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    for top in TOPS:
        values = [regret[top] for regret in regrets.values() if top in regret]
        yield f"{np.median(values):.1%}" if values else "none"
