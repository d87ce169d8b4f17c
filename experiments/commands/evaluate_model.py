"""``tilescout evaluate-model``: how good the cost models are on problems that they have not seen."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.costmodel.analytic import AnalyticModel, is_tiled
from tilescout.costmodel.blend import Blended, BlendModel, BlendOptions
from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.evaluation import (
    TOPS,
    Interval,
    Quality,
    leave_out,
    quality,
    regret_of_groups,
    summarise,
)
from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.costmodel.heuristics import GPUS, PRECISIONS, is_installed, matches, suggest
from tilescout.costmodel.ranking import RankingModel, RankingOptions
from tilescout.experiments.commands.completion import TABLE
from tilescout.experiments.commands.model_options import steps_option, trees_option
from tilescout.experiments.commands.options import (
    Folder,
    collected,
    examples,
    json_option,
    named_store,
    processes_option,
    seed_option,
    space_argument,
    store_option,
)
from tilescout.experiments.commands.outputs import check_mlflow, check_result, console_beside, make_folder, write_result
from tilescout.experiments.compare.held_out import HeldOutModels, held_out_folder
from tilescout.experiments.progress import waiting
from tilescout.search.build.cores import available_cores
from tilescout.search.tables.shipped import named_table
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import problem_space
from tilescout.spaces.errors import ModelError, TableError
from tilescout.spaces.templates import KernelTemplate, load_template
from tilescout.spaces.terminal import Grid


@dataclass(frozen=True)
class EvaluationRequest:
    """The parameters of the command; its help text says what each means."""

    space: str
    table: Path | None
    parts: bool
    binaries: bool
    trees: int
    steps: int
    seed: int
    processes: int | None
    json_path: Path | None
    plots: Path | None
    store: Path
    mlflow_uri: str | None


@click.command(
    "evaluate-model",
    epilog=examples(
        "tilescout evaluate-model gemm_sm90 --trees 100 --plots plots",
        "tilescout evaluate-model gemm_sm90 --parts --json evaluation.json",
    ),
)
@space_argument
@click.option("--table", type=TABLE, help="Table to test on. [default: the largest shipped one]")
@click.option("--parts", is_flag=True, help="Also evaluate the forest and the networks that the learned model blends.")
@click.option(
    "--binaries",
    is_flag=True,
    help="Learn with and without the resources of each kernel's binary, on the rows that have them; "
    "`tilescout tables add-binaries` adds them to a table.",
)
@trees_option
@steps_option
@seed_option
@processes_option
@json_option
@click.option("--plots", type=Folder(), help="Draw plots into this folder.")
@store_option
@click.option(
    "--mlflow", "mlflow_uri", metavar="URI", callback=named_store, help="Log figures and plots to this MLflow store."
)
@collected(EvaluationRequest)
def evaluate_model(asked: EvaluationRequest) -> None:
    """Test the cost model of SPACE on problems, and on families of problems, that it was not trained on.

    Each problem of a table in turn is left out of the training and then predicted; then each family is. Problems of
    one shape, in other types or transposed, are left out together.

    Prints medians over the problems with bootstrapped 95 % intervals, in which those that are left out together count
    as one. This takes minutes, on all cores, because a model is trained for each problem. The models are kept in the
    store; an interrupted run continues with those it has.
    """
    check_result(asked.json_path)
    if asked.plots is not None:
        from tilescout.experiments.commands.model_plots import check_plots

        check_plots(asked.plots)
    if asked.mlflow_uri:
        check_mlflow(asked.mlflow_uri, asked.store)
    template = load_template(asked.space)
    recorded = named_table(template, asked.table)
    make_folder(held_out_folder(asked.store))  # a model takes minutes, and is to be kept
    options = BlendOptions(
        ForestOptions(trees=asked.trees, seed=asked.seed), RankingOptions(steps=asked.steps, seed=asked.seed)
    )
    held_out = HeldOutModels.of([recorded], asked.store, options, built=asked.binaries)
    kinds = [held_out] + ([replace(held_out, binaries=True)] if asked.binaries else [])
    samples = held_out.samples()
    shapes = held_out.shapes()  # one problem of a shape tells of the others
    divisions = {"problem": [shapes[s.problem] for s in samples], "family": [s.family for s in samples]}
    # Where all problems are of one shape or family, nothing would be left to learn from.
    divisions = {what: labels for what, labels in divisions.items() if len(set(labels)) > 1}
    if not divisions:
        raise TableError(
            f"table {recorded.path}: what ran is all of one shape and one family, and without it nothing is left to "
            "learn from: give a table of several problems"
        )
    groups = [group for labels in divisions.values() for group in _groups(samples, labels)]
    for models in kinds:
        models.train(groups, asked.processes or available_cores())
    console = console_beside(asked.json_path)
    result: dict[str, Any] = {"table": recorded.path.name, "rows": len(recorded), "device": recorded.card.device}
    drawn: dict[str, list[tuple[Sample, Prediction]]] = {}
    fits = _fits(kinds, asked.parts, is_tiled(samples[0].features.names))
    result["models"] = list(fits)
    for what, labels in divisions.items():
        rows: dict[str, Sequence[Quality]] = {}
        summaries: dict[str, dict[str, Interval]] = {}
        for name, (seen, fit) in fits.items():
            with waiting(f"{name}, a {what} left out: predict"):
                predicted = leave_out(seen, labels, fit)
            drawn[f"{name}, {what} left out"] = predicted
            rows[name] = [quality(sample, prediction) for sample, prediction in predicted]
            label = {sample.problem: own for sample, own in zip(seen, labels, strict=True)}
            together = [label[sample.problem] for sample, _ in predicted]
            summaries[name] = summarise(rows[name], together)
        result[f"{what}_left_out"] = {
            name: {
                "summary": {key: asdict(value) for key, value in summaries[name].items()},
                "problems": [asdict(one) for one in qualities],
            }
            for name, qualities in rows.items()
        }
        console.print(_grid(f"a {what} left out", summaries))
    if is_installed() and is_tiled(samples[0].features.names):
        known, unanswered = heuristics_regrets(recorded, template, samples, asked.binaries)
        for why in unanswered:
            console.say(why)
        if known:
            result["heuristics"] = known
            console.print(_heuristics_grid(known))
    write_result(asked.json_path, result)
    if asked.plots is not None or asked.mlflow_uri:
        from tilescout.experiments.commands.model_plots import draw_and_log

        draw_and_log(drawn, result, asked.plots, asked.mlflow_uri)


Fit = Callable[[Sequence[Sample]], CostModel]


def _groups(samples: Sequence[Sample], labels: Sequence[str]) -> list[tuple[str, ...]]:
    """The problems that are left out together, by their labels."""
    pairs = [(sample.problem, label) for sample, label in zip(samples, labels, strict=True)]
    return [tuple(problem for problem, own in pairs if own == label) for label in dict.fromkeys(labels)]


def _fits(kinds: Sequence[HeldOutModels], parts: bool, tiled: bool) -> dict[str, tuple[Sequence[Sample], Fit]]:
    """The samples that each model sees and the function that fits it, by the model's name."""
    plain = kinds[0]
    fits: dict[str, tuple[Sequence[Sample], Fit]] = {}
    for models, name in zip(kinds, ("learned", "learned with binaries"), strict=False):
        fits[name] = models.samples(), partial(_blended, models)
    if tiled:
        fits["analytic"] = plain.samples(), lambda rest: AnalyticModel().fit(rest)
    if parts:
        fits["forest"] = plain.samples(), partial(_forest, plain)
        fits["ranking"] = plain.samples(), partial(_networks, plain)
    return fits


