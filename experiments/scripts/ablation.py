"""Which features of a configuration does a prediction rest on? From the shipped table; no GPU is used.

    python -m tilescout.experiments.scripts.ablation --out ablation

Each group of features is left out in turn. Forests trained on three quarters of the problems predict the others. The
figures hold for `Trees`; the shipped model corrects an analytic one and may need other features.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.progress import track

from tilescout.costmodel import CostModel, Features, Prediction, Sample, leave_out, median_interval, quality
from tilescout.search.studies.folders import STORE
from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.training import samples_of
from tilescout.search.tracking.experiment import log_experiment
from tilescout.spaces.templates import find_template

SPACE, FOLDS = "gemm_sm90", 4
GROUPS = {
    "nothing": (),
    "lower bounds": ("time_mma", "time_l2", "time_memory", "time_latency", "time_store", "bound", "second"),
    "waves": ("units", "waves", "tail", "busy"),
    "the ring": ("steps", "stage_bytes", "ring_bytes", "stage_cycles", "ring_cycles", "ring_steps"),
    "memories": ("l2_intensity", "smem_intensity", "multicast_a", "multicast_b", "wave_bytes", "traffic"),
    "the tile": ("rows", "columns", "depth", "area", "aspect", "pad_m", "pad_n", "pad_k"),
}
"""The parts that are left out; the names are explained in `tilescout.costmodel.features`."""


class Trees(CostModel):
    """Extremely randomised trees: `learn` is all that a cost model of one's own needs."""

    def __init__(self, trees: int, seed: int) -> None:
        self._trees, self._seed = trees, seed

    def learn(self, samples: Sequence[Sample]) -> "GrownTrees":
        from sklearn.ensemble import ExtraTreesRegressor

        exact = [sample.exact() for sample in samples]
        trees = ExtraTreesRegressor(self._trees, min_samples_leaf=2, random_state=self._seed)
        trees.fit(np.concatenate([s.features.values for s in exact]), np.concatenate([s.log_time for s in exact]))
        return GrownTrees(samples[0].features.names, trees)


class GrownTrees(NamedTuple):
    """Fitted trees, with the names of their features."""

    names: tuple[str, ...]
    trees: Any

    def predict(self, features: Features) -> Prediction:
        each = np.stack([tree.predict(features.values) for tree in self.trees.estimators_])  # [trees, configurations]
        return Prediction(each.mean(axis=0), each.std(axis=0), 0.0)


def without(sample: Sample, names: Collection[str]) -> Sample:
    """The sample, without some features."""
    kept = [at for at, name in enumerate(sample.features.names) if name not in names]
    left = Features(tuple(sample.features.names[at] for at in kept), sample.features.values[:, kept])
    return replace(sample, features=left)


@click.command(help=__doc__)
@click.option("--trees", default=24, show_default=True, help="Trees of a forest.")
@click.option("--rows", default=400, show_default=True, help="Random measurements of each problem.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the plot.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, help="Its MLflow store gets the run.")
def main(trees: int, rows: int, out: Path, store: Path) -> None:
    """Run the script."""
    from matplotlib.figure import Figure

    table = largest_table(template := find_template(SPACE))
    rng = np.random.default_rng(0)
    samples = [each.take(rng.permutation(len(each))[:rows]) for each in samples_of(table, template)]
    folds = [str(at % FOLDS) for at in range(len(samples))]
    metrics: dict[str, float] = {}
    axes = (figure := Figure(figsize=(8, 4.5), dpi=110, layout="constrained")).subplots()
    for place, (group, names) in enumerate(track(GROUPS.items(), "leave out")):
        predicted = leave_out([without(sample, names) for sample in samples], folds, Trees(trees, seed=0).fit)
        errors = median_interval([quality(sample, prediction).error for sample, prediction in predicted])
        metrics[f"error/without {group}"] = errors.value
        axes.plot(np.multiply(100, [errors.low, errors.value, errors.high]), [place] * 3, "bo-", markevery=[1])
        print(f"left out {group:12s}: error {errors.value:6.2%} [{errors.low:.2%}, {errors.high:.2%}]")
    axes.set(yticks=range(len(GROUPS)), yticklabels=GROUPS, ylim=(len(GROUPS) - 0.5, -0.5), ylabel="left out")
    axes.set_xlabel("error within a problem that no forest saw, %: median with its 95 % interval")
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(plot := out / "ablation.png")
    params = {"table": table.path.name, "rows": rows, "folds": FOLDS, "trees": trees}
    print(f"plot: {plot}; MLflow run {log_experiment(store, 'ablation', params, metrics, [plot])}")


if __name__ == "__main__":
    main()
