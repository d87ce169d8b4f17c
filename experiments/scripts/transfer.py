"""How well does a model trained on one problem rank another? From the shipped table; no GPU is used.

    python -m tilescout.experiments.scripts.transfer --out transfer

Models are trained on some measurements of one problem, and of all but one. Each ranks all configurations of the others.
The regret is the time of the fastest of its first five over the fastest recorded time, less 1. Small problems are bound
by latency, skinny ones by memory and large ones by the tensor cores, so a model need not transfer.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from tilescout.costmodel import CostModel, ForestModel, ForestOptions, Sample, regret_of_order
from tilescout.search.studies.folders import STORE
from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.training import samples_of
from tilescout.search.tracking.experiment import log_experiment
from tilescout.spaces.templates import find_template

SPACE = "gemm_sm90"
TOP = 5  # how many of the first-ranked are looked at


def make_model(seed: int) -> CostModel:
    """The model that is examined: change it here."""
    return ForestModel(ForestOptions(trees=24, validation_trees=4, seed=seed))


def regret(model: CostModel, sample: Sample) -> float:
    """Of the first `TOP` that the model ranks, among the configurations that were timed."""
    exact = sample.exact()
    order = np.argsort(model.predict(exact.features).mean, kind="stable")
    return regret_of_order(exact.log_time, order)[TOP]


def draw(regrets: NDArray[np.float64], sources: Sequence[str], problems: Sequence[str], path: Path) -> None:
    """The regrets in percent as a heat map; `regrets` of shape [sources, problems]."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.5 + 0.75 * len(problems), 2 + 0.45 * len(sources)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(np.sqrt(regrets), vmin=0, vmax=1.5, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(problems)), problems, rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(sources)), sources, fontsize=8)
    for (row, column), value in np.ndenumerate(regrets):
        axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=8)
    axes.set_xlabel(f"ranked: regret of the first {TOP}, %")
    axes.set_ylabel("trained on")
    figure.savefig(path)


@click.command(help=__doc__)
@click.option("--problems", default=12, show_default=True, help="How many of the table's problems, evenly over it.")
@click.option("--rows", default=300, show_default=True, help="Random measurements of each that models are trained on.")
@click.option("--seed", default=0, show_default=True, help="Of models and measurements.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the plot.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, help="Its MLflow store gets the run.")
def main(problems: int, rows: int, seed: int, out: Path, store: Path) -> None:
    """Run the script."""
    table = largest_table(template := find_template(SPACE))
    samples = samples_of(table, template)
    samples = [samples[at] for at in np.linspace(0, len(samples) - 1, min(problems, len(samples))).astype(int)]
    names = [sample.problem for sample in samples]
    rng = np.random.default_rng(seed)
    parts = [sample.take(rng.permutation(len(sample))[:rows]) for sample in samples]
    alone = np.empty((len(samples), len(samples)))
    others = np.empty(len(samples))
    for row, part in enumerate(track(parts, "train")):
        model = make_model(seed).fit([part])
        alone[row] = [regret(model, sample) for sample in samples]
        rest = make_model(seed).fit([other for other in parts if other is not part])
        others[row] = regret(rest, samples[row])

    figures = {
        "itself": float(np.median(np.diag(alone))),
        "one other": float(np.median(alone[~np.eye(len(samples), dtype=bool)])),
        "all others": float(np.median(others)),
    }
    for source, value in figures.items():
        print(f"trained on {source:10s}: regret of the first {TOP} {value:6.2%} in the median")
    out.mkdir(parents=True, exist_ok=True)
    plot = out / "transfer.png"
    draw(np.vstack([alone, others]), [*names, "all others"], names, plot)
    params = {"table": table.path.name, "problems": len(samples), "rows": rows, "seed": seed, "top": TOP}
    metrics = {f"regret/{name}": value for name, value in figures.items()}
    print(f"plot: {plot}; MLflow run {log_experiment(store, 'transfer', params, metrics, [plot])}")


if __name__ == "__main__":
    main()
