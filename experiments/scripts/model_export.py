"""From a model to its tuned kernels: record its products, tune each, export a bundle; replayed without a GPU.

    python -m tilescout.experiments.scripts.model_export --out model

A kernel goes into the bundle only if the race of a live search proved it as fast as the library's. After replayed
searches every product stays with the library, and the bundle says why. With `--device cuda` the bundle holds kernels,
which `torch.compile` then uses (see docs/tutorial.md).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.commands.from_model import record
from tilescout.search import Budget, StudyResult, tune
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.export.from_studies import make_bundle, read_outcomes
from tilescout.search.studies.folders import STORE, artifacts, studies
from tilescout.search.tracking.experiment import log_experiment
from tilescout.spaces.errors import TableError

SPACE = "gemm_sm90"


def make_model() -> tuple[Any, tuple[Any, ...]]:
    """The model and the arguments of its call: a feed-forward layer of Llama 3 8B's sizes. Put yours here.

    It is called with torch's meta device as the default: no memory is taken.
    """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4096, 14336, bias=False), nn.SiLU(), nn.Linear(14336, 4096, bias=False))
    return model.to(torch.bfloat16), (torch.empty(256, 4096, dtype=torch.bfloat16),)


def draw(results: Sequence[StudyResult], path: Path) -> None:
    """The best and the default of each product against the library."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.5 + 0.6 * len(results)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for place, result in enumerate(results):
        for trial, colour, name in ((result.default, "#ef8e19", "default"), (result.best, "#1f3b73", "best")):
            if trial is not None and trial.measurement.timing is not None:
                label = name if place == 0 else None
                axes.plot(1 / trial.measurement.timing.ratio, place, "o", color=colour, label=label)
    axes.axvline(1, color="#2e7d32", linestyle=":", label="library")
    axes.set_yticks(range(len(results)), [f"{each.info.problem}\n{each.info.provenance.kind}" for each in results])
    axes.set_xlabel("speed over the library's")
    axes.legend()
    figure.savefig(path)


@click.command(help=__doc__)
@click.option("--device", default="auto", show_default=True, help="auto, cuda, cuda:N or replay.")
@click.option("--trials", default=40, show_default=True, help="Trials of a search.")
@click.option("--sampler", default="guided", show_default=True, help="The strategy of the searches.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the bundle and the plot.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, help="Gets kernels, studies and the run.")
def main(device: str, trials: int, sampler: str, out: Path, store: Path) -> None:
    """Run the script."""
    recording = record(make_model, None, training=False)
    results = []
    for entry in recording.entries:
        try:
            result = tune(
                SPACE,
                entry.problem,
                sampler=sampler,
                budget=Budget(trials=trials),
                device=device,
                store=store,
                progress=True,
            )
        except TableError as error:
            print(f"{entry.problem} (module {entry.label}) is left out: {error}")
            continue
        results.append(result)
        print(f"{entry.problem} (module {entry.label}, {entry.count} a call): {result.info.provenance.description}")
    out.mkdir(parents=True, exist_ok=True)
    decided = read_outcomes([result.info.name for result in results], studies(store))
    bundle = make_bundle(decided.outcomes, ArtifactStore(artifacts(store)), out / "bundle")
    for outcome in decided.outcomes:
        print(f"{outcome.problem}: {outcome.choice}, {outcome.evidence.reason}")
    plot = out / "products.png"
    draw(results, plot)
    params = {"sampler": sampler, "trials": trials, "bundle": bundle.digest}
    metrics = {"products": float(len(recording.entries)), "tuned": float(len(results)), "ours": float(len(bundle.ours))}
    run = log_experiment(store, "model export", params, metrics, [plot, out / "bundle"])
    print(f"bundle: {bundle.path}; plot: {plot}; MLflow run {run}")


if __name__ == "__main__":
    main()
