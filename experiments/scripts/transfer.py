"""What does a model that was trained on one problem know of another? From the shipped table; no GPU is used.

    python -m tilescout.experiments.scripts.transfer --out transfer

A model is trained on some measurements of each problem alone, and of all but one; it ranks all configurations of the
others. The regret is the time of the fastest of its first five over that of the fastest recorded, less 1. Small
problems are bound by latencies, skinny ones by memory, large ones by the tensor cores: what holds for one need not for
another.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=12, help="how many of the table's, evenly over it")
    parser.add_argument("--rows", type=int, default=300, help="of each, at random, that models are trained on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder for the plot")
    parser.add_argument("--store", type=Path, default=STORE, help="its MLflow store gets the run")
    asked = parser.parse_args(arguments)

    table = largest_table(template := find_template(SPACE))
    samples = samples_of(table, template)
    samples = [samples[at] for at in np.linspace(0, len(samples) - 1, min(asked.problems, len(samples))).astype(int)]
    names = [sample.problem for sample in samples]
    rng = np.random.default_rng(asked.seed)
    parts = [sample.take(rng.permutation(len(sample))[: asked.rows]) for sample in samples]
    alone = np.empty((len(samples), len(samples)))
    others = np.empty(len(samples))
    for row, part in enumerate(track(parts, "train")):
        model = make_model(asked.seed).fit([part])
        alone[row] = [regret(model, sample) for sample in samples]
        rest = make_model(asked.seed).fit([other for other in parts if other is not part])
        others[row] = regret(rest, samples[row])

    figures = {
        "itself": float(np.median(np.diag(alone))),
        "one other": float(np.median(alone[~np.eye(len(samples), dtype=bool)])),
        "all others": float(np.median(others)),
    }
    for source, value in figures.items():
        print(f"trained on {source:10s}: regret of the first {TOP} {value:6.2%} in the median")
    asked.out.mkdir(parents=True, exist_ok=True)
    plot = asked.out / "transfer.png"
    draw(np.vstack([alone, others]), [*names, "all others"], names, plot)
    params = {"table": table.path.name, "problems": len(samples), "rows": asked.rows, "seed": asked.seed, "top": TOP}
    metrics = {f"regret/{name}": value for name, value in figures.items()}
    print(f"plot: {plot}; MLflow run {log_experiment(asked.store, 'transfer', params, metrics, [plot])}")


if __name__ == "__main__":
    main()