def _blended(models: HeldOutModels, rest: Sequence[Sample]) -> BlendModel:
    seen = {sample.problem for sample in rest}
    return models.without([sample.problem for sample in models.samples() if sample.problem not in seen])


def _forest(models: HeldOutModels, rest: Sequence[Sample]) -> ForestModel:
    """The forest of a blend, with the errors of the whole."""
    whole = _blended(models, rest).fitted
    assert whole is not None
    assert isinstance(whole.ensemble, Blended)
    return ForestModel.of(whole.ensemble.forest, whole.errors)


def _networks(models: HeldOutModels, rest: Sequence[Sample]) -> RankingModel:
    """The networks of a blend, with the errors of the whole."""
    whole = _blended(models, rest).fitted
    assert whole is not None
    assert isinstance(whole.ensemble, Blended)
    return RankingModel.of(whole.ensemble.networks, whole.errors)


def heuristics_regrets(
    table: Table, template: KernelTemplate, samples: Sequence[Sample], binaries: bool
) -> tuple[dict[str, dict[int, float]], list[str]]:
    """The regret of the heuristics on the problems that they know, and why they gave no answer to some of these.

    They know matrix products of some types on some devices. The package is a closed one, and crashes at times.
    """
    known: dict[str, dict[int, float]] = {}
    unanswered = []
    for sample in samples if table.card.device in GPUS else ():
        try:
            regret = _heuristics(table, template, sample, binaries)
        except ModelError as error:
            unanswered.append(str(error))
            continue
        if regret is not None:
            known[sample.problem] = regret
    return known, unanswered


def _heuristics(table: Table, template: KernelTemplate, sample: Sample, binaries: bool) -> dict[int, float] | None:
    """Regret of the heuristics' first suggestions that the table holds, with every other knob at its best.

    None if it is no matrix product, or of types that the heuristics do not know.
    """
    part = problem_space(table, template, template.parse(sample.problem), binaries)
    tiling = template.tiling(part.columns, part.problem)
    if tiling is None or tiling.product.dtype not in PRECISIONS:
        return None
    groups = (matches(suggestion, tiling) for suggestion in suggest(tiling.product, table.card.device))
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
