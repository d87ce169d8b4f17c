"""How well several cost models order the rows of tables whose problems none of them learned from.

    python -m tilescout.experiments.research models-beside gemm_streamk_sm90-h200-searched-1011-e4m3.parquet \
        --models models-before --models models-now --out beside.json

Each folder has a model of the table's space and device. What none of them learned from stays: `train --without` keeps
some problems of a table for that. The first rows in the order of a model are compared with the fastest of the problem.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.estimator import CostModel, Sample
from tilescout.costmodel.evaluation import TOPS, Quality, quality
from tilescout.costmodel.persistence import ModelCard, load_model, model_file
from tilescout.experiments.finite import finite
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import samples_of
from tilescout.spaces.errors import ModelError

OFF = 0.01
"""Regret from which a problem counts as off."""


def unseen(samples: Sequence[Sample], cards: Sequence[ModelCard]) -> Iterator[Sample]:
    """The samples with a time whose problem no model learned from."""
    learned = {problem for card in cards for problem in card.problems}
    return (sample for sample in samples if sample.problem not in learned and not sample.censored.all())


def judged(models: Mapping[str, CostModel], samples: Sequence[Sample]) -> dict[str, Any]:
    """The quality of each model on each sample, by the names of the problems and the models."""
    return {
        sample.problem: {
            "rows": int((~sample.censored).sum()),
            "models": {
                name: _figures(quality(sample, model.predict(sample.features))) for name, model in models.items()
            },
        }
        for sample in samples
    }


def _figures(told: Quality) -> Any:
    """Without the names, which stand elsewhere."""
    return finite({name: value for name, value in asdict(told).items() if name not in ("problem", "family")})


@study(TABLES)
@click.argument("paths", metavar="TABLE...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--models",
    "folders",
    multiple=True,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of models; repeatable.",
)
def main(run: Run, paths: tuple[Path, ...], folders: tuple[Path, ...]) -> None:
    """Judge models on what none of them learned from."""
    result, console = dict[str, Any](), Console()
    for path in paths:
        table = Table.read(path)
        space, device = table.card.space, table.card.device
        loaded = {folder.name: load_model(model_file(folder, space, device)) for folder in folders}
        if len(loaded) < len(folders):
            raise ModelError("two folders of models have the same name, by which they are told apart: rename one")
        cards = [card for _, card in loaded.values()]
        samples = list(unseen(samples_of(table, template_of(table)), cards))
        if not samples:
            raise ModelError(f"the models learned from all problems of {path}: leave some out of one's training")
        result[path.name] = judged({name: model for name, (model, _) in loaded.items()}, samples)
        run.keep(result)
        _show(path.name, result[path.name], console)


def _show(name: str, found: Mapping[str, Any], console: Console) -> None:
    grid = Grid(title=f"{name}: {len(found)} problems that no model learned from", title_justify="left")
    grid.add_column("models")
    for heading in (*(f"behind, first {top}" for top in TOPS), f"off after {TOPS[-1]}", "error", "covered"):
        grid.add_column(heading, justify="right")
    for model in next(iter(found.values()))["models"]:
        its = [each["models"][model] for each in found.values()]
        behind = {top: np.array([one["regret"][top] for one in its]) for top in TOPS}
        grid.add_row(
            model,
            *(f"{behind[top].mean():.2%}" for top in TOPS),
            str(int((behind[TOPS[-1]] > OFF).sum())),
            f"{np.mean([one['error'] for one in its]):.2%}",
            f"{np.mean([one['covered'] for one in its]):.1%}",
        )
    console.print(grid)
