"""Which features of a configuration does a prediction rest on? From the shipped table; no GPU is used.

    python -m tilescout.experiments.scripts.ablation --out ablation

Groups of features are left out, each in turn; forests that saw three quarters of the problems predict the others.
What a group is worth to `Trees` is not what it is worth to the shipped model, which corrects an analytic one.
"""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
"""What is left out; the names are explained in `tilescout.costmodel.features`."""


class Trees(CostModel):
    """Extremely randomised trees: `learn` is all that a cost model of one's own needs."""

    def __init__(self, trees: int, seed: int) -> None:
        self._trees, self._seed = trees, seed

    def learn(self, samples: Sequence[Sample]) -> "GrownTrees":
        from sklearn.ensemble import ExtraTreesRegressor

        exact = [sample.exact() for sample in samples]
        values = np.concatenate([sample.features.values for sample in exact])
        trees = ExtraTreesRegressor(self._trees, min_samples_leaf=2, random_state=self._seed)
        trees.fit(values, np.concatenate([sample.log_time for sample in exact]))
        return GrownTrees(samples[0].features.names, trees)


@dataclass(frozen=True)
class GrownTrees:
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=24)
    parser.add_argument("--rows", type=int, default=400, help="measurements of each problem, at random")
    parser.add_argument("--out", type=Path, required=True, help="folder for the plot")
    parser.add_argument("--store", type=Path, default=STORE, help="its MLflow store gets the run")
    asked = parser.parse_args(arguments)

    from matplotlib.figure import Figure

    table = largest_table(template := find_template(SPACE))
    recorded, rng = samples_of(table, template), np.random.default_rng(0)
    samples = [each.take(rng.permutation(len(each))[: asked.rows]) for each in recorded]
    folds = [str(at % FOLDS) for at in range(len(samples))]
    metrics: dict[str, float] = {}
    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    axes = figure.subplots()
    for place, (group, names) in enumerate(track(GROUPS.items(), "leave out")):
        part = [without(sample, names) for sample in samples]
        predicted = leave_out(part, folds, Trees(asked.trees, seed=0).fit)
        errors = median_interval([quality(sample, prediction).error for sample, prediction in predicted])
        metrics[f"error/without {group}"] = errors.value
        ends = [100 * errors.low, 100 * errors.value, 100 * errors.high]
        axes.plot(ends, [place] * 3, "o-", markevery=[1], color="#1f3b73")
        print(f"left out {group:12s}: error {errors.value:6.2%} [{errors.low:.2%}, {errors.high:.2%}]")
    axes.set(yticks=range(len(GROUPS)), yticklabels=GROUPS, ylim=(len(GROUPS) - 0.5, -0.5), ylabel="left out")
    axes.set_xlabel("error within a problem that no forest saw, %: median with its 95 % interval")
    asked.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(plot := asked.out / "ablation.png")
    params = {"table": table.path.name, "rows": asked.rows, "folds": FOLDS, "trees": asked.trees}
    print(f"plot: {plot}; MLflow run {log_experiment(asked.store, 'ablation', params, metrics, [plot])}")


if __name__ == "__main__":
    main()
